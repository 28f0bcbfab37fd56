# SPDX-License-Identifier: BSD-3-Clause
"""The search for the factors of four-bit weights: tries all, and takes the least squared error."""

import torch
from torch import Tensor

from ... import ops
from .range import power_to_one

# The number of elements at a time, so that the temporaries stay small.
_CHUNK = 1 << 22


def searched_factors(
    rows: Tensor, group_size: int, symmetric: bool, scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scale ``[N]``, and the factors and zero points ``[N, groups]``, that fit best.

    The scale of a row is that of :func:`baraquant.ops.choose_int4_qparams`. For each group all
    factors are tried, from 16 down to 1, and the one with the minimum squared error is taken, of
    two equal ones the larger. A group with a zero point tries, for each factor ``f``, two: with
    ``step = scale * f`` and the least value ``low = min(0, min w)`` and the largest
    ``high = max(0, max w)`` of the group, ``rint(-low / step)`` and then
    ``rint(7.5 - (low + high) / (2 * step))``, both clamped to [0, 15]. The numbers are those of
    :func:`baraquant.ops.quantize_int4`, and the errors are
    ``sum((w8 * (scale * p) - w * p) ** 2)``, where the power of two ``p`` takes the scale of the
    row into [1, 2). All is computed in the dtype of the scale.

    Args:
        rows: The weight, ``[N, K]``; groups divide K.
        group_size: The number of adjacent columns that share a factor.
        symmetric: True for the zero point 8 in every group.
        scale: That of each row. None: from the rows.
    """
    step = max(1, _CHUNK // max(1, rows.shape[1]))
    chunks = rows.split(step)
    scales = [None] * len(chunks) if scale is None else scale.split(step)
    parts = [
        _of_chunk(chunk, group_size, symmetric, own)
        for chunk, own in zip(chunks, scales, strict=True)
    ]
    found, factor, zero_point = (torch.cat(part) for part in zip(*parts, strict=True))
    return found, factor, zero_point


def _of_chunk(
    rows: Tensor, size: int, symmetric: bool, scale: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    chosen, factor, zero_point = ops.choose_int4_qparams(rows, size, symmetric=symmetric)
    scale = chosen if scale is None else scale
    values = rows.to(scale.dtype).unflatten(1, (-1, size))
    low, high = (
        end.clamp(*limits)
        for end, limits in zip(torch.aminmax(values, dim=2), ((None, 0), (0, None)), strict=True)
    )
    # Errors are compared where the scale is near 1: their squares neither overflow nor vanish.
    power = power_to_one(scale)[:, None, None]
    near_one, scale_near_one = values * power, scale[:, None, None] * power
    best = torch.full_like(low, float("inf"))
    factor, zero_point = torch.ones_like(factor), torch.full_like(zero_point, 8)
    for number in range(16, 0, -1):
        factors = torch.full_like(factor, number)
        step = scale[:, None] * number
        positions = [-low / step, 7.5 - (low + high) / (2 * step)]
        for position in positions[: 1 if symmetric else 2]:
            zeros = position.round().nan_to_num(0.0).clamp(0, 15).to(torch.uint8)
            zeros = torch.full_like(zeros, 8) if symmetric else zeros
            packed = ops.quantize_int4(rows, scale, factors, size, group_zero_point=zeros)
            rounded = ops.expand_int4(
                packed, factors, size, rows.shape[1], group_zero_point=zeros
            ).unflatten(1, (-1, size))
            error = (rounded * scale_near_one - near_one).square_().sum(dim=2)
            is_better = error < best
            best = torch.where(is_better, error, best)
            factor = torch.where(is_better, factors, factor)
            zero_point = torch.where(is_better, zeros, zero_point)
    return scale, factor, zero_point
