# SPDX-License-Identifier: BSD-3-Clause
"""The pass: finds quantizations of the same value, and decides which can be one."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch.fx import Graph, Node

from ._effects import Fate, fate_of, stretches
from ._patterns import FloatOp, Quantization, Scheme, float_op, is_item, op_name, quantization
from ._rewrite import Rewriter, Use, output_dtype
from ._views import keeps_tokens, root_of
from .report import Fusion, Report

_WRITTEN = "the integers of a quantization are written in place"
_BETWEEN = "the graph may write in place between its quantizations"
_DIFFERENT = "its quantizations have different options"


def fuse(graph: Graph, *, recorded: bool) -> Report:
    """Fuse the quantizations of a graph.

    Args:
        graph: A graph of ATen's and baraquant's ops. Without ``meta["val"]`` of its nodes, views
            between a value and its quantizations are not looked through.
        recorded: Whether autograd may still record the graph.
    """
    work = _Pass(graph, recorded=recorded)
    for node in list(graph.nodes):
        op = float_op(node)
        if op is not None:
            work.fuse_op(op)
    work.share_rest()
    work.rewriter.clean()
    after = len(work.found) - work.saved
    return Report(tuple(work.fusions), work.left_out, len(work.found), after)


class _Pass:
    def __init__(self, graph: Graph, *, recorded: bool) -> None:
        self.rewriter = Rewriter(graph, recorded=recorded)
        self.stretches = stretches(graph)
        self.found: dict[Node, Quantization] = {}
        for node in graph.nodes:
            read = quantization(node)
            if read is not None:
                self.found[node] = read
        self.fates = {n: fate_of(n) for n, read in self.found.items() if read.product is None}
        self.rest = {node: read for node, read in self.found.items() if self._is_safe(read)}
        self.fusions: list[Fusion] = []
        self.left_out: dict[str, str] = {}
        self.saved = 0

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
        scheme = uses[0].quantization.scheme
        self._note(op.node, f"{op.name}_quantize_per_token", uses)
        self.rewriter.fuse(op, uses, scheme)

    def _readers(self, op: FloatOp) -> tuple[list[Use], list[Node]]:
        """Return what quantizes the output of a float op, and what else reads it."""
        uses: list[Use] = []
        others = op.other_readers()
        waiting: list[tuple[Node, tuple[Node, ...]]] = [(out, ()) for out in op.outputs(0)]
        while waiting:
            value, views = waiting.pop()
            for user in value.users:
                read = self.found.get(user)
                if read is not None and read.input is value and _reads_once(user, value):
                    uses.append(Use(read, views))
                elif user.args and user.args[0] is value and keeps_tokens(user, picks=True):
                    waiting.append((user, (*views, user)))
                else:
                    others.append(user)
        return sorted(uses, key=lambda use: use.node), others

    def _reason_against(self, uses: list[Use], others: list[Node]) -> str:
        if others:
            names = dict.fromkeys(_called(other) for other in sorted(others))
            return f"its output is also read by {', '.join(names)}"
        if len({use.quantization.scheme for use in uses}) > 1:
            return _DIFFERENT
        if any(use.node not in self.rest for use in uses):
            return _WRITTEN
        if sum(self.fates.get(use.node) is Fate.RETURNED for use in uses) > 1:
            return "more than one quantization of it is returned"
        return ""

    def share_rest(self) -> None:
        """Merge the quantizations that are left and have the same input and options."""
        groups: dict[object, list[tuple[Node, Use]]] = {}
        for read in self.rest.values():
            root, views = root_of(read.input)
            groups.setdefault(_identity(root), []).append((root, Use(read, views)))
        for readers in groups.values():
            self._share_value(readers)

    def _share_value(self, readers: list[tuple[Node, Use]]) -> None:
        """Merge the quantizations of one value, those with the same options."""
        parts: dict[tuple[Scheme, int], list[tuple[Node, Use]]] = {}
        for root, use in readers:
            key = use.quantization.scheme, self.stretches[use.node]
            parts.setdefault(key, []).append((root, use))
        for (scheme, _), part in parts.items():
            self._share_part(scheme, self._without_second_output(part))
        if len(readers) > 1 and all(len(part) == 1 for part in parts.values()):
            schemes = {scheme for scheme, _ in parts}
            reason = _DIFFERENT if len(schemes) == len(parts) else _BETWEEN
            self.left_out.setdefault(_name(readers[0][0]), reason)

    def _without_second_output(self, part: list[tuple[Node, Use]]) -> list[tuple[Node, Use]]:
        """Leave out a quantization whose result the caller would share with another one's."""
        kept, has_output = [], False
        for root, use in part:
            returned = self.fates.get(use.node) is Fate.RETURNED
            if not (returned and has_output):
                kept.append((root, use))
            has_output = has_output or returned
        return kept

    def _share_part(self, scheme: Scheme, part: list[tuple[Node, Use]]) -> None:
        if len(part) < 2:
            return
        value, uses = part[0][0], [use for _, use in part]
        inputs = {use.quantization.input for use in uses}
        if len(inputs) == 1:  # the views stay where they are
            value, uses = inputs.pop(), [Use(use.quantization, ()) for use in uses]
        self._note(part[0][0], "dynamic_range_quantize_per_token", uses)
        self.rewriter.share(value, uses, scheme)

    def _note(self, source: Node, op: str, uses: list[Use]) -> None:
        self.fusions.append(Fusion(_name(source), op, tuple(_name(use.node) for use in uses)))
        self.saved += len(uses) - 1
        for use in uses:
            del self.rest[use.node]


def _reads_once(user: Node, value: Node) -> bool:
    """Whether a node is the first argument of a call, and no other."""
    others: Iterable[object] = (*user.args[1:], *user.kwargs.values())
    return bool(user.args) and user.args[0] is value and all(other is not value for other in others)


def _identity(root: Node) -> object:
    """Return what is equal for all nodes that take the same output of a call."""
    return (root.args[0], root.args[1]) if is_item(root) else root


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
