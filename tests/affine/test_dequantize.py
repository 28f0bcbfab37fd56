# SPDX-License-Identifier: BSD-3-Clause
"""dequantize and its backward: every pair of dtypes, extreme scales, one rounding at the end."""

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import PER_TOKEN, QUANTIZED_DTYPES, Granularity, per_channel
from tests.support.marks import by_kind
from tests.support.oracle import affine as oracle

OUTPUTS = (None, *cases.FLOAT_DTYPES)
by_input = pytest.mark.parametrize("dtype", QUANTIZED_DTYPES, ids=cases.name_of)
by_scale = pytest.mark.parametrize("scale_dtype", cases.SCALE_DTYPES, ids=cases.name_of)


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every value an integer dtype has; for a floating one also fractions and specials."""
    if dtype in cases.INTEGER_DTYPES:
        low, high = cases.default_range(dtype)
        return torch.randint(low, high + 1, shape, generator=cases.generator(seed)).to(dtype)
    whole = torch.randint(-300, 300, shape, generator=cases.generator(seed)).to(dtype)
    other = cases.gradients(shape, dtype, seed + 1)
    return torch.where(torch.rand(shape, generator=cases.generator(seed + 2)) < 0.8, whole, other)


def check(
    device: str, q: Tensor, scale: Tensor, zero_point: Tensor | None, granularity: Granularity
) -> None:
    """Forward to each output dtype, and backward to the dtype of `q` from that."""
    moved = cases.to(device, q, scale, zero_point)
    for output in OUTPUTS:
        note = f"{granularity} {q.dtype} by {scale.dtype} to {output}"
        y = granularity.op("dequantize")(*moved, *granularity.args, dtype=output)
        assert y.dtype == (output or scale.dtype)
        expected = oracle.dequantize(q, scale, zero_point, granularity, output)
        assert_same_bits(y, expected, note)
        if q.dtype.is_floating_point:
            grad = cases.gradients(tuple(q.shape), y.dtype)
            backward = granularity.op("dequantize_backward")
            dq = backward(grad.to(device), moved[1], *granularity.args, dtype=q.dtype)
            assert dq.dtype == q.dtype
            expected = oracle.dequantize_backward(grad, scale, granularity, q.dtype)
            assert_same_bits(dq, expected, note)


@by_input
@by_scale
@by_kind
def test_every_dtype(
    granularity: Granularity, scale_dtype: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    shape = (9, 17, 21)
    params = granularity.param_shape(shape)
    scale = cases.scales(params, scale_dtype)
    q = integers(shape, dtype)
    check(device, q, scale, cases.zero_points(params, (-128, 127)), granularity)
    check(device, q, scale, None, granularity)


@by_input
@by_scale
def test_special_scales_and_zero_points(
    scale_dtype: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    scale = cases.special_scales(scale_dtype)
    points = torch.tensor((*cases.SPECIAL_ZERO_POINTS, 2**31, -(2**40)), dtype=torch.int64)
    pairs = torch.cartesian_prod(torch.arange(len(scale)), torch.arange(len(points)))
    scale, points = scale[pairs[:, 0]], points[pairs[:, 1]]
    if dtype in cases.INTEGER_DTYPES:
        low, high = cases.default_range(dtype)
        values = torch.arange(low, high + 1).to(dtype)
    else:
        values = cases.special_values(dtype)
    q = values.expand(len(scale), -1)
    check(device, q, scale, points, per_channel(0))
    check(device, q, scale[:, None], points[:, None].to(torch.int32), PER_TOKEN)


@pytest.mark.parametrize("output", (torch.float16, torch.bfloat16), ids=cases.name_of)
def test_float64_is_rounded_once_to_16_bits(output: torch.dtype, device: str) -> None:
    """Just above and below a tie of the output: a stop at float32 would make it a tie."""
    precision = 11 if output == torch.float16 else 8
    tie, ulp = 1 + 2.0**-precision, 2.0 ** (1 - precision)
    above, below = tie + 2.0**-40, tie + ulp - 2.0**-40
    scale = torch.tensor([above, below], dtype=torch.float64, device=device)
    expected = torch.tensor([1 + ulp, 1 + ulp], dtype=output)
    ones = torch.ones(2, 1, device=device)
    ops = torch.ops.baraquant
    y = ops.dequantize_per_channel(ones.to(torch.int8), scale, None, 0, dtype=output)
    assert_same_bits(y[:, 0], expected)
    y = ops.dequantize_per_channel(ones, scale, None, 0, dtype=output)
    assert_same_bits(y[:, 0], expected)
    dq = ops.dequantize_per_channel_backward(ones.double(), scale, 0, dtype=output)
    assert_same_bits(dq[:, 0], expected)
    dq = ops.dequantize_per_channel_backward(ones.to(output), scale, 0)
    assert_same_bits(dq[:, 0], expected)
