# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of an observed range: its scale and zero point, and its union over processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import ops


def qparams_of_range(
    min_val: Tensor, max_val: Tensor, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return what ``choose_qparams`` takes from data with these ends; ``[]`` or ``[C]`` both."""
    # Of a range that has seen nothing (inf, -inf) the ends are 0: scale 1. A NaN is left.
    ends = torch.stack([min_val, max_val]).masked_fill(min_val > max_val, 0.0)  # [2] or [2, C]
    if ends.dim() == 1:
        return ops.choose_qparams_per_tensor(ends, quant_min, quant_max, symmetric=symmetric)
    return ops.choose_qparams_per_channel(ends, 1, quant_min, quant_max, symmetric=symmetric)


def reduce_range(min_val: Tensor, max_val: Tensor, process_group: Any) -> None:
    """Widen the range in place to the union over the processes, in one collective operation."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "FakeQuantize: expected torch.distributed to be initialized for sync_qparams; "
            "call torch.distributed.init_process_group first"
        )
    # max(x) = -min(-x): all rows can be reduced by one minimum. What a backend's minimum makes of a
    # NaN is not defined, so a third row says where there was one.
    ends = torch.stack([min_val, -max_val])
    is_nan = ends.isnan().any(dim=0, keepdim=True)
    rows = torch.cat([ends, -is_nan.to(ends.dtype)])
    dist.all_reduce(rows, dist.ReduceOp.MIN, group=process_group)
    low, negative_high, flag = rows.unbind()
    min_val.copy_(low.masked_fill(flag < 0, float("nan")))
    max_val.copy_(-negative_high.masked_fill(flag < 0, float("nan")))


def is_recomputing() -> bool:
    """Whether a backward pass is under way: activation checkpointing computes again within it."""
    if torch.compiler.is_compiling():
        return False  # compiled code writes the range once, whatever it computes again
    return bool(torch._C._current_graph_task_id() != -1)
