# SPDX-License-Identifier: BSD-3-Clause
"""More than a million values of each dtype with all specials: every granularity, any layout."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.oracle.affine import Affine

SHAPE = (41, 101, 257)  # 1,064,237 elements, odd in every direction
GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(-1),
    PER_TOKEN,
    per_group(32),
    per_group(10, 0),
    per_group(7, -2),
)
LAYOUTS = ("contiguous", "transposed", "stepped")

pytestmark = pytest.mark.cover(million=enumerate)  # each dtype, each granularity


@dataclass
class Million:
    """One input with its parameters, shared by the tests of a dtype and granularity."""

    granularity: Granularity
    x: Tensor
    scale: Tensor
    points: dict[torch.dtype, Tensor]
    rules: dict[torch.dtype, Affine] = field(default_factory=dict)

    def on(self, device: str, layout: str, dtype: torch.dtype) -> list:
        """Arguments of an op up to the range of a quantized dtype."""
        x, scale, point = cases.to(device, self.x, self.scale, self.points[dtype])
        made = cases.LAYOUTS[layout](x)
        return [made, scale, point, *self.granularity.args, *cases.default_range(dtype)]

    def expected(self, dtype: torch.dtype) -> Affine:
        if dtype not in self.rules:
            args = self.x, self.scale, self.points[dtype], self.granularity
            self.rules[dtype] = Affine(*args, *cases.default_range(dtype))
        return self.rules[dtype]


PAIRS = [(dtype, granularity) for dtype in cases.FLOAT_DTYPES for granularity in GRANULARITIES]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda p: f"{cases.name_of(p[0])}-{p[1]}")
def million(request: pytest.FixtureRequest) -> Million:
    dtype, granularity = request.param
    seed = PAIRS.index(request.param)
    params = granularity.param_shape(SHAPE)
    scale = cases.scales(params, cases.compute_dtype(dtype), seed)
    x = cases.adversarial(cases.expand(scale, granularity, SHAPE), dtype, seed)
    points = {
        q: cases.zero_points(params, cases.default_range(q), seed) for q in cases.INTEGER_DTYPES
    }
    if granularity == PER_TENSOR:  # the only one must lie in the range
        points = {torch.int8: torch.tensor(-9), torch.uint8: torch.tensor(121)}
    return Million(granularity, x, scale, points)


@pytest.mark.parametrize("dtype", cases.INTEGER_DTYPES, ids=cases.name_of)
def test_forward(million: Million, dtype: torch.dtype, device: str) -> None:
    expected = million.expected(dtype)
    integers, fakes = expected.quantize(dtype), expected.fake_quantize()
    for layout in LAYOUTS:
        args = million.on(device, layout, dtype)
        q = million.granularity.op("quantize")(*args, dtype=dtype)
        assert_same_bits(q, integers, layout)
        assert_same_bits(million.granularity.op("fake_quantize")(*args), fakes, layout)
    y = million.granularity.op("dequantize")(q, *args[1:-2], dtype=million.x.dtype)
    assert (torch.from_numpy(expected.nan) | (y.cpu() == torch.from_numpy(fakes))).all()


def test_backward(million: Million, device: str) -> None:
    expected = million.expected(torch.int8)
    grad = cases.gradients(SHAPE, million.x.dtype)
    masked, divided = expected.fake_quantize_backward(grad), expected.quantize_backward(grad)
    for layout in LAYOUTS:
        args = million.on(device, layout, torch.int8)
        dy = cases.LAYOUTS[layout](grad.to(device))
        dx = million.granularity.op("fake_quantize_backward")(dy, *args)
        assert_same_bits(dx, masked, layout)
        dx = million.granularity.op("quantize_backward")(dy, *args)
        assert_same_bits(dx, divided, layout)
