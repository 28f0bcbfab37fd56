# SPDX-License-Identifier: BSD-3-Clause
"""More than a million values of each dtype with all specials: every granularity, any layout."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.cover(("dtype", "granularity"))
@pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
@pytest.mark.parametrize("integer", cases.INTEGER_DTYPES, ids=cases.name_of)
def test_a_million(
    integer: torch.dtype, dtype: torch.dtype, granularity: Granularity, device: str
) -> None:
    """Forward to integers, fake and back; both gradients."""
    seed = GRANULARITIES.index(granularity)
    params, ends = granularity.param_shape(SHAPE), cases.default_range(integer)
    scale = cases.scales(params, cases.compute_dtype(dtype), seed)
    x = cases.adversarial(cases.expand(scale, granularity, SHAPE), dtype, seed)
    point = cases.zero_points(params, ends, seed)
    if granularity == PER_TENSOR:  # the only one must lie in the range
        point = torch.tensor({torch.int8: -9, torch.uint8: 121}[integer])
    rule, grad = Affine(x, scale, point, granularity, *ends), cases.gradients(SHAPE, dtype)
    integers, fakes = rule.quantize(integer), rule.fake_quantize()
    masked, divided = rule.fake_quantize_backward(grad), rule.quantize_backward(grad)
    here, dy, *rest = cases.to(device, x, grad, scale, point)
    rest += [*granularity.args, *ends]
    for layout in LAYOUTS:
        laid, dy_laid = (cases.LAYOUTS[layout](t) for t in (here, dy))
        q = granularity.op("quantize")(laid, *rest, dtype=integer)
        assert_same_bits(q, integers, layout)
        assert_same_bits(granularity.op("fake_quantize")(laid, *rest), fakes, layout)
        dx = granularity.op("fake_quantize_backward")(dy_laid, laid, *rest)
        assert_same_bits(dx, masked, layout)
        dx = granularity.op("quantize_backward")(dy_laid, laid, *rest)
        assert_same_bits(dx, divided, layout)
    y = granularity.op("dequantize")(q, *rest[:-2], dtype=dtype)
    assert (torch.from_numpy(rule.nan) | (y.cpu() == torch.from_numpy(fakes))).all()
