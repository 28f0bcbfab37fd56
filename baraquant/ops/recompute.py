# SPDX-License-Identifier: BSD-3-Clause
"""The op that keeps an observer from counting a batch twice under activation checkpointing.

It is written in Python: it asks PyTorch's autograd engine whether a backward pass is running.
"""

# Note [What is computed again is not observed again] Activation checkpointing runs a forward pass a
# second time, within the backward pass. If the batch were observed again, the range would move by
# one more step, and the results would differ from those of the first run. So the observer's switch
# reads as off during a backward pass, and the scale stays the one of the forward pass. Compiled
# code must ask at run time: the same code may serve the forward pass and the recomputation (a
# compiled module that is checkpointed), or the code of the backward pass may contain a copy of it
# (checkpointing that is compiled). An op does this, because the compiler cannot look into it.

import torch
from torch import Tensor

from .._library import of_python_ops

_LIBRARY = of_python_ops(__name__, "baraquant")
_LIBRARY.define(
    "_unless_recomputing(Tensor observer_enabled) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def _unless_recomputing(observer_enabled: Tensor) -> Tensor:
    return torch.zeros_like(observer_enabled) if is_recomputing() else observer_enabled.clone()


for _key in ("CPU", "CUDA", "Meta"):
    _LIBRARY.impl("_unless_recomputing", _unless_recomputing, _key)


def unless_recomputing(observer_enabled: Tensor) -> Tensor:
    """Return an observer's switch, or 0 while activation checkpointing recomputes."""
    if not torch.compiler.is_compiling():
        return torch.zeros_like(observer_enabled) if is_recomputing() else observer_enabled
    # Exported code runs without Python and without a backward pass. This reads the flag itself,
    # because in PyTorch 2.11 torch.compiler.is_exporting() is true for torch.compile as well.
    if torch.compiler._is_exporting_flag:
        return observer_enabled
    switch: Tensor = torch.ops.baraquant._unless_recomputing.default(observer_enabled)
    return switch


def is_recomputing() -> bool:
    """Whether activation checkpointing recomputes, as far as eager code knows."""
    return bool(torch._C._current_graph_task_id() != -1)  # a backward pass is under way
