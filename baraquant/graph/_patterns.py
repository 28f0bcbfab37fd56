# SPDX-License-Identifier: BSD-3-Clause
"""Reads the calls of a graph: float ops that have a quantizing form, and quantizations per token.

A graph has the public ops until it is decomposed, and the core ops afterwards.
"""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.fx import Node

_OPS = torch.ops.baraquant
_PER_TOKEN = 2  # in the arguments of core ops
# The quantizing form of a float op takes the same arguments, and then those of the scheme.
_PUBLIC = {
    getattr(getattr(_OPS, name), overload): getattr(
        getattr(_OPS, f"{name}_quantize_per_token"), overload
    )
    for name in ("rms_norm", "layer_norm", "silu_mul", "gelu", "hadamard")
    for overload in getattr(_OPS, name).overloads()
}
_CORE = {
    _OPS._norm.default: _OPS._norm_quantize.default,
    _OPS._norm_residual.default: _OPS._norm_residual_quantize.default,
    _OPS._activation.default: _OPS._activation_quantize.default,
    _OPS._hadamard.default: _OPS._hadamard_quantize.default,
}
_WITH_SUM = {_OPS.rms_norm.residual, _OPS.layer_norm.residual, _OPS._norm_residual.default}
# A product that quantizes its input, and the one that takes integers.
_PRODUCTS = {
    _OPS.quantized_linear.default: _OPS.int8_linear.default,
    _OPS.quantized_grouped_linear.default: _OPS.int8_grouped_linear.default,
}
INTEGER_PRODUCTS = frozenset(_PRODUCTS.values())
_EXPLICIT = _OPS.dynamic_range_quantize_per_token.default
_CORE_EXPLICIT = _OPS._dynamic_quantize.default
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # of an op: target, args, kwargs


@dataclass(frozen=True)
class Scheme:
    """How tokens are quantized: the options of ``dynamic_range_quantize_per_token``."""

    symmetric: bool
    quant_min: int
    quant_max: int
    dtype: torch.dtype

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of public ops."""
        return asdict(self)

    def quantize(self, value: Node, *, core: bool) -> Call:
        """Return the call that quantizes a value, of the public op or of the core op."""
        if not core:
            return _EXPLICIT, (value,), self.keywords()
        range_args = (_PER_TOKEN, -1, 1, self.quant_min, self.quant_max, self.symmetric)
        return _CORE_EXPLICIT, (value, *range_args, self.dtype), {}


@dataclass(frozen=True)
class FloatOp:
    """A call of a float op that has a quantizing form."""

    node: Node

    @property
    def name(self) -> str:
        """The name of the public op."""
        given = arguments(self.node)
        if "centered" in given:
            return "layer_norm" if given["centered"] else "rms_norm"
        if "activation" in given:
            return "gelu" if given["up"] is None else "silu_mul"
        return op_name(self.node).removeprefix("_")

    def outputs(self, index: int) -> list[Node]:
        """Return the nodes of an output: 0 is the op's value, 1 the sum with the residual."""
        if self.node.target in _WITH_SUM:
            return items(self.node, index)
        return [self.node] if index == 0 else []

    def other_readers(self) -> list[Node]:
        """Return what reads all outputs of a call with several at once."""
        return [u for u in self.node.users if self.node.target in _WITH_SUM and not is_item(u)]

    def quantize(self, scheme: Scheme) -> Call:
        """Return the call that computes the same and quantizes it."""
        node = self.node
        if node.target in _PUBLIC:
            return _PUBLIC[node.target], node.args, {**node.kwargs, **scheme.keywords()}
        options = (scheme.symmetric, scheme.quant_min, scheme.quant_max, scheme.dtype)
        return _CORE[node.target], (*arguments(node).values(), *options), {}


@dataclass(frozen=True)
class Quantization:
    """A call that quantizes each token of its input.

    Attributes:
        node: The call.
        input: What it quantizes.
        scheme: How.
        product: The op that takes the integers instead; None for a call that only quantizes.
        views: The views between the input and the value that is quantized at once.
    """

    node: Node
    input: Node
    scheme: Scheme
    product: Any
    views: tuple[Node, ...] = ()


def is_item(node: Node) -> bool:
    """Whether a node takes one of several outputs of another."""
    return node.op == "call_function" and node.target is operator.getitem


def items(node: Node, index: int) -> list[Node]:
    """Return the nodes that take an output of a call with several."""
    return [user for user in node.users if is_item(user) and user.args[1] == index]


def arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by their names; a dtype that is not given is left out."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    # The default of a dtype is a number there.
    named = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
    defaults = {a.name: a.default_value for a in schema if a.name != "dtype"}
    return {
        a.name: named.get(a.name, defaults.get(a.name))
        for a in schema
        if a.name in named or a.name in defaults
    }


def op_name(node: Node) -> str:
    """Return the name of the op that a node calls, without its namespace."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return str(node.target._schema.name).partition("::")[2]


def is_own(node: Node) -> bool:
    """Whether a node calls an op of the library."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "baraquant"


def float_op(node: Node) -> FloatOp | None:
    """Read a call of a float op; None if the node is none."""
    is_call = node.op == "call_function" and (node.target in _PUBLIC or node.target in _CORE)
    return FloatOp(node) if is_call else None


def is_core(read: Quantization) -> bool:
    """Whether a quantization is a core op, as in graphs after autograd."""
    return read.node.target is _CORE_EXPLICIT


def quantization(node: Node) -> Quantization | None:
    """Read a call that quantizes tokens dynamically; None if the node is none."""
    if node.op != "call_function":
        return None
    product = _PRODUCTS.get(node.target)
    if product is None and node.target is not _EXPLICIT:
        if node.target is not _CORE_EXPLICIT:
            return None
        if arguments(node)["granularity"] != _PER_TOKEN:
            return None
    given = arguments(node)
    dtype = torch.int8 if product is not None else given.get("dtype", torch.int8)
    scheme = Scheme(given["symmetric"], given["quant_min"], given["quant_max"], dtype)
    plain = type(scheme.quant_min) is int and type(scheme.quant_max) is int
    if not plain or type(scheme.symmetric) is not bool or not isinstance(given["input"], Node):
        return None
    if product is None and not all(map(is_item, node.users)):
        return None
    return Quantization(node, given["input"], scheme, product)
