# SPDX-License-Identifier: BSD-3-Clause
"""The range family of `baraquant.reference` against the NumPy oracle, bit for bit."""

from __future__ import annotations

import pytest
import torch

from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import FLOAT_DTYPES, Granularity
from tests.support.family_cases import range as range_cases
from tests.support.oracle.range import Dynamic

by_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=cases.name_of)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_mode = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
SHAPE = (6, 4, 20)


@by_dtype
@by_mode
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_forward(shape: tuple[int, ...], dtype: torch.dtype, symmetric: bool) -> None:
    for seed, granularity in enumerate(cases.granularities(shape)):
        ends = range_cases.RANGES[seed % len(range_cases.RANGES)]
        if symmetric and not range_cases.modes_of(ends)[0]:
            continue
        x = range_cases.characterful(shape, dtype, granularity, ends, symmetric, seed)
        expected = Dynamic(x, granularity, *ends, symmetric)
        args = (*granularity.args, *ends)
        scale, zero_point = granularity.op("choose_qparams", reference)(
            x, *args, symmetric=symmetric
        )
        assert_same_bits(scale, expected.scale, f"{granularity} {ends} scale")
        assert_same_bits(zero_point, expected.zero_point, f"{granularity} {ends} zero point")
        y = granularity.op("dynamic_fake_quantize", reference)(x, *args, symmetric=symmetric)
        assert_same_bits(y, expected.fake_quantize(), f"{granularity} {ends}")
        out = torch.uint8 if ends[0] >= 0 else torch.int8
        quantize = granularity.op("dynamic_range_quantize", reference)
        q, *qparams = quantize(x, *args, symmetric=symmetric, dtype=out)
        assert q.dtype == out
        assert_same_bits(q, expected.quantize(out), f"{granularity} {ends}")
        assert_same_bits(qparams[0], scale)
        assert_same_bits(qparams[1], zero_point)


@by_dtype
@by_mode
@by_kind
def test_gradient(granularity: Granularity, dtype: torch.dtype, symmetric: bool) -> None:
    x = range_cases.characterful(SHAPE, dtype, granularity, (-8, 7), symmetric).requires_grad_()
    dy = cases.gradients(SHAPE, dtype).requires_grad_()
    op = granularity.op("dynamic_fake_quantize", reference)
    y = op(x, *granularity.args, -8, 7, symmetric=symmetric)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    expected = Dynamic(x, granularity, -8, 7, symmetric)
    assert_same_bits(dx, expected.dynamic_backward(dy))
    (ddy,) = torch.autograd.grad(dx, dy, torch.ones_like(dx))
    assert_same_bits(ddy, expected.dynamic_backward(torch.ones_like(dx)))
