# SPDX-License-Identifier: BSD-3-Clause
"""Computes the scale and zero point of an observed range, and its union over processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ... import ops


def rounded_scale(scale: Tensor, scale_dtype: str) -> Tensor:
    """Return the nearest numbers of a dtype, of two the even one, in the scale's own dtype.

    The smallest positive number of the dtype takes the place of 0 (bfloat16: the smallest normal
    one). Beyond the largest number the result is infinite. This is the only place that rounds
    scales.
    """
    if scale_dtype == "float32":
        return scale
    is_bfloat16 = scale_dtype == "bfloat16"
    # The op dequantizes ones, so its result is the scale, rounded once. Two casts would not do:
    # Inductor removes them.
    values = ops.dequantize_per_channel(
        torch.ones([scale.numel(), 1], dtype=torch.int8, device=scale.device),
        scale.reshape(-1),
        None,
        0,
        dtype=torch.bfloat16 if is_bfloat16 else torch.float16,
    )
    return (
        values.reshape(scale.shape)
        .to(scale.dtype)
        .clamp_min(2.0**-126 if is_bfloat16 else 2.0**-24)
    )


def power_to_one(magnitude: Tensor) -> Tensor:
    """Return a power of two for each magnitude, whose product with it lies in [1, 2).

    It is 1 for zeros, NaN and infinity. The product with it is exact, so sums of squares of what it
    multiplies neither overflow nor vanish, and compare as those of other magnitudes do.
    """
    # From 2^-most to 2^most the power is a normal number, and so is its inverse.
    most = 1022 if magnitude.dtype == torch.float64 else 126
    is_usual = magnitude.isfinite() & (magnitude > 0)
    _, exponent = torch.frexp(torch.where(is_usual, magnitude, 1.0))
    power = (1 - exponent).clamp(-most, most)
    # By its bits: a GPU's 2^x need not be exact.
    if magnitude.dtype == torch.float64:
        return ((power.to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((power + 127) << 23).view(torch.float32)


def qparams_of_range(
    min_val: Tensor,
    max_val: Tensor,
    quant_min: int,
    quant_max: int,
    symmetric: bool,
    scale_dtype: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Return what ``choose_qparams`` gives for data with these ends; both ``[]`` or ``[C]``.

    The scale is rounded to ``scale_dtype``, and the zero point is that of the rounded scale.
    """
    # An empty range (inf, -inf) gets the ends 0, and so the scale 1. A NaN stays.
    ends = torch.stack([min_val, max_val]).masked_fill(min_val > max_val, 0.0)  # [2] or [2, C]
    if ends.dim() == 1:
        scale, zero_point = ops.choose_qparams_per_tensor(
            ends, quant_min, quant_max, symmetric=symmetric
        )
    else:
        scale, zero_point = ops.choose_qparams_per_channel(
            ends, 1, quant_min, quant_max, symmetric=symmetric
        )
    if scale_dtype == "float32":
        return scale, zero_point
    scale = rounded_scale(scale, scale_dtype)
    if symmetric:
        return scale, zero_point
    # quant_min - rint(min / scale), clamped: the op has the one formula of the rounding.
    zeros = ops.quantize_per_channel(
        (-ends[0]).clamp_min(0.0).reshape(-1, 1),
        scale.reshape(-1),
        torch.full_like(zero_point, quant_min).reshape(-1),
        0,
        quant_min,
        quant_max,
        dtype=scale.dtype,
    )
    return scale, zeros.reshape(scale.shape).to(torch.int32)


def is_known(min_val: Tensor, max_val: Tensor) -> Tensor:
    """Return whether these are the ends of a range: both finite, and in ascending order."""
    return min_val.isfinite() & max_val.isfinite() & (min_val <= max_val)


def reduce_range(min_val: Tensor, max_val: Tensor, process_group: Any) -> None:
    """Extend the range in place to the union over the processes, in one collective operation.

    A range that is not known adds nothing. If no process knows one, the result is (inf, -inf).
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "FakeQuantize: expected torch.distributed to be initialized for sync_qparams; "
            "call torch.distributed.init_process_group first"
        )
    # max(x) = -min(-x), so one minimum reduces both rows.
    unknown = ~is_known(min_val, max_val)
    ends = torch.stack([min_val, -max_val]).masked_fill(unknown, float("inf"))
    dist.all_reduce(ends, dist.ReduceOp.MIN, group=process_group)
    min_val.copy_(ends[0])
    max_val.copy_(-ends[1])


def sum_of_processes(count: Tensor, process_group: Any) -> Tensor:
    """Return the sum of an integer over the processes."""
    total = count.clone()
    dist.all_reduce(total, dist.ReduceOp.SUM, group=process_group)
    return total
