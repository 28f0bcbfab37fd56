# SPDX-License-Identifier: BSD-3-Clause
"""The pass: finds quantizations of the same value, decides which can be one, and makes them so.

Graphs are functional only after they were decomposed; before that the pass looks at what a graph
writes in place. A call that is replaced keeps its node, so that outputs keep their names.

``quantized_linear(x)`` is ``int8_linear(q, s, z)`` with ``q, s, z =
dynamic_range_quantize_per_token(x)``, bit for bit. If ``x`` is ``rms_norm(...)``, then ``q, s, z =
rms_norm_quantize_per_token(...)``, also bit for bit. With a given scale ``s`` it is ``q =
quantize_per_tensor(x, s, z)``, which no op computes together with another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ._patterns import (
    FloatOp,
    PerToken,
    Quantization,
    Quantized,
    Scheme,
    Static,
    arguments,
    float_op,
    is_core,
    is_item,
    is_repeated,
    items,
    op_name,
    quantization,
    quantizes,
)
from ._views import keeps_tokens, replay, root_of, value_of
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


T = TypeVar("T")
# They describe the value or the call that a node had before.
STALE = ("val", "tensor_meta", "eager_input_vals", "example_value")


class Rewriter:
    """Changes a graph, which autograd may still record; ``clean`` ends the changes."""

    def __init__(self, graph: Graph, *, recorded: bool) -> None:
        self.graph = graph
        self.recorded = recorded
        self._touched: set[Node] = set()

    def share(self, value: Node, uses: list[Quantization], scheme: Scheme) -> None:
        """Quantize a value once, in front of the first of its uses, which come in order."""
        first = uses[0].node
        # A graph after autograd has core ops alone, and Inductor takes no others.
        core = not self.recorded or any(is_core(use) for use in uses)

        def build() -> Quantized:
            return scheme.quantize(self.graph, value, core=core)

        quantized = self._insert(first, first.meta, build)
        guarded = quantized
        if self.recorded and any(use.product is not None for use in uses):
            guarded = self._insert(first, first.meta, lambda: self._guarded(quantized, value))
        for use in uses:
            self._replace(use, quantized if use.product is None else guarded)

    def fuse(self, op: FloatOp, uses: list[Quantization], scheme: PerToken) -> None:
        """Replace a float op by its quantizing form, for all that read its output."""

        def build() -> tuple[Node, Quantized]:
            call = self.graph.call_function(*op.quantize(scheme))
            return call, Quantized.by(self.graph, call)

        call, quantized = self._insert(op.node, op.node.meta, build)
        for use in uses:
            self._replace(use, quantized)
        for item in op.outputs(1):
            item.args = (call, 3)
        self._touched.update((op.node, *op.outputs(0)))

    def clean(self) -> None:
        """Erase what nobody reads any more."""
        for node in reversed(list(self.graph.nodes)):
            if node in self._touched and not node.users:
                self.graph.erase_node(node)

    def _guarded(self, quantized: Quantized, value: Node) -> Quantized:
        # Integers carry no gradient, and the products have one. The empty slice changes no bit of
        # the scale, but the scale now requires a gradient if the value does, and a product of
        # integers refuses such a scale: the gradient is never dropped without a word.
        call, aten = self.graph.call_function, torch.ops.aten
        scale, empty = quantized.scale, call(aten.slice.Tensor, (value, -1, 0, 0))
        if quantized.is_static:
            scale = call(aten.reshape.default, (scale, [1]))
            empty = call(aten.reshape.default, (empty, [0]))
        return replace(quantized, scale=call(aten.cat.default, ([scale, empty], -1)))

    def _insert(self, place: Node, meta: dict[str, Any], build: Callable[[], T]) -> T:
        """Build nodes in front of a node, with a copy of a meta and values of their own."""
        before = place.prev
        with self.graph.inserting_before(place):
            built = build()
        node = before.next
        while node is not place:
            node.meta = {key: value for key, value in meta.items() if key not in STALE}
            _set_value(node)
            self._touched.add(node)
            node = node.next
        return built

    def _replace(self, use: Quantization, source: Quantized) -> None:
        """Let a use read what was quantized at once."""
        node = use.node
        self._touched.update((node, *use.views))

        def see() -> Quantized:
            integers = replay(self.graph, use.views, source.integers, of_scale=False)
            if source.is_static:
                return replace(source, integers=integers)
            pair = source.scale, source.zero_point
            return Quantized(
                integers, *(replay(self.graph, use.views, one, of_scale=True) for one in pair)
            )

        seen = self._insert(node, node.meta, see)
        if use.product is not None:
            _take_integers(use, seen)
            return
        for index, output in enumerate((seen.integers, seen.scale, seen.zero_point)):
            for item in items(node, index):
                # The node stays, as its name may be that of an output of the graph.
                item.target, item.args, item.kwargs = output.target, output.args, output.kwargs
                _set_value(item)


def _take_integers(quantization: Quantization, seen: Quantized) -> None:
    """Make a product take integers instead of the value that it would quantize."""
    node, schema = quantization.node, quantization.product._schema.arguments
    given = {
        **arguments(node),
        "input": seen.integers,
        "input_scale": seen.scale,
        "dtype": output_dtype(quantization),
    }
    if quantization.scheme.has_zero_point:
        given["input_zero_point"] = seen.zero_point
    else:
        given["weight_sum"] = None
    named = {a.name: value for a in schema if (value := given.get(a.name)) is not None}
    node.args = tuple(named.pop(a.name, None) for a in schema if not a.kwarg_only)
    node.target, node.kwargs = quantization.product, named
    node.meta.pop("eager_input_vals", None)


def output_dtype(quantization: Quantization) -> torch.dtype | None:
    """Return the dtype of a product; None if the graph does not have it."""
    dtype: torch.dtype | None = arguments(quantization.node).get("dtype")
    value = value_of(quantization.input)
    return dtype if dtype is not None or value is None else value.dtype


def _set_value(node: Node) -> None:
    """Compute the fake value of a node, where its arguments have one."""
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    fake = next((value for value in tree_leaves(values) if isinstance(value, FakeTensor)), None)
    if fake is None or any(value is None for value in values):
        return
    mode = fake.fake_mode

    def value_in_mode(argument: Node) -> Any:
        value = argument.meta["val"]
        is_real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
        return mode.from_tensor(value) if is_real else value

    args, kwargs = map_arg((node.args, node.kwargs), value_in_mode)
    assert callable(node.target)
    with mode, torch.no_grad():
        node.meta["val"] = node.target(*args, **kwargs)


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
    return Report(tuple(work.fusions), work.left_out, work.before, work.before - work.saved)


class _Pass:
    def __init__(self, graph: Graph, *, recorded: bool) -> None:
        self.rewriter = Rewriter(graph, recorded=recorded)
        self.stretches = stretches(graph)
        self.fusions: list[Fusion] = []
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
