# SPDX-License-Identifier: BSD-3-Clause
"""The pass: finds quantizations of the same value, decides which can be one, and makes them so.

Graphs are functional only after they were decomposed; before that the pass looks at what a graph
writes in place.

``quantized_linear(x)`` is ``int8_linear(q, s, z)`` with ``q, s, z =
dynamic_range_quantize_per_token(x)``, bit for bit. If ``x`` is ``rms_norm(...)``, then ``q, s, z =
rms_norm_quantize_per_token(...)``, also bit for bit. With a given scale ``s`` it is ``q =
quantize_per_tensor(x, s, z)``, which no op computes together with another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch.fx import Graph, Node

from ._merge import products
from ._patterns import (
    FloatOp,
    PerToken,
    Quantization,
    Scheme,
    Static,
    arguments,
    float_op,
    is_item,
    is_repeated,
    op_name,
    quantization,
    quantizes,
)
from ._rewrite import Rewriter, output_dtype
from ._views import keeps_tokens, root_of
from .report import Fusion, Report

# Functions of Python in a graph compute with sizes.
_OF_SIZES = {"_operator", "operator", "math", "torch"}


def is_barrier(node: Node) -> bool:
    """Whether a node writes in place, or does what the graph does not show."""
    if node.op in ("call_module", "call_method"):
        return True
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    is_higher_order = isinstance(node.target, torch._ops.HigherOrderOperator)
    return is_higher_order or getattr(node.target, "__module__", None) not in _OF_SIZES


def stretches(graph: Graph) -> dict[Node, int]:
    """Number the stretches of a graph between which something may be written in place."""
    numbers, current = {}, 0
    for node in graph.nodes:
        current += is_barrier(node)
        numbers[node] = current
    return numbers


class Fate(Enum):
    """What happens to a value."""

    READ = 0
    RETURNED = 1
    WRITTEN = 2


def fate_of(node: Node) -> Fate:
    """Return what happens to a node's value, and to all that may share memory with it."""
    fate = Fate.READ
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output":
                fate = Fate.RETURNED
            elif is_barrier(user):
                return Fate.WRITTEN
            elif user not in seen and (is_item(user) or _may_alias(user.target)):
                seen.add(user)
                waiting.append(user)
    return fate


def _may_alias(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return any(result.alias_info is not None for result in target._schema.returns)


_GIVEN = "no op computes it together with a quantization whose scale is given"
_WRITTEN = "the integers of a quantization are written in place"
_BETWEEN = "the graph may write in place between its quantizations"
_DIFFERENT = "its quantizations have different options"


def fuse(graph: Graph, *, recorded: bool) -> Report:
    """Fuse the quantizations of a graph of ATen's and baraquant's ops.

    Without ``meta["val"]`` of its nodes, views between a value and its quantizations are not looked
    through. ``recorded`` says whether autograd may still record the graph.
    """
    work = _Pass(graph, recorded=recorded)
    for node in list(graph.nodes):
        op = float_op(node)
        if op is not None:
            work.fuse_op(op)
    work.share_rest()
    work.rewriter.clean()
    work.merge_products(graph)
    after = work.before - work.saved
    return Report(tuple(work.fusions), work.left_out, work.before, after, tuple(work.products))


class _Pass:
    def __init__(self, graph: Graph, *, recorded: bool) -> None:
        self.rewriter = Rewriter(graph, recorded=recorded)
        self.stretches = stretches(graph)
        self.fusions: list[Fusion] = []
        self.products: list[Fusion] = []
        self.sources: dict[Node, str] = {}  # of products
        self.left_out: dict[str, str] = {}
        self.before = self.saved = 0
        self._merge_repeated(graph)
        reads = ((node, quantization(node)) for node in graph.nodes)
        self.found = {node: read for node, read in reads if read is not None}
        self.fates = {n: fate_of(n) for n, read in self.found.items() if read.product is None}
        self.rest = {node: read for node, read in self.found.items() if self._is_safe(read)}
        self.before += len(self.found)

    def _merge_repeated(self, graph: Graph) -> None:
        """Let one call stand for all that compute the same of the same value.

        Layers with one input each rotate it, divide it or look for its range.
        """
        firsts: dict[object, Node] = {}
        merged: dict[Node, list[Node]] = {}
        for node in filter(is_repeated, list(graph.nodes)):
            given = node.args if is_item(node) else arguments(node)
            # Nodes are written by their names.
            first = firsts.setdefault((self.stretches[node], node.target, repr(given)), node)
            # The node of an output keeps its name.
            if first is node or fate_of(node) is not Fate.READ or fate_of(first) is Fate.WRITTEN:
                continue
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            if quantizes(node):
                merged.setdefault(first, [first]).append(node)
        for first, calls in merged.items():
            self._note(first.all_input_nodes[0], op_name(first).removeprefix("_"), calls)
            self.before += len(calls)

    def _is_safe(self, read: Quantization) -> bool:
        """Whether a quantization can be merged with others at all."""
        if read.product is None:
            return self.fates[read.node] is not Fate.WRITTEN
        return output_dtype(read) is not None

    def fuse_op(self, op: FloatOp) -> None:
        """Fuse a float op with the quantizations of its output, if nothing else reads it."""
        uses, others = self._readers(op)
        if not uses:
            return
        reason = self._reason_against(uses, others)
        if reason:
            self.left_out[_name(op.node)] = reason
            return
        scheme = uses[0].scheme
        assert isinstance(scheme, PerToken)
        self._note_uses(op.node, f"{op.name}_quantize_per_token", uses)
        self.rewriter.fuse(op, uses, scheme)

    def _readers(self, op: FloatOp) -> tuple[list[Quantization], list[Node]]:
        """Return what quantizes the output of a float op, and what else reads it."""
        uses: list[Quantization] = []
        others = op.other_readers()
        waiting: list[tuple[Node, tuple[Node, ...]]] = [(out, ()) for out in op.outputs(0)]
        while waiting:
            value, views = waiting.pop()
            for user in value.users:
                read = self.found.get(user)
                if read is not None and read.input is value and _reads_once(user, value):
                    uses.append(replace(read, views=views))
                elif user.args and user.args[0] is value and keeps_tokens(user, picks=True):
                    waiting.append((user, (*views, user)))
                else:
                    others.append(user)
        return sorted(uses, key=lambda use: use.node), others

    def _reason_against(self, uses: list[Quantization], others: list[Node]) -> str:
        if others:
            names = dict.fromkeys(_called(other) for other in sorted(others))
            return f"its output is also read by {', '.join(names)}"
        if len({use.scheme for use in uses}) > 1:
            return _DIFFERENT
        if isinstance(uses[0].scheme, Static):
            return _GIVEN
        if any(use.node not in self.rest for use in uses):
            return _WRITTEN
        if sum(self.fates.get(use.node) is Fate.RETURNED for use in uses) > 1:
            return "more than one quantization of it is returned"
        return ""

    def share_rest(self) -> None:
        """Merge the quantizations that are left and have the same input and options."""
        groups: dict[object, list[tuple[Node, Quantization]]] = {}
        for read in self.rest.values():
            root, views = root_of(read.input)
            # All nodes that take the same output of a call are one value.
            value = (root.args[0], root.args[1]) if is_item(root) else root
            groups.setdefault(value, []).append((root, replace(read, views=views)))
        for readers in groups.values():
            self._share_value(readers)

    def _share_value(self, readers: list[tuple[Node, Quantization]]) -> None:
        """Merge the quantizations of one value, those with the same options."""
        parts: dict[tuple[Scheme, int], list[tuple[Node, Quantization]]] = {}
        for root, use in readers:
            key = use.scheme, self.stretches[use.node]
            parts.setdefault(key, []).append((root, use))
        for (scheme, _), part in parts.items():
            self._share_part(scheme, self._without_second_output(part))
        if len(readers) > 1 and all(len(part) == 1 for part in parts.values()):
            schemes = {scheme for scheme, _ in parts}
            reason = _DIFFERENT if len(schemes) == len(parts) else _BETWEEN
            self.left_out.setdefault(_name(readers[0][0]), reason)

    def _without_second_output(
        self, part: list[tuple[Node, Quantization]]
    ) -> list[tuple[Node, Quantization]]:
        """Leave out a quantization whose result the caller would share with another one's."""
        kept, has_output = [], False
        for root, use in part:
            returned = self.fates.get(use.node) is Fate.RETURNED
            if not (returned and has_output):
                kept.append((root, use))
            has_output = has_output or returned
        return kept

    def _share_part(self, scheme: Scheme, part: list[tuple[Node, Quantization]]) -> None:
        if len(part) < 2:
            return
        value, uses = part[0][0], [use for _, use in part]
        inputs = {use.input for use in uses}
        if len(inputs) == 1:  # the views stay where they are
            value, uses = inputs.pop(), [replace(use, views=()) for use in uses]
        self._note_uses(part[0][0], scheme.op, uses)
        self.rewriter.share(value, uses, scheme)

    def _note_uses(self, source: Node, op: str, uses: list[Quantization]) -> None:
        self._note(source, op, [use.node for use in uses])
        for use in uses:
            del self.rest[use.node]
            self.sources[use.node] = _name(source)

    def merge_products(self, graph: Graph) -> None:
        """Make one call of the products that read the same integers, or the same input."""
        for group in products(graph, self.stretches):
            first = group.nodes[0]
            source = self.sources.get(first) or _name(first.all_input_nodes[0])
            names = tuple(map(_name, group.nodes))
            self.products.append(Fusion(source, op_name(first), names))
            group.merge(graph)

    def _note(self, source: Node, op: str, users: list[Node]) -> None:
        self.fusions.append(Fusion(_name(source), op, tuple(map(_name, users))))
        self.saved += len(users) - 1


def _reads_once(user: Node, value: Node) -> bool:
    """Whether a node is the first argument of a call, and no other."""
    others: Iterable[object] = (*user.args[1:], *user.kwargs.values())
    return bool(user.args) and user.args[0] is value and all(other is not value for other in others)


def _called(node: Node) -> str:
    """Return the name of an op that a node calls."""
    if isinstance(node.target, torch._ops.OpOverload):
        return op_name(node)
    name: str = node.op if node.op == "output" else node.name
    return name


def _name(node: Node) -> str:
    """Return the path of the module that made a node; without one, the node's name."""
    stack = node.meta.get("nn_module_stack")
    path = list(stack.values())[-1][0] if stack else ""
    path = re.sub(r"^(getattr\()?L\['self'\]\.?", "", path) if isinstance(path, str) else ""
    called = re.sub(r"^_", "", _called(node)) if node.op == "call_function" else ""
    if not path or called in ("silu_mul", "gelu", "hadamard", "activation"):
        return f"{path}.{node.name}" if path else node.name
    return path
