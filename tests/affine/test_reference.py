# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.reference`: the signatures of the ops, and what no random call shows of it.

The programs of random calls compare it with every op.
"""

import inspect

import pytest
import torch

from baraquant import reference
from tests.affine.test_values import arguments
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits, to_numpy
from tests.support.cases import OP_NAMES, Granularity, function_of
from tests.support.marks import by_dtype, by_kind
from tests.support.oracle import affine as oracle

RANGE = (-8, 7)


@by_dtype
@by_kind
def test_autograd_calls_the_written_out_gradients(
    granularity: Granularity, dtype: torch.dtype
) -> None:
    x, scale, zero_point = arguments((6, 4, 20), dtype, granularity, RANGE)
    dy = torch.randn(x.shape, generator=cases.generator(5)).to(dtype)
    rest = (*granularity.args, *RANGE)
    leaf = x.clone().requires_grad_()

    q = granularity.op("quantize", reference)(leaf, scale, zero_point, *rest, dtype=torch.float32)
    (dx,) = torch.autograd.grad(q, leaf, dy.float())
    backward = granularity.op("quantize_backward", reference)
    assert_same_bits(dx, backward(dy.float(), x, scale, zero_point, *rest))

    leaves = (leaf, scale.clone().requires_grad_(), zero_point.to(scale.dtype).requires_grad_())
    y = granularity.op("fake_quantize", reference)(*leaves, *rest)
    gradients = torch.autograd.grad(y, leaves, dy)
    backward = granularity.op("fake_quantize_backward_qparams", reference)
    detached = [leaf.detach() for leaf in leaves]
    assert_all_same(gradients, backward(dy, *detached, *rest))

    leaf_q = torch.randn(x.shape, generator=cases.generator(6)).to(dtype).requires_grad_()
    y = granularity.op("dequantize", reference)(leaf_q, scale, zero_point, *granularity.args)
    (dq,) = torch.autograd.grad(y, leaf_q, dy.to(scale.dtype))
    backward = granularity.op("dequantize_backward", reference)
    assert_same_bits(dq, backward(dy.to(scale.dtype), scale, *granularity.args, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=cases.name_of)
def test_float64_is_rounded_once(dtype: torch.dtype) -> None:
    # Halfway between two numbers of the dtype, moved by less than float32 can see.
    exact = cases.bit_patterns(dtype, 65536).double()
    exact = exact[exact.isfinite()]
    step = torch.finfo(dtype).eps * exact.abs().clamp(min=torch.finfo(dtype).smallest_normal)
    halfway = (exact + 2.0 ** torch.floor(torch.log2(step)) / 2).repeat(3)
    nudge = torch.tensor([-1.0, 0.0, 1.0]).double().repeat_interleave(len(exact))
    values = torch.cat([halfway * (1 + nudge * 2.0**-40), cases.special_values(torch.float64)])
    assert_same_bits(reference.round_to(values, dtype), oracle.round_to(to_numpy(values), dtype))
    assert not torch.equal(reference.round_to(values, dtype), values.to(dtype)), (
        "torch rounds once by now: round_to can be simplified"
    )


@pytest.mark.parametrize("name", OP_NAMES)
def test_same_signature_as_the_op(name: str) -> None:
    assert inspect.signature(getattr(reference, name)) == inspect.signature(function_of(name))
    assert getattr(reference, name).__module__ == "baraquant.reference"
