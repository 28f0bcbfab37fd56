# SPDX-License-Identifier: BSD-3-Clause
"""What the calls of `tests/support/calls` are to PyTorch: an overload, core ops, a script."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from baraquant import ops  # noqa: F401 - TorchScript looks it up by name
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


def opcheck(op: Op, arguments: dict[str, Any], graph: bool = True) -> None:
    """PyTorch's own checks; `graph`: also of AOTAutograd's, which takes nearly all of the time."""
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    checks += ["test_aot_dispatch_dynamic"] * graph
    torch.library.opcheck(op, (), arguments, test_utils=checks)


class AsModule(nn.Module):
    """A call as a layer, of which programs are exported and traced."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


class Name(str):
    """Of a tensor, as it stands in source."""

    __slots__ = ()
    __repr__ = str.__str__


def scripted(call: Any, tensors: tuple[Tensor, ...]) -> torch.jit.ScriptFunction:
    """The call spelled out in Python, compiled by TorchScript, which reads source."""
    op, given = bound(call, tensors)
    names = {id(tensor): Name(f"t{i}") for i, tensor in enumerate(tensors)}
    passed = [f"{key}={names.get(id(value), value)!r}" for key, value in given.items()]
    count, name = len(op._schema.returns), call.function.__name__
    returns = f"Tuple[{', '.join(['Tensor'] * count)}]" if count > 1 else "Tensor"
    namespace = "ops.backward" if "_backward" in name else "ops"
    unit = torch.jit.CompilationUnit(
        f"def call({', '.join(n + ': Tensor' for n in names.values())}) -> {returns}:\n"
        f"    return {namespace}.{name}({', '.join(passed)})\n"
    )
    assert f"baraquant::{name}" in str(unit.call.graph)
    return unit.call


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
