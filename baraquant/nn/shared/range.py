# SPDX-License-Identifier: BSD-3-Clause
"""Computes scales and zero points: of ranges, which processes may unite, and by search."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .precision import compute_dtype


def rounded_scale(scale: Tensor, scale_dtype: str) -> Tensor:
    """Return the nearest numbers of a dtype, of two the even one, in the scale's own dtype.

    The smallest positive number of the dtype takes the place of 0 (bfloat16: the smallest normal
    one). Beyond the largest number the result is infinite. This is the only place that rounds
    scales.
    """
    if scale_dtype == "float32":
        return scale
    rounded: Tensor = torch.ops.baraquant._rounded_scale(scale, scale_dtype)
    return rounded


def power_to_one(magnitude: Tensor) -> Tensor:
    """Return a power of two for each magnitude, whose product with it lies in [1, 2).

    It is 1 for zeros, NaN and infinity. The product with it is exact, so sums of squares of what it
    multiplies neither overflow nor vanish, and compare as those of other magnitudes do.
    """
    power: Tensor = torch.ops.baraquant._power_to_one(magnitude)
    return power


def qparams_of_range(
    min_val: Tensor,
    max_val: Tensor,
    quant_min: int,
    quant_max: int,
    symmetric: bool,
    scale_dtype: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Return what ``choose_qparams`` gives for data with these ends; both ``[]`` or ``[C]``.

    An empty range, (inf, -inf), gets the ends 0, and so the scale 1. A NaN stays. The scale is
    rounded to ``scale_dtype``, and the zero point is that of the rounded scale.
    """
    qparams: tuple[Tensor, Tensor] = torch.ops.baraquant._qparams_of_range(
        min_val, max_val, quant_min, quant_max, symmetric, scale_dtype
    )
    return qparams


def fitted_qparams(
    rows: Tensor, quant_min: int, quant_max: int, symmetric: bool, scale_dtype: str, scale_rule: str
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of each row of a weight, ``[rows]``, by a rule.

    ``scale_rule`` is ``search``, ``lattice`` or ``max``, as in :class:`baraquant.QuantConfig`;
    ``csrc/search/weights.h`` has the formulas. The scales are those of
    :meth:`.fake_quantize.FakeQuantize.fitted`.
    """
    values = rows.to(compute_dtype(rows.dtype))
    scale, zero_point = qparams_of_range(
        values.amin(dim=1), values.amax(dim=1), quant_min, quant_max, symmetric, scale_dtype
    )
    if scale_rule == "max":
        return scale, zero_point
    found, zeros, is_exact = torch.ops.baraquant._search_scale(
        rows, quant_min, quant_max, symmetric, scale_dtype, None, scale_rule
    )
    if quant_max - quant_min < 255:
        return found, zeros
    return torch.where(is_exact, found, scale), torch.where(is_exact, zeros, zero_point)


def searched_factors(
    rows: Tensor, group_size: int, symmetric: bool, bits: int, scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scale ``[N]``, and the factors and zero points ``[N, groups]``, that fit best.

    The rows are a weight ``[N, K]`` whose K groups divide. For each group all factors are tried,
    and the one with the minimum squared error is taken; ``csrc/search/weights.h`` has the formulas.
    """
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant._search_int4_factors(
        rows, group_size, symmetric, scale, bits
    )
    return found


def fitted_factors(
    rows: Tensor, group_size: int, symmetric: bool, bits: int, scale_rule: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what :func:`searched_factors` does, and whether rows are exact, ``[N]``.

    A row that is integers times a scale already keeps its own bits: it is on a lattice of eight
    bits, and factors for its scale give the very integers. The other rows are searched
    (``csrc/search/weights.h``).

    Args:
        rows: A weight ``[N, K]``.
        group_size: The columns of a group, which divide K.
        symmetric: Whether all zero points are 8.
        bits: The width of the numbers, 2 to 4.
        scale_rule: ``search`` or ``lattice``, as in :class:`baraquant.QuantConfig`.
    """
    found: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.baraquant._fit_int4_factors(
        rows, group_size, symmetric, scale_rule, bits
    )
    return found


def share_of(is_true: Tensor) -> float:
    """Return the share of a mask that is true; 0 of an empty one."""
    share: float = int(is_true.sum()) / max(1, is_true.numel())
    return share


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
