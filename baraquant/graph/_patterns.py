# SPDX-License-Identifier: BSD-3-Clause
"""Reads the calls of a graph: float ops that have a quantizing form, and quantizations.

A graph has the public ops until it is decomposed, and the core ops afterwards.
"""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node

_OPS = torch.ops.baraquant
_ATEN = torch.ops.aten
_PER_TENSOR, _PER_CHANNEL, _PER_TOKEN = 0, 1, 2  # in the arguments of core ops
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
# A product that quantizes its input, and the one that takes integers. Arguments of both have one
# name, but for the scale and the zero point of the input.
_PRODUCTS = {
    _OPS.quantized_linear.default: _OPS.int8_linear.default,
    _OPS.quantized_grouped_linear.default: _OPS.int8_grouped_linear.default,
    _OPS.quantized_int4_linear.default: _OPS.int4_linear.default,
    _OPS.static_quantized_linear.default: _OPS.int8_linear.default,
    _OPS.static_quantized_int4_linear.default: _OPS.int4_linear.default,
}
INTEGER_PRODUCTS = frozenset(_PRODUCTS.values())
_EXPLICIT = _OPS.dynamic_range_quantize_per_token.default
_CORE_EXPLICIT = _OPS._dynamic_quantize.default
# What layers compute of one input before they quantize or multiply it, beside the library's own
# ops. Under autocast each casts it.
_REPEATED = {
    operator.getitem,
    _ATEN.alias.default,
    _ATEN.detach.default,
    _ATEN.div.Tensor,
    _ATEN._to_copy.default,
    torch.ops.prims.convert_element_type.default,
}
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # of an op: target, args, kwargs


@dataclass(frozen=True)
class Quantized:
    """The integers of a value, their scale, and their zero point if they have one.

    A static scale is one for all tokens, so that views leave it as it is.
    """

    integers: Node
    scale: Node
    zero_point: Any  # a node, or None with a static scale
    is_static: bool = False

    @staticmethod
    def by(graph: Graph, call: Node) -> Quantized:
        """Return the first three outputs of a call."""
        get = operator.getitem
        return Quantized(*(graph.call_function(get, (call, i)) for i in range(3)))


@dataclass(frozen=True)
class PerToken:
    """The options of ``dynamic_range_quantize_per_token``."""

    quant_min: int
    quant_max: int
    symmetric: bool
    dtype: torch.dtype

    op = "dynamic_range_quantize_per_token"

    @property
    def has_zero_point(self) -> bool:
        """Whether a product needs the zero point."""
        return not self.symmetric

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of public ops."""
        return asdict(self)

    def quantize(self, graph: Graph, value: Node, *, core: bool) -> Quantized:
        """Quantize a value by the public op or by the core op."""
        if core:
            options = (self.quant_min, self.quant_max, self.symmetric, self.dtype)
            call = graph.call_function(_CORE_EXPLICIT, (value, _PER_TOKEN, -1, 1, *options))
        else:
            call = graph.call_function(_EXPLICIT, (value,), self.keywords())
        return Quantized.by(graph, call)


@dataclass(frozen=True)
class Static:
    """A given scale with its zero point; ``smooth_scale`` quantizes in its place, per feature."""

    quant_min: int
    quant_max: int
    scale: Node
    zero_point: Node | None
    smooth_scale: Node | None

    @property
    def op(self) -> str:
        """The public op."""
        return "quantize_per_tensor" if self.smooth_scale is None else "quantize_per_channel"

    @property
    def has_zero_point(self) -> bool:
        """Whether a product needs the zero point."""
        return self.zero_point is not None

    def quantize(self, graph: Graph, value: Node, *, core: bool) -> Quantized:
        """Quantize a value by the public op or by the core op."""
        scale, zero_point = self.scale, self.zero_point
        granularity, axis = _PER_TENSOR, list[int]()
        if self.smooth_scale is not None:
            scale, granularity, axis = self.smooth_scale, _PER_CHANNEL, [-1]
            if zero_point is not None:
                sizes = list(scale.meta["val"].shape)
                zero_point = graph.call_function(_ATEN.expand.default, (zero_point, sizes))
        limits = (self.quant_min, self.quant_max)
        if core:
            args = (value, scale, zero_point, 1.0, 0, granularity, -1, 1, *limits, torch.int8, None)
            call = graph.call_function(_OPS._quantize.default, args)
        else:
            public = getattr(_OPS, self.op).default
            call = graph.call_function(public, (value, scale, zero_point, *axis, *limits))
        return Quantized(call, self.scale, self.zero_point, is_static=True)


# How a value is quantized, in whatever op that is done; equal schemes give equal integers.
Scheme: TypeAlias = PerToken | Static


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

    def quantize(self, scheme: PerToken) -> Call:
        """Return the call that computes the same and quantizes it."""
        node = self.node
        if node.target in _PUBLIC:
            return _PUBLIC[node.target], node.args, {**node.kwargs, **scheme.keywords()}
        options = (scheme.symmetric, scheme.quant_min, scheme.quant_max, scheme.dtype)
        return _CORE[node.target], (*arguments(node).values(), *options), {}


@dataclass(frozen=True)
class Quantization:
    """A call that quantizes its input.

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


def is_repeated(node: Node) -> bool:
    """Whether a node with the arguments of an earlier one has its value, bit for bit.

    The quantizations that ``quantization`` reads are not meant: they merge in more ways.
    """
    if node.op != "call_function" or quantization(node) is not None:
        return False
    if not is_own(node):
        return node.target in _REPEATED
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not (node.target._schema.is_mutable or is_random)


def quantizes(node: Node) -> bool:
    """Whether a node calls an op of the library that quantizes, or does that with more."""
    return is_own(node) and "_quantize" in f"_{op_name(node)}"


def quantization(node: Node) -> Quantization | None:
    """Read a product that quantizes its input, or a dynamic quantization of tokens; else None."""
    if node.op != "call_function":
        return None
    product = _PRODUCTS.get(node.target)
    if product is None and node.target not in (_EXPLICIT, _CORE_EXPLICIT):
        return None
    given = arguments(node)
    if given.get("granularity", _PER_TOKEN) != _PER_TOKEN:
        return None
    scheme = _scheme(given, torch.int8 if product is not None else given.get("dtype", torch.int8))
    if scheme is None or not isinstance(given["input"], Node):
        return None
    if product is None and not all(map(is_item, node.users)):
        return None
    return Quantization(node, given["input"], scheme, product)


def _scheme(given: dict[str, Any], dtype: torch.dtype) -> Scheme | None:
    """Read how a call with these arguments quantizes; None if the graph does not say it."""
    limits = given["quant_min"], given["quant_max"]
    if any(type(limit) is not int for limit in limits):
        return None
    if "act_scale" not in given:
        symmetric = given["symmetric"]
        return PerToken(*limits, symmetric, dtype) if type(symmetric) is bool else None
    scale, zero_point, smooth = (given[n] for n in ("act_scale", "act_zero_point", "smooth_scale"))
    is_known = smooth is None or zero_point is None or "val" in smooth.meta  # its size is
    return Static(*limits, scale, zero_point, smooth) if is_known else None
