# SPDX-License-Identifier: BSD-3-Clause
"""Any strides in; out come those of a dense input, or contiguous ones, and contiguous scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.calls.range import RangeCall
from tests.support.cases import PER_TENSOR, PER_TOKEN, per_channel, per_group
from tests.support.family_cases.layouts import AnyLayout, kept_strides
from tests.support.family_cases.range import CLEAN, MODES, characterful
from tests.support.oracle import affine as oracle
from tests.support.oracle.range import Observed

SHAPE = (4, 6, 5, 7)
RANGE = (-100, 90)
GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(2),
    per_channel(-1),
    PER_TOKEN,
    per_group(3),
    per_group(4, 1),
    per_group(3, 0),
    per_group(2, -2),
)
VERBS = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")
by_layout = pytest.mark.parametrize("layout", cases.LAYOUTS_4D)


class TestAnyLayout(AnyLayout):
    KEEPS, PLANTS = True, 1 / 200
    CALLS = tuple(RangeCall(v, g, m) for v in VERBS for g in GRANULARITIES for m in MODES)


@by_layout
@pytest.mark.parametrize("axis", (None, 0, 1, 2, -1))
def test_observers(axis: int | None, layout: str, device: str) -> None:
    """The input has any strides; what it is fake-quantized to keeps them."""
    granularity = PER_TENSOR if axis is None else per_channel(axis)
    base = characterful(SHAPE, torch.float32, granularity, RANGE, characters=CLEAN).to(device)
    x = cases.LAYOUTS_4D[layout](base).detach().requires_grad_()
    nothing = Observed.nothing(None if axis is None else SHAPE[axis], torch.float32)
    seen = nothing.after(x, axis, None)
    shape = nothing.low.shape
    before = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    expected = seen.qparams(RANGE, False, before)
    low, high, other_low, other_high = (
        torch.from_numpy(a.copy()).to(device) for a in (nothing.low, nothing.high) * 2
    )
    torch.ops.baraquant.observe_min_max_(x, low, high, axis)
    scale, point = torch.zeros_like(low), torch.zeros_like(low, dtype=torch.int32)
    on = torch.ones(1, dtype=torch.uint8, device=device)
    args = (other_low, other_high, scale, point, on, on, axis, *RANGE)
    y = torch.ops.baraquant.observe_fake_quantize(x, *args, symmetric=False)
    for got, right in zip((low, high), (seen.low, seen.high), strict=True):
        assert oracle.np.array_equal(to_numpy(got), right)
    assert_same_bits(other_low, low)
    assert_same_bits(other_high, high)
    assert_same_bits(scale, expected[0])
    assert_same_bits(point, expected[1])
    params = (torch.from_numpy(p) for p in expected)
    rule = oracle.Affine(x, *params, granularity, *RANGE)
    assert_same_bits(y, rule.fake_quantize())
    assert y.stride() == kept_strides(x)
    dy = cases.LAYOUTS_4D["transposed"](cases.gradients(SHAPE, torch.float32).to(device))
    (dx,) = torch.autograd.grad(y, x, dy)
    assert_same_bits(dx, rule.fake_quantize_backward(dy))
