# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family's oracle: exact against rationals and int64, by hand; its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.exact_rounding import nearest
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.oracle import affine as oracle
from tests.support.oracle import int8_mm as int8_oracle
from tests.support.oracle.int8_mm import fma

by_compute = pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)


# --- fma -----------------------------------------------------------------------------------------


def triples(dtype: torch.dtype, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Factors and addends: any bits; of like size; that nearly cancel; next to a tie."""
    a, b, c = (to_numpy(cases.bit_patterns(dtype, count, seed)) for seed in (1, 2, 3))
    yield a, b, c
    rng = np.random.default_rng(0)
    real = a.dtype.type
    a, b = (rng.standard_normal(count).astype(real) for _ in range(2))
    spread = rng.integers(-60, 60, count)
    yield a, b, np.ldexp(rng.standard_normal(count).astype(real), spread)
    c = -(a * b)
    toward = np.where(rng.random(count) < 0.5, np.inf, -np.inf).astype(real)
    yield a, b, np.where(rng.random(count) < 0.5, c, np.nextafter(c, toward))
    # A product of few bits beside a sum whose last bit it halves, give or take the smallest part.
    bits = np.finfo(a.dtype).nmant + 1
    c = rng.integers(2 ** (bits - 1), 2**bits, count).astype(real)
    ulps = rng.integers(-2, 3, count).astype(real)
    half = real(0.5) * (1 + ulps * np.finfo(real).eps)
    yield np.where(rng.random(count) < 0.5, half, -half), np.ones(count, real), c
    # The same far down, where subnormal numbers end.
    info = np.finfo(real)
    small = rng.integers(-40, 40, count).astype(real)
    yield small * info.smallest_normal, rng.standard_normal(count).astype(real), small * info.tiny
    large = (1 + rng.random(count).astype(real)) * np.sqrt(info.max) * real(0.8)
    yield large, large[::-1], -real(0.5) * large * large


def exact_fma(a: float, b: float, c: float, dtype: torch.dtype) -> float:
    """By rational numbers; where they end, what IEEE says of infinities, NaN and zeros."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        signs = {math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c)}
        zero = Fraction(c) == 0
        return -0.0 if zero and signs == {-1.0} else 0.0
    return math.copysign(nearest(exact, dtype), 1 if exact > 0 else -1)


@by_compute
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_fma_rounds_once(dtype: torch.dtype) -> None:
    differing = 0
    with np.errstate(all="ignore"):
        for a, b, c in triples(dtype, 1500):
            got = fma(a, b, c)
            twice = a * b + c
            rows = [v.astype(np.float64).tolist() for v in (a, b, c)]
            expected = [exact_fma(*row, dtype) for row in zip(*rows, strict=True)]
            expected = np.array(expected).astype(a.dtype)
            assert_same_bits(torch.from_numpy(got.copy()), expected)
            differing += int(((got != twice) & ~np.isnan(got)).sum())
    assert differing > 1000


@by_compute
def test_fma_by_hand(dtype: torch.dtype) -> None:
    real = oracle.numpy_dtype(dtype).type
    eps = float(np.finfo(real).eps)
    rows = [
        (1 + eps, 1 - eps, -1.0, -eps * eps),  # the product alone would round to 1
        (2.0, 3.0, -6.0, 0.0),
        (-2.0, 0.0, -0.0, -0.0),
        (2.0, 0.0, -0.0, 0.0),
        (-2.0, 0.0, 0.0, 0.0),
        (math.inf, 0.0, 1.0, math.nan),
        (math.inf, 1.0, -math.inf, math.nan),
        (float(np.finfo(real).max), 2.0, -float(np.finfo(real).max), float(np.finfo(real).max)),
        (float(np.finfo(real).max), -2.0, 0.0, -math.inf),
        (float(np.finfo(real).tiny), eps / 2, -0.0, 0.0),  # half the smallest: ties to zero
        (-float(np.finfo(real).tiny), eps / 2, -0.0, -0.0),
    ]
    a, b, c, expected = (np.array(column, real) for column in zip(*rows, strict=True))
    assert_same_bits(torch.from_numpy(fma(a, b, c)), expected)


# --- sums ----------------------------------------------------------------------------------------


def in_int64(a: Tensor, w: Tensor) -> np.ndarray:
    return np.einsum("mk,nk->mn", a.numpy().astype(np.int64), w.numpy().astype(np.int64))


@pytest.mark.parametrize("values", int8_cases.VALUES)
@pytest.mark.parametrize("dtype", cases.INTEGER_DTYPES, ids=cases.name_of)
def test_sums_are_exact(dtype: torch.dtype, values: str) -> None:
    for m, n, k in ((3, 5, 7), (1, 2, 1025), (4, 3, 65536), (2, 2, 131071), (3, 2, 0), (0, 4, 5)):
        a = int8_cases.integers((m, k), dtype, values, 1)
        w = int8_cases.integers((n, k), torch.int8, values, 2)
        expected = in_int64(a, w)
        assert np.array_equal(int8_oracle.sums(a.numpy(), w.numpy()), expected)
        ends = torch.iinfo(dtype)
        for point in (0, 1, -128, 255, 2**31 - 1, -(2**31)):
            held = min(max(point, ends.min), ends.max)
            shifted = np.einsum(
                "mk,nk->mn", a.numpy().astype(np.int64) - held, w.numpy().astype(np.int64)
            )
            got = int8_oracle.accumulators(a, w, point, None)
            if k <= int8_cases.DEEPEST_SHIFTED:
                assert np.array_equal(got, shifted)
            each = torch.full((m,), point)
            assert np.array_equal(got, int8_oracle.accumulators(a, w, each, None))


def test_the_deepest_sums_fit_in_int32() -> None:
    """The limits of K: one more could overflow."""
    lowest = torch.full((1, int8_cases.DEEPEST), -128, dtype=torch.int8)
    assert in_int64(lowest, lowest).item() == 128 * 128 * 131071 < 2**31
    assert 128 * 128 * (int8_cases.DEEPEST + 1) == 2**31
    assert 255 * 128 * int8_cases.DEEPEST_SHIFTED < 2**31
    highest = torch.full((1, int8_cases.DEEPEST_SHIFTED), 255, dtype=torch.uint8)
    assert int8_oracle.accumulators(highest, lowest[:, :65536], None, None).item() == -2139095040
