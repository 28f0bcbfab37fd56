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
from tests.support.bits import to_numpy
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


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_expansions_agree(shape: tuple[int, ...]) -> None:
    """`cases.expand` (torch) and `oracle.expand` (NumPy) were written apart."""
    for granularity in cases.granularities(shape):
        params = granularity.param_shape(shape)
        ids = torch.arange(math.prod(params)).reshape(params)
        theirs = cases.expand(ids, granularity, shape)
        assert np.array_equal(theirs.numpy(), oracle.expand(ids.numpy(), granularity, shape))
