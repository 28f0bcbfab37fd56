# SPDX-License-Identifier: BSD-3-Clause
"""What the calls of `tests/support/calls` are to the dispatcher: an overload, and core ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.calls.range import ObserveCall

Op = torch._ops.OpOverload
Bound = tuple[Op, dict[str, Any]]


def overload_of(call: Any) -> Op:
    """The overload that a call is of."""
    packet = getattr(torch.ops.baraquant, call.function.__name__)
    forms = [form for form in ("number", "residual") if getattr(call, form, False)]
    return getattr(packet, forms[0] if forms else "default")


def bound(call: Any, tensors: tuple[Tensor, ...]) -> Bound:
    """The overload of a call, and its arguments by name."""
    if isinstance(call, ObserveCall):
        args, kwargs = call.arguments
        args = (*tensors, *args)
    else:
        args, kwargs = call.arguments(*tensors)
    op = overload_of(call)
    names = [argument.name for argument in op._schema.arguments]
    return op, {**dict(zip(names, args, strict=False)), **kwargs}


class Recorder(TorchDispatchMode):
    """Notes the calls of baraquant's ops that reach the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Bound] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "baraquant":
            named = zip((a.name for a in func._schema.arguments), args, strict=False)
            self.calls.append((func, {**dict(named), **(kwargs or {})}))
        return func(*args, **(kwargs or {}))
