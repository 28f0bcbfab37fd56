# SPDX-License-Identifier: BSD-3-Clause
"""Computes the scale and zero point of an observed range, and its union over processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ... import ops


def qparams_of_range(
    min_val: Tensor, max_val: Tensor, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return what ``choose_qparams`` gives for data with these ends; both ``[]`` or ``[C]``."""
    # An empty range (inf, -inf) gets the ends 0, and so the scale 1. A NaN stays.
    ends = torch.stack([min_val, max_val]).masked_fill(min_val > max_val, 0.0)  # [2] or [2, C]
    if ends.dim() == 1:
        return ops.choose_qparams_per_tensor(ends, quant_min, quant_max, symmetric=symmetric)
    return ops.choose_qparams_per_channel(ends, 1, quant_min, quant_max, symmetric=symmetric)


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


# Note [What is computed again is not observed again] Activation checkpointing runs a forward pass a
# second time, within the backward pass. If the batch were observed again, the range would move by
# one more step, and the results would differ from those of the first run. So the observer's switch
# reads as off during a backward pass, and the scale stays the one of the forward pass. Compiled
# code must ask at run time: the same code may serve the forward pass and the recomputation (a
# compiled module that is checkpointed), or the code of the backward pass may contain a copy of it
# (checkpointing that is compiled). An op does this, because the compiler cannot look into it.
_LIBRARY = torch.library.Library("baraquant", "FRAGMENT")
_LIBRARY.define(
    "_unless_recomputing(Tensor observer_enabled) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def _unless_recomputing(observer_enabled: Tensor) -> Tensor:
    return torch.zeros_like(observer_enabled) if _is_recomputing() else observer_enabled.clone()


for _key in ("CPU", "CUDA", "Meta"):
    _LIBRARY.impl("_unless_recomputing", _unless_recomputing, _key)


def unless_recomputing(observer_enabled: Tensor) -> Tensor:
    """Return an observer's switch, or 0 while activation checkpointing recomputes."""
    if not torch.compiler.is_compiling():
        return torch.zeros_like(observer_enabled) if _is_recomputing() else observer_enabled
    # Exported code runs without Python and without a backward pass. This reads the flag itself,
    # because in PyTorch 2.11 torch.compiler.is_exporting() is true for torch.compile as well.
    if torch.compiler._is_exporting_flag:
        return observer_enabled
    switch: Tensor = torch.ops.baraquant._unless_recomputing.default(observer_enabled)
    return switch


def _is_recomputing() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # a backward pass is under way
