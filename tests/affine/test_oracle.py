# SPDX-License-Identifier: BSD-3-Clause
"""The oracle itself: NumPy's roundings against exact fractions, and a few cases by hand."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.exact_rounding import FORMATS, nearest
from tests.support.oracle import affine as oracle


def finite(dtype: torch.dtype, count: int, seed: int) -> np.ndarray:
    values = to_numpy(cases.bit_patterns(dtype, count, seed)).copy()
    values[~np.isfinite(values)] = 1.5
    return values


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
def test_numpy_division_and_product_round_correctly(dtype: torch.dtype) -> None:
    x, s = finite(dtype, 3000, 1), finite(dtype, 3000, 2)
    s[s == 0] = 3
    rng = random.Random(0)
    for i in range(0, 3000, 3):  # quotients near ties (k + 1/2)
        s[i] = rng.uniform(0.01, 2)
        x[i] = s[i] * s.dtype.type(rng.randrange(-300, 300) / 2)
    with np.errstate(all="ignore"):
        quotient, product = x / s, x * s
    for a, b, got_quotient, got_product in zip(x, s, quotient, product, strict=True):
        fa, fb = Fraction(float(a)), Fraction(float(b))
        assert float(got_quotient) == nearest(fa / fb, dtype)
        assert float(got_product) == nearest(fa * fb, dtype)


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
def test_numpy_rint_is_half_to_even(dtype: torch.dtype) -> None:
    halves = np.arange(-2001, 2001, dtype=oracle.numpy_dtype(dtype)) / 2
    values = np.concatenate([halves, np.nextafter(halves, np.inf), finite(dtype, 2000, 3)])
    for value, got in zip(values.astype(float), np.rint(values).astype(float), strict=True):
        assert got == round(Fraction(value))


@pytest.mark.parametrize("source", cases.SCALE_DTYPES, ids=cases.name_of)
@pytest.mark.parametrize("target", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_final_rounding_is_single(source: torch.dtype, target: torch.dtype) -> None:
    values = finite(source, 3000, 4)
    precision = FORMATS[target][0]
    # One ulp of the source beside a tie of the target: two roundings would end on the wrong side.
    tie = 1 + 2.0**-precision
    for i, toward in enumerate((-np.inf, np.inf)):
        values[i] = np.nextafter(values.dtype.type(tie), values.dtype.type(toward))
    rng = random.Random(1)
    largest = min(1.5 * torch.finfo(target).max, torch.finfo(source).max / 2)
    for i in range(2, 1500):
        exponent = rng.uniform(math.log2(torch.finfo(target).tiny) - 12, math.log2(largest))
        values[i] = rng.choice((-1, 1)) * 2.0**exponent
    got = oracle.round_to(values, target)
    for value, rounded in zip(values.astype(float), got.astype(float), strict=True):
        expected = nearest(Fraction(value), target)
        assert rounded == expected
        assert math.copysign(1, rounded) == math.copysign(1, value)


def test_cases_by_hand() -> None:
    x = torch.tensor([0.25, 0.75, -0.25, 1e9, -1e9, math.inf, -math.inf, math.nan, 31.75, -32.25])
    found = oracle.Affine(x, torch.tensor(0.5), torch.tensor(64), cases.PER_TENSOR)
    # Ties 0.5, 1.5, -0.5, 63.5, -64.5 go to even before the zero point is added.
    assert found.quantize().tolist() == [64, 66, 64, 127, -128, 127, -128, 64, 127, 0]
    fake = [0.0, 1.0, 0.0, 31.5, -96.0, 31.5, -96.0, math.nan, 31.5, -32.0]
    assert_same_bits(torch.tensor(fake), found.fake_quantize())
    mask = [True, True, True, False, False, False, False, False, False, True]
    assert found.mask.tolist() == mask
    grad = torch.full_like(x, math.inf)
    assert found.fake_quantize_backward(grad).tolist() == [math.inf if m else 0 for m in mask]
    # q - z where clipped, r - x/s where not, nothing for NaN.
    terms = [-0.5, 0.5, 0.5, 63, -192, 63, -192, 0, 63, 0.5]
    assert found.scale_terms(torch.ones_like(x)).tolist() == terms


def test_zero_point_beyond_int32_does_not_wrap() -> None:
    x, scale = torch.tensor([3e9]), torch.tensor(1.0)
    assert oracle.Affine(x, scale, torch.tensor(1), cases.PER_TENSOR).quantize() == 127
    wide = torch.tensor(2**40)
    assert oracle.Affine(x * 0, scale, wide, cases.PER_TENSOR).v == np.float32(2**31)


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_expansions_agree(shape: tuple[int, ...]) -> None:
    """`cases.expand` (torch) and `oracle.expand` (NumPy) were written apart."""
    for granularity in cases.granularities(shape):
        params = granularity.param_shape(shape)
        ids = torch.arange(math.prod(params)).reshape(params)
        theirs = cases.expand(ids, granularity, shape)
        assert np.array_equal(theirs.numpy(), oracle.expand(ids.numpy(), granularity, shape))


@pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
def test_layouts_keep_values_and_are_dense_as_named(layout: str) -> None:
    base = torch.arange(2.0 * 16 * 5 * 7).reshape(2, 16, 5, 7)
    made = cases.LAYOUTS_4D[layout](base)
    assert made.shape == base.shape
    expected = base[:1].expand_as(base) if layout == "expanded" else base
    assert torch.equal(made, expected)
    assert cases.is_dense(made) == (layout not in cases.OTHER_LAYOUTS)
    assert made.is_contiguous() == (layout in ("contiguous", "misaligned"))
