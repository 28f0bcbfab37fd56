# SPDX-License-Identifier: BSD-3-Clause
"""Changes the calls of a graph. A call that is replaced keeps its node, and outputs their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    arguments,
    is_core,
    items,
)
from ._views import replay, value_of

T = TypeVar("T")
# They describe the value or the call that a node had before.
_STALE = ("val", "tensor_meta", "eager_input_vals", "example_value")


def described(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a meta for another call in the same place of a model."""
    return {key: value for key, value in meta.items() if key not in _STALE}


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
            node.meta = described(meta)
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
