# SPDX-License-Identifier: BSD-3-Clause
"""The fma of the integer matrix family's oracle, which NumPy has not, against rational numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.oracle.int8_mm import fma

# Precision in bits and the exponent of the smallest subnormal number.
FORMATS = {torch.float32: (24, -149), torch.float64: (53, -1074)}


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


def nearest(value: Fraction, dtype: torch.dtype) -> float:
    """The number of `dtype` nearest to a rational, ties to even; infinite beyond the largest."""
    precision, smallest = FORMATS[dtype]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - precision + 1, smallest)
    rounded = round(magnitude / step) * step  # Fraction rounds half to even
    sign = -1 if value < 0 else 1
    beyond = rounded > Fraction(torch.finfo(dtype).max)
    return sign * (math.inf if beyond else float(rounded))


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


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
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
