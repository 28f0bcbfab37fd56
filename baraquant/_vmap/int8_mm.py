# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the integer matrix family: a batch of inputs is one more leading dimension.

The scales and zero points of the input may be batched with it. A batch of weights is refused. So is
any batch in the grouped ops, whose groups are rows of one matrix.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import InDims, sample_shape, to_front

# The arguments that may be batched, by op. All except the first are its scales or zero points.
_OF_INPUT = {
    "int8_linear": ("input", "input_scale", "input_zero_point"),
    "int8_product": ("input", "input_zero_point"),
    "rescale_product": ("input", "input_scale"),
    "smoothquant_linear": ("input", "act_scale", "act_zero_point"),
    "smoothquant_linear.number": ("input",),
    "quantized_linear": ("input",),
    "static_quantized_linear": ("input",),
    "int4_linear": ("input", "input_scale", "input_zero_point"),
    "quantized_int4_linear": ("input",),
    "static_quantized_int4_linear": ("input",),
    "weight_only_linear": ("input",),
    "qat_linear": ("input",),
    "int8_grouped_linear": (),
    "quantized_grouped_linear": (),
    "qat_grouped_linear": (),
}


def _of_batch(qparams: Tensor, dim: int | None, tokens: torch.Size, size: int) -> Tensor:
    """Return ``[size, *tokens, 1]`` from one value for all tokens of a sample, or one for each."""
    shape = sample_shape(qparams, dim)
    qparams = to_front(qparams, dim, size)
    if shape == tokens:
        return qparams.unsqueeze(-1)
    if shape == (*tokens, 1):
        return qparams
    if shape in ((), (1,)):
        return qparams.reshape(size, *(1,) * len(tokens), 1).expand(size, *tokens, 1)
    raise ValueError(
        "baraquant (in vmap): expected a scale or zero point to have 1 element (shape [] or [1]) "
        f"or one for each token (shape {list(tokens)}), but got shape {list(shape)}"
    )


def _is_for_all(qparams: Tensor, dim: int | None) -> bool:
    return dim is None and qparams.shape in ((), (1,))


def _int8_linear(
    *,
    input: Tensor,
    weight: Tensor,
    act_scale: Tensor,
    weight_scale: Tensor,
    act_zero_point: Tensor | None,
    bias: Tensor | None,
    **keywords: Any,
) -> Tensor:
    """Call ``int8_linear`` with the arguments of ``smoothquant_linear``: the same formula."""
    result: Tensor = torch.ops.baraquant.int8_linear(
        input,
        weight,
        act_scale,
        weight_scale,
        bias,
        input_zero_point=act_zero_point,
        **keywords,
    )
    return result


def _rule(op: torch._ops.OpOverload, of_input: tuple[str, ...]) -> Callable[..., Any]:
    """Return the rule of an op whose arguments are all given by position."""
    names = [argument.name for argument in op._schema.arguments]

    def rule(info: Any, in_dims: InDims, *args: Any) -> tuple[Tensor, int]:
        given = dict(zip(names, args, strict=True))
        dims = dict(zip(names, in_dims, strict=True))
        for name, dim in dims.items():
            if dim is not None and name not in of_input:
                others = f"; only {' and '.join(of_input)} can be batched" if of_input else ""
                raise NotImplementedError(
                    f"{op._schema.name}: torch.vmap over {name} is not implemented{others}. Call "
                    "the op in a loop instead"
                )
        if sample_shape(given["input"], dims["input"]) == ():
            raise ValueError(
                f"{op._schema.name} (in vmap): expected input to have at least 1 dimension, but "
                "got 0"
            )
        tokens = sample_shape(given["input"], dims["input"])[:-1]
        given["input"] = to_front(given["input"], dims["input"], info.batch_size)
        for name in of_input[1:]:
            if given[name] is None or _is_for_all(given[name], dims[name]):
                continue
            given[name] = _of_batch(given[name], dims[name], tokens, info.batch_size)
        if dims.get("act_scale") is not None:  # one for each sample, which the op itself lacks
            return _int8_linear(**given), 0
        return call_in_order(op, tuple(given.values())), 0

    return rule


def call_in_order(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> Tensor:
    """Call with all arguments in the order of the schema."""
    arguments = op._schema.arguments
    positional = sum(not argument.kwarg_only for argument in arguments)
    keywords = {a.name: v for a, v in zip(arguments[positional:], args[positional:], strict=True)}
    result: Tensor = op(*args[:positional], **keywords)
    return result


def _positional(op: torch._ops.OpOverload) -> str:
    """Define an op that does what ``op`` does, but takes all its arguments by position.

    See Note [Positional twins].
    """
    name, _, overload = op.name().removeprefix("baraquant::").partition(".")
    twin = f"{name}_{overload}" if overload else name
    _, _, signature = str(op._schema).partition("(")
    # Without default values, because PyTorch leaves out arguments that are equal to them.
    signature = re.sub(r"=[^,)]*", "", signature.replace("*, ", ""))
    _TWINS.define(f"{twin}({signature}")
    _TWINS.impl(twin, lambda *args: call_in_order(op, args), "CompositeImplicitAutograd")
    return twin


def _through(op: torch._ops.OpOverload, twin: torch._ops.OpOverload) -> Callable[..., Tensor]:
    """Return a function with the signature of ``op`` that calls its twin."""
    arguments = op._schema.arguments

    def call(*args: Any, **kwargs: Any) -> Tensor:
        rest = (kwargs.get(a.name, a.default_value) for a in arguments[len(args) :])
        result: Tensor = twin(*args, *rest)
        return result

    return call


# Note [Positional twins] torch.library.register_vmap takes no op that has keyword-only tensors, as
# the zero points of these ops are. So each op has a twin in a namespace of its own, whose arguments
# are all positional. Under vmap the op calls its twin, and the rule belongs to the twin.
_TWINS = torch.library.Library("baraquant_vmap", "DEF")


def register_rule(
    library: torch.library.Library,
    name: str,
    rule_of: Callable[[torch._ops.OpOverload], Callable[..., Any]],
) -> None:
    """Register the rule of an op, through its twin; ``rule_of(op)`` takes arguments by position."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.baraquant, packet), overload or "default")
    twin = _positional(op)
    called = getattr(torch.ops.baraquant_vmap, twin).default
    library.impl(name, _through(op, called), "FuncTorchBatchedDecomposition")
    torch.library.register_vmap(f"baraquant_vmap::{twin}", rule_of(op), lib=_TWINS)


def register(library: torch.library.Library) -> None:
    """Register the rules."""
    for name, of_input in _OF_INPUT.items():
        register_rule(library, name, functools.partial(_rule, of_input=of_input))
