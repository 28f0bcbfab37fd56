# SPDX-License-Identifier: BSD-3-Clause
"""Registers rules of ops by the names of their arguments, of which some may be keyword-only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call_vmap_helper
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from .batch import InDims, call_in_order, refusal, to_front
from .table import REFUSED

_REFUSED_CORE_OPS = ("_integer_backward",)


# torch.library.register_vmap takes no op that has keyword-only tensors, as the zero points of these
# ops are, since it passes only the positional arguments to the rule. This does the same with all
# arguments in the order of the schema.
def register_rule(
    library: torch.library.Library,
    op: torch._ops.OpOverload,
    rule: Callable[[Any, dict[str, Any], dict[str, Any]], Any],
) -> None:
    """Register ``rule(info, dimensions by name, arguments by name)`` of an op."""
    arguments = op._schema.arguments
    names = [argument.name for argument in arguments]

    def in_order(*args: Any) -> Any:
        return call_in_order(op, args)

    def of_batch(info: Any, in_dims: Any, *args: Any) -> Any:
        dims, given = (dict(zip(names, values, strict=True)) for values in (in_dims, args))
        return rule(info, dims, given)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        rest = (kwargs.get(a.name, a.default_value) for a in arguments[len(args) :])
        interpreter = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(interpreter, of_batch, in_order, *args, *rest)

    name = op.name().removeprefix("baraquant::")
    library.impl(name, kernel, "FuncTorchBatched", with_keyset=True)


def elementwise(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of an op of one tensor, its first argument, and of each element by itself."""

    def rule(info: Any, in_dims: InDims, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return op(to_front(input, in_dims[0], info.batch_size), *args, **kwargs), 0

    return rule


def refuse(library: torch.library.Library) -> None:
    """Refuse a batch of the ops without rules by name, instead of a slow loop."""
    for name in (*REFUSED, *_REFUSED_CORE_OPS):
        words = f"{name}: torch.vmap is not implemented; call the op in a loop instead"
        library.impl(name, refusal(words), "FuncTorchBatchedDecomposition")
