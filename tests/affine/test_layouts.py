# SPDX-License-Identifier: BSD-3-Clause
"""Any strides in; out come those of a dense input, or contiguous ones."""

import pytest
import torch

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import BACKWARD, FORWARD, Call
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.family_cases.layouts import AnyLayout
from tests.support.oracle import affine as oracle
from tests.support.oracle.affine import Affine

SHAPE = (4, 6, 5, 7)
RANGE = (-100, 90)
GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(-1),
    PER_TOKEN,
    per_group(3),
    per_group(4, 1),
    per_group(3, 0),
    per_group(2, -2),
)


class TestAnyLayout(AnyLayout):
    KEEPS, PLANTS = True, 1 / 8
    CALLS = (
        *(Call(verb, g) for verb in (*FORWARD, *BACKWARD[:3]) for g in GRANULARITIES),
        *(Call("quantize", g, dtype=torch.float64) for g in GRANULARITIES),
        *(Call("dequantize", g, dtype=torch.bfloat16) for g in GRANULARITIES),
    )


@pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
@pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
def test_learned_parameters(granularity: Granularity, layout: str, device: str) -> None:
    """The sums do not depend on strides: the same values in the same segments."""
    params = granularity.param_shape(SHAPE)
    scale = cases.scales(params, torch.float32)
    base = cases.adversarial(cases.expand(scale, granularity, SHAPE), torch.float32)
    point = 5 * torch.randn(params, generator=cases.generator(4))
    moved, *params = cases.to(device, base, scale, point)
    grad = torch.randn(SHAPE, generator=cases.generator(5)).to(device)
    x = cases.LAYOUTS_4D[layout](moved)
    rule = Affine(x, scale, point, granularity, *RANGE)
    for dy in (grad, cases.LAYOUTS_4D[layout](grad)):
        op = granularity.op("fake_quantize_backward_qparams")
        dx, ds, dz = op(dy, x, *params, *granularity.args, *RANGE)
        assert_same_bits(dx, rule.fake_quantize_backward(dy))
        oracle.assert_sum_close(ds, *rule.segment_sums(rule.scale_terms(dy)))
        oracle.assert_sum_close(dz, *rule.segment_sums(rule.zero_point_terms(dy)))


@pytest.mark.parametrize("save_mask", (True, False))
def test_every_tail_of_the_bit_mask(save_mask: bool, device: str) -> None:
    """Bits of the last byte or word, and groups that end inside one."""
    for length in (*range(1, 70), 255, 257, 1025):
        for rows in (1, 3):
            scale = cases.scales((rows,), torch.float32)
            shape, rule_of = (rows, length), per_channel(0)
            base = cases.adversarial(cases.expand(scale, rule_of, shape), torch.float32)
            point = cases.zero_points((rows,), RANGE)
            x, s, z = cases.to(device, base, scale, point)
            args = (s, z, 0, *RANGE)
            op = torch.ops.baraquant.fake_quantize_per_channel
            y = op(x.requires_grad_(), *args, save_mask=save_mask)
            dy = cases.gradients(shape, torch.float32).to(device)
            (dx,) = torch.autograd.grad(y, x, dy)
            rule = Affine(base, scale, point, rule_of, *RANGE)
            assert_same_bits(dx, rule.fake_quantize_backward(dy), f"{rows} x {length}")
