# SPDX-License-Identifier: BSD-3-Clause
"""Weights of four bits with a scale for each row and a whole factor for each group of columns."""

from typing import Any

import torch
from torch import Tensor

from ._functions import like_the_op
from .int8_mm import int8_linear, quantized_linear, static_quantized_linear
from .rules import compute_dtype

MAX_FACTOR, MIDDLE, LARGEST = 16, 8, 15


def grouped(rows: Tensor, group_size: int) -> Tensor:
    """Return ``[N, G, group_size]``, with zeros after the end of a row."""
    groups = -(-rows.shape[1] // group_size)
    padded = rows.new_zeros(rows.shape[0], groups * group_size)
    padded[:, : rows.shape[1]] = rows
    return padded.reshape(rows.shape[0], groups, group_size)


def of_elements(groups: Tensor, group_size: int, columns: int) -> Tensor:
    """Return ``[N, K]`` from a value for each group."""
    return groups.repeat_interleave(group_size, 1)[:, :columns]


def packed_pairs(u: Tensor) -> Tensor:
    """Return the bytes of numbers of four bits ``[N, K]``."""
    even = u.new_zeros(u.shape[0], u.shape[1] + u.shape[1] % 2)
    even[:, : u.shape[1]] = u
    return (even[:, 0::2] | even[:, 1::2] << 4).to(torch.uint8)


def numbers(packed: Tensor, columns: int) -> Tensor:
    """Return the numbers of four bits, int32 ``[N, K]``, that are packed."""
    pairs = torch.stack((packed & 15, packed >> 4), 2).to(torch.int32)
    return pairs.reshape(packed.shape[0], 2 * packed.shape[1])[:, :columns]


def _factor(steps: Tensor) -> Tensor:
    return steps.ceil().nan_to_num(1.0).clamp(1, MAX_FACTOR)


@like_the_op
def choose_int4_qparams(
    weight: Tensor, group_size: int, *, symmetric: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scales of rows, and the factors and zero points of groups."""
    compute = compute_dtype(weight.dtype)
    groups = grouped(weight.detach().to(compute), group_size)
    n, g, _ = groups.shape
    if groups.numel() == 0:
        empty = groups.new_zeros(n, g, dtype=torch.uint8)
        return groups.new_ones(n), empty, empty.clone()
    largest = groups.abs().amax(2)
    amax = largest.amax(1)
    # The divisors are tensors: with a number, a GPU multiplies by the reciprocal, which gives other
    # bits.
    scale = amax / amax.new_tensor(7 * MAX_FACTOR)
    scale = torch.where(scale < torch.finfo(compute).tiny, torch.finfo(compute).tiny, scale)
    scale = torch.where(amax == 0, 1.0, scale)
    s = scale.unsqueeze(1)
    if symmetric:
        factor = _factor(largest / largest.new_tensor(7) / s)
        zero_point = torch.full_like(factor, MIDDLE)
    else:
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        largest_step = high.new_tensor(LARGEST)
        factor = _factor((high / largest_step - low / largest_step) / s)
        zero_point = torch.round(-low / (s * factor)).nan_to_num(0.0).clamp(0, LARGEST)
    return scale, factor.to(torch.uint8), zero_point.to(torch.uint8)


@like_the_op
def quantize_int4(
    weight: Tensor,
    scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    *,
    group_zero_point: Tensor | None = None,
) -> Tensor:
    """Return the packed numbers of a weight."""
    columns = weight.shape[1]
    f = of_elements(group_factor.to(torch.int32), group_size, columns)
    z = torch.full_like(f, MIDDLE)
    if group_zero_point is not None:
        z = of_elements(group_zero_point.to(torch.int32), group_size, columns)
    at_least_one = f.clamp(min=1)
    low = (z - 128 // at_least_one).clamp(min=0)
    high = (z + 127 // at_least_one).clamp(max=LARGEST)
    v = torch.round(weight.detach().to(scale.dtype) / (scale.unsqueeze(1) * f)) + z
    v = torch.where(v.isnan(), z.to(v.dtype), v)
    return packed_pairs(torch.minimum(torch.maximum(v, low), high).to(torch.int32))


@like_the_op
def expand_int4(
    packed: Tensor,
    group_factor: Tensor,
    group_size: int,
    in_features: int,
    *,
    group_zero_point: Tensor | None = None,
) -> Tensor:
    """Return ``(u - z) * f``."""
    f = of_elements(group_factor.to(torch.int32), group_size, in_features)
    z: Any = MIDDLE
    if group_zero_point is not None:
        z = of_elements(group_zero_point.to(torch.int32), group_size, in_features)
    return ((numbers(packed, in_features) - z) * f).to(torch.int8)


@like_the_op
def pack_int4(integers: Tensor) -> Tensor:
    """Return the packed numbers ``q + 8``."""
    return packed_pairs((integers.to(torch.int32) + MIDDLE) & LARGEST)


@like_the_op
def int4_linear(
    input: Tensor,
    packed: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return :func:`int8_linear` of the expanded weight."""
    weight = _expanded(input, packed, group_factor, group_zero_point, group_size)
    of_input: dict[str, Any] = {"input_zero_point": input_zero_point, "dtype": dtype}
    return int8_linear(input, weight, input_scale, weight_scale, bias, **of_input)


@like_the_op
def quantized_int4_linear(
    input: Tensor,
    packed: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    **of_input: Any,
) -> Tensor:
    """Return :func:`quantized_linear` of the expanded weight."""
    weight = _expanded(input, packed, group_factor, group_zero_point, group_size)
    return quantized_linear(input, weight, weight_scale, bias, **of_input)


@like_the_op
def static_quantized_int4_linear(
    input: Tensor,
    packed: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    act_scale: Tensor,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    **of_input: Any,
) -> Tensor:
    """Return :func:`static_quantized_linear` of the expanded weight."""
    weight = _expanded(input, packed, group_factor, group_zero_point, group_size)
    return static_quantized_linear(input, weight, weight_scale, act_scale, bias, **of_input)


def _expanded(
    input: Tensor,
    packed: Tensor,
    group_factor: Tensor,
    group_zero_point: Tensor | None,
    group_size: int,
) -> Tensor:
    of_input: dict[str, Any] = {"group_zero_point": group_zero_point}
    return expand_int4(packed, group_factor, group_size, input.shape[-1], **of_input)
