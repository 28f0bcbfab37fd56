# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of an observed range: its scale and zero point, and its union over processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ... import ops


def qparams_of_range(
    min_val: Tensor, max_val: Tensor, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return what ``choose_qparams`` takes from data with these ends; ``[]`` or ``[C]`` both."""
    # Of a range that has seen nothing (inf, -inf) the ends are 0: scale 1. A NaN is left.
    ends = torch.stack([min_val, max_val]).masked_fill(min_val > max_val, 0.0)  # [2] or [2, C]
    if ends.dim() == 1:
        return ops.choose_qparams_per_tensor(ends, quant_min, quant_max, symmetric=symmetric)
    return ops.choose_qparams_per_channel(ends, 1, quant_min, quant_max, symmetric=symmetric)


def is_known(min_val: Tensor, max_val: Tensor) -> Tensor:
    """Return whether these are the ends of a range: finite, and not upside down."""
    return min_val.isfinite() & max_val.isfinite() & (min_val <= max_val)


def reduce_range(min_val: Tensor, max_val: Tensor, process_group: Any) -> None:
    """Widen the range in place to the union over the processes, in one collective operation.

    A range that is not known adds nothing. Where none is known the result is (inf, -inf).
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "FakeQuantize: expected torch.distributed to be initialized for sync_qparams; "
            "call torch.distributed.init_process_group first"
        )
    # max(x) = -min(-x): both rows can be reduced by one minimum.
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


# Note [What is computed again is not observed again]
# Activation checkpointing runs a forward pass a second time, within the backward pass. Observed
# again, a range would be a step further on, and the numbers not those of the first time. So the
# observer's switch reads as off while a backward pass is under way, and the scale stays that which
# the forward pass left. Compiled code has to ask when it runs: the same code may serve the forward
# pass and the recomputation (a compiled module that is checkpointed), or the backward's code may
# hold a copy of it (checkpointing that is compiled). Hence an op, which the compiler cannot look
# into.
_LIBRARY = torch.library.Library("baraquant", "FRAGMENT")
_LIBRARY.define(
    "_unless_recomputing(Tensor observer_enabled) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def _unless_recomputing(observer_enabled: Tensor) -> Tensor:
    return torch.zeros_like(observer_enabled) if _is_recomputing() else observer_enabled.clone()


for _key in ("CPU", "CUDA", "Meta"):
    _LIBRARY.impl("_unless_recomputing", _unless_recomputing, _key)


def unless_recomputing(observer_enabled: Tensor) -> Tensor:
    """Return an observer's switch, or 0 where activation checkpointing computes again."""
    if not torch.compiler.is_compiling():
        return torch.zeros_like(observer_enabled) if _is_recomputing() else observer_enabled
    # What is exported runs without Python, and without a backward pass. The flag itself, since
    # torch.compiler.is_exporting() is true for torch.compile as well in PyTorch 2.11.
    if torch.compiler._is_exporting_flag:
        return observer_enabled
    switch: Tensor = torch.ops.baraquant._unless_recomputing.default(observer_enabled)
    return switch


def _is_recomputing() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # a backward pass is under way
