# SPDX-License-Identifier: BSD-3-Clause
"""Granularity: which segment, and so which scale, an element belongs to."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


class Segments(NamedTuple):
    """How a tensor is divided.

    Attributes:
        index: The number of each element's segment, in the shape of the tensor.
        shape: The shape of a tensor with one entry for each segment, in the order of their numbers.
    """

    index: Tensor
    shape: torch.Size


def segments(
    shape: torch.Size,
    granularity: str,
    axis: int | None = -1,
    group_size: int = 1,
    device: Any = None,
) -> Segments:
    """Return the segments of a tensor of ``shape``; one segment if ``axis`` is None."""
    if granularity == "per_tensor" or axis is None:
        return Segments(torch.zeros(shape, dtype=torch.int64, device=device), torch.Size([]))
    axis %= len(shape)
    sizes = list(shape)
    if granularity == "per_channel":
        sizes = [n if d == axis else 1 for d, n in enumerate(shape)]
    elif granularity == "per_token":
        sizes[-1] = 1
    else:
        sizes[axis] = -(-sizes[axis] // group_size)  # rounded up
    numbers = torch.arange(torch.Size(sizes).numel(), device=device).reshape(sizes)
    if granularity == "per_group":
        numbers = numbers.index_select(axis, torch.arange(shape[axis], device=device) // group_size)
    one_each = [shape[axis]] if granularity == "per_channel" else sizes
    return Segments(numbers.expand(shape), torch.Size(one_each))


def expand_qparams(
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    segments: Segments,
    dtype: torch.dtype,
    quant_range: tuple[int, int] = (INT32_MIN, INT32_MAX),
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of each element in ``dtype``.

    An integer zero point saturates to int32; a floating (learned) one is rounded to the nearest
    integer of ``quant_range``.
    """
    if not isinstance(scale, Tensor):
        scale = torch.tensor(scale, dtype=torch.float64, device=segments.index.device)
    if not isinstance(zero_point, Tensor):
        z = torch.full_like(scale, zero_point or 0, dtype=dtype)
    elif zero_point.is_floating_point():
        z = zero_point.round().to(dtype).clamp(*quant_range)
    else:
        z = zero_point.to(torch.float64).clamp(INT32_MIN, INT32_MAX).to(dtype)
    return scale.to(dtype).reshape(-1)[segments.index], z.reshape(-1)[segments.index]


class Grid(NamedTuple):
    """Which numbers integers stand for: a scale and a zero point for each segment, and a range."""

    segments: Segments
    scale: Tensor | float = 1.0
    zero_point: Tensor | int | None = None
    quant_min: int = INT32_MIN
    quant_max: int = INT32_MAX

    def of_elements(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the scale and the zero point of each element in ``dtype``."""
        ends = self.quant_min, self.quant_max
        return expand_qparams(self.scale, self.zero_point, self.segments, dtype, ends)


def tokens(input: Tensor) -> Segments:
    """Return the segments of a scale for each token."""
    return segments(input.shape, "per_token", device=input.device)


def sum_segments(terms: Tensor, segments: Segments, shape: torch.Size) -> Tensor:
    """Sum ``terms`` over each segment in float64; round to their dtype, in ``shape``."""
    total = torch.zeros(shape.numel(), dtype=torch.float64, device=terms.device)
    total.index_add_(0, segments.index.reshape(-1), terms.to(torch.float64).reshape(-1))
    return total.to(terms.dtype).reshape(shape)


def maximum_of_segments(x: Tensor, segments: Segments) -> Tensor:
    """Return the maximum of each segment, -inf where it is empty. NaN propagates; -0 < +0."""
    maximum = _amax_of_segments(x, segments)
    sign_of_zero = _amax_of_segments(torch.copysign(torch.ones_like(x), x), segments)
    return torch.where(maximum == 0, torch.copysign(maximum, sign_of_zero), maximum)


def minimum_of_segments(x: Tensor, segments: Segments) -> Tensor:
    """Return the minimum of each segment, inf where it is empty. NaN propagates; -0 < +0."""
    return -maximum_of_segments(-x, segments)


def _amax_of_segments(x: Tensor, segments: Segments) -> Tensor:
    lowest = torch.full((segments.shape.numel(),), -torch.inf, dtype=x.dtype, device=x.device)
    index = segments.index.reshape(-1)
    return lowest.scatter_reduce(0, index, x.reshape(-1), "amax").reshape(segments.shape)
