# SPDX-License-Identifier: BSD-3-Clause
"""Products of one input become one call: on a GPU, those of few rows then are one launch."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from ._fuse import STALE, stretches
from ._patterns import arguments, is_repeated
from ._views import value_of

_OPS = torch.ops.baraquant
# A product, and the op of several. That takes the arguments in the order of the product: lists of
# those that each weight has of its own, or None, and the others once.
_LISTS = {
    _OPS.int8_linear.default: _OPS._int8_linears.default,
    _OPS.int4_linear.default: _OPS._int4_linears.default,
    _OPS.weight_only_linear.default: _OPS._weight_only_linears.default,
}


def merge_products(graph: Graph) -> None:
    """Make one call of the products of the same input, if nothing is written in place between."""
    groups: list[_Products] = []
    latest: dict[object, _Products] = {}
    for node, stretch in stretches(graph).items():
        if node.target not in _LISTS:
            continue
        _leave_out_bias(node)
        product = _Product.read(node)
        key = stretch, node.target, product.shared, product.kinds()
        if key not in latest or not latest[key].takes(product):
            latest[key] = _Products()
            groups.append(latest[key])
        latest[key].members.append(product)
    for group in groups:
        if len(group.members) > 1:
            group.merge(graph)


def _leave_out_bias(product: Node) -> None:
    """Leave out a bias of -0.0, which changes no bit: it stands for none in exported graphs.

    torch 2.11 takes every graph that it compiles for an exported one.
    """
    bias = arguments(product).get("bias")
    if not isinstance(bias, Node) or bias.target is not torch.ops.aten.full.default:
        return
    if bias.args[1] == 0.0 and math.copysign(1.0, bias.args[1]) < 0:
        product.args = tuple(None if one is bias else one for one in product.args)
        product.kwargs = {k: None if one is bias else one for k, one in product.kwargs.items()}


@dataclass(frozen=True)
class _Product:
    """A call of a product: the arguments that several products share, and its own."""

    node: Node
    shared: tuple[Any, ...]
    own: tuple[Node | None, ...]

    @classmethod
    def read(cls, node: Node) -> _Product:
        given = {"dtype": torch.float32, **arguments(node)}
        values = [given[a.name] for a in node.target._schema.arguments]
        pairs = list(zip(_are_lists(node), values, strict=True))
        shared, own = (tuple(v for is_own, v in pairs if is_own is one) for one in (False, True))
        return cls(node, shared, own)

    def kinds(self) -> tuple[str, ...]:
        """Return what the own arguments have to be in all products of a call."""
        dtypes = (getattr(value_of(one), "dtype", None) for one in self.own)
        return tuple(
            "None" if one is None else f"Tensor {dtype}"
            for one, dtype in zip(self.own, dtypes, strict=True)
        )


@dataclass(frozen=True)
class _Products:
    """Products that can be one call, in order."""

    members: list[_Product] = field(default_factory=list)

    def takes(self, product: _Product) -> bool:
        """Whether a product can be computed where the first one is."""
        first = self.members[0].node
        return all(one is None or _is_computable(one, first) for one in product.own)

    def merge(self, graph: Graph) -> None:
        """Make them one call, in front of the first; the node of each takes an output."""
        first = self.members[0].node
        shared = iter(self.members[0].shared)
        lists = zip(*(product.own for product in self.members), strict=True)
        own = (None if ones[0] is None else [*ones] for ones in lists)
        args = [next(own) if is_list else next(shared) for is_list in _are_lists(first)]
        with graph.inserting_before(first):
            call = graph.call_function(_LISTS[first.target], tuple(args))
        _compute_inputs(call, call)
        nodes = [product.node for product in self.members]
        call.meta = {key: value for key, value in first.meta.items() if key not in STALE}
        if all("val" in node.meta for node in nodes):
            call.meta["val"] = [node.meta["val"] for node in nodes]
        for index, node in enumerate(nodes):
            node.target, node.args, node.kwargs = operator.getitem, (call, index), {}
            node.meta.pop("eager_input_vals", None)


def _is_computable(node: Node, place: Node) -> bool:
    """Whether a node of the same stretch is in front of another, or can be moved there.

    Under autocast each layer casts its bias. An attribute is there from the start.
    """
    if node < place or node.op == "get_attr":
        return True
    is_moved = is_repeated(node) and node.target not in _LISTS
    return is_moved and all(_is_computable(one, place) for one in node.all_input_nodes)


def _compute_inputs(node: Node, place: Node) -> None:
    """Move what a node reads in front of another."""
    for one in node.all_input_nodes:
        if one > place:
            _compute_inputs(one, place)
            place.prepend(one)


def _are_lists(product: Node) -> list[bool]:
    """Return for each argument of a product whether the op of several takes a list of them."""
    schema = _LISTS[product.target]._schema.arguments
    return ["List[Tensor]" in str(argument.type) for argument in schema]
