# SPDX-License-Identifier: BSD-3-Clause
"""Weights of 2 to 4 bits with a scale for each row and a whole factor for each group of columns."""

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


def ends(bits: int) -> tuple[int, int]:
    """Return the least and the largest number of a width."""
    half = 1 << (bits - 1)
    return MIDDLE - half, MIDDLE + half - 1


def _factor(steps: Tensor) -> Tensor:
    return steps.ceil().nan_to_num(1.0).clamp(1, MAX_FACTOR)


@like_the_op
def choose_int4_qparams(a: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scales of rows, and the factors and zero points of groups."""
    compute = compute_dtype(a.weight.dtype)
    groups = grouped(a.weight.detach().to(compute), a.group_size)
    least, most = ends(a.bits)
    n, g, _ = groups.shape
    if groups.numel() == 0:
        empty = groups.new_zeros(n, g, dtype=torch.uint8)
        return groups.new_ones(n), empty, empty.clone()
    largest = groups.abs().amax(2)
    amax = largest.amax(1)
    # The divisors are tensors: with a number, a GPU multiplies by the reciprocal, which gives other
    # bits.
    scale = amax / amax.new_tensor((most - MIDDLE) * MAX_FACTOR)
    scale = torch.where(scale < torch.finfo(compute).tiny, torch.finfo(compute).tiny, scale)
    scale = torch.where(amax == 0, 1.0, scale)
    s = scale.unsqueeze(1)
    if a.symmetric:
        factor = _factor(largest / largest.new_tensor(most - MIDDLE) / s)
        zero_point = torch.full_like(factor, MIDDLE)
    else:
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        span = high.new_tensor(most - least)
        factor = _factor((high / span - low / span) / s)
        zero_point = least + torch.round(-low / (s * factor)).nan_to_num(0.0)
        zero_point = zero_point.clamp(least, most)
    return scale, factor.to(torch.uint8), zero_point.to(torch.uint8)


def _zero_points(a: Any, columns: int) -> Tensor | int:
    """Return the zero points of elements, or the one that all have."""
    if a.group_zero_point is None:
        return MIDDLE
    return of_elements(a.group_zero_point.to(torch.int32), a.group_size, columns)


@like_the_op
def quantize_int4(a: Any) -> Tensor:
    """Return the packed numbers of a weight."""
    columns = a.weight.shape[1]
    f = of_elements(a.group_factor.to(torch.int32), a.group_size, columns)
    z = torch.zeros_like(f) + _zero_points(a, columns)
    at_least_one = f.clamp(min=1)
    least, most = ends(a.bits)
    low = (z - 128 // at_least_one).clamp(min=least)
    high = (z + 127 // at_least_one).clamp(max=most)
    v = torch.round(a.weight.detach().to(a.scale.dtype) / (a.scale.unsqueeze(1) * f)) + z
    v = torch.where(v.isnan(), z.to(v.dtype), v)
    return packed_pairs(torch.minimum(torch.maximum(v, low), high).to(torch.int32))


@like_the_op
def expand_int4(a: Any) -> Tensor:
    """Return ``(u - z) * f``."""
    f = of_elements(a.group_factor.to(torch.int32), a.group_size, a.in_features)
    u = numbers(a.packed, a.in_features)
    return ((u - _zero_points(a, a.in_features)) * f).to(torch.int8)


@like_the_op
def pack_int4(a: Any) -> Tensor:
    """Return the packed numbers ``q + 8``."""
    return packed_pairs((a.integers.to(torch.int32) + MIDDLE) & LARGEST)


def _with_expanded(a: Any) -> dict[str, Any]:
    """Return the arguments of the op for int8, with the expanded weight."""
    given = dict(vars(a), in_features=a.input.shape[-1])
    names = ("packed", "group_factor", "group_size", "in_features", "group_zero_point")
    weight = expand_int4(**{name: given.pop(name) for name in names})
    return {**given, "weight": weight, "weight_sum": None}


@like_the_op
def int4_linear(a: Any) -> Tensor:
    """Return :func:`int8_linear` of the expanded weight."""
    return int8_linear(**_with_expanded(a))


@like_the_op
def quantized_int4_linear(a: Any) -> Tensor:
    """Return :func:`quantized_linear` of the expanded weight."""
    return quantized_linear(**_with_expanded(a))


@like_the_op
def static_quantized_int4_linear(a: Any) -> Tensor:
    """Return :func:`static_quantized_linear` of the expanded weight."""
    return static_quantized_linear(**_with_expanded(a))
