# SPDX-License-Identifier: BSD-3-Clause
"""Products of one input that become one call: on a GPU, few rows then are one launch."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from ._patterns import arguments
from ._rewrite import described
from ._views import value_of

_OPS = torch.ops.baraquant
# A product, and the op of several. That takes the arguments in the order of the product: lists of
# those that each weight has of its own, of which an empty one stands for None, and the others once.
_LISTS = {
    _OPS.int8_linear.default: _OPS._int8_linears.default,
    _OPS.int4_linear.default: _OPS._int4_linears.default,
    _OPS.weight_only_linear.default: _OPS._weight_only_linears.default,
}


@dataclass(frozen=True)
class Products:
    """Calls of one product op with one input, in order.

    Attributes:
        nodes: The calls.
        lists: For each argument of the op, whether every call has one of its own.
        values: The arguments of each call.
    """

    lists: tuple[bool, ...]
    nodes: list[Node] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)

    def takes(self, own: list[Node]) -> bool:
        """Whether a call with these arguments of its own can be computed with the first one."""
        # An attribute is there from the start, wherever its node stands.
        return not self.nodes or all(n.op == "get_attr" or n < self.nodes[0] for n in own)

    def merge(self, graph: Graph) -> None:
        """Make them one call, in front of the first."""
        first = self.nodes[0]
        args = [
            [value for value in values if value is not None] if is_list else values[0]
            for is_list, *values in zip(self.lists, *self.values, strict=True)
        ]
        with graph.inserting_before(first):
            call = graph.call_function(_LISTS[first.target], tuple(args))
        for argument in call.all_input_nodes:
            if argument.op == "get_attr" and argument > call:
                call.prepend(argument)
        call.meta = described(first.meta)
        if all("val" in node.meta for node in self.nodes):
            call.meta["val"] = [node.meta["val"] for node in self.nodes]
        for index, node in enumerate(self.nodes):
            node.target, node.args, node.kwargs = operator.getitem, (call, index), {}
            node.meta.pop("eager_input_vals", None)


def products(graph: Graph, stretches: dict[Node, int]) -> list[Products]:
    """Find the products that can be one call: nothing is written in place between them."""
    found: list[Products] = []
    latest: dict[object, Products] = {}
    for node in graph.nodes:
        if node.target not in _LISTS:
            continue
        given = {"dtype": torch.float32, **arguments(node)}
        values = tuple(given[a.name] for a in node.target._schema.arguments)
        schema = _LISTS[node.target]._schema.arguments
        lists = tuple(isinstance(a.type, torch.ListType) for a in schema)
        pairs = list(zip(lists, values, strict=True))
        # A list has no element that is None, and none of another dtype.
        kinds = tuple(_kind(value) if is_list else value for is_list, value in pairs)
        key = stretches[node], node.target, kinds
        if key not in latest or not latest[key].takes([v for own, v in pairs if own and v]):
            latest[key] = Products(lists)
            found.append(latest[key])
        latest[key].nodes.append(node)
        latest[key].values.append(values)
    return [group for group in found if len(group.nodes) > 1]


def _kind(argument: Node | None) -> str:
    return "" if argument is None else f"Tensor {getattr(value_of(argument), 'dtype', None)}"
