# SPDX-License-Identifier: BSD-3-Clause
"""The changes of a graph. A call that is replaced keeps its node, so that outputs keep their names.

``quantized_linear(x)`` is ``int8_linear(q, s, z)`` with ``q, s, z =
dynamic_range_quantize_per_token(x)``, bit for bit. If ``x`` is ``rms_norm(...)``, then ``q, s, z =
rms_norm_quantize_per_token(...)``, also bit for bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ._patterns import FloatOp, Quantization, Scheme, arguments, is_core, items
from ._views import replay, value_of

T = TypeVar("T")
# They describe the value or the call that a node had before.
_STALE = ("val", "tensor_meta", "eager_input_vals", "example_value")


@dataclass(frozen=True)
class Use:
    """A quantization, and the views between it and the value that is quantized at once."""

    quantization: Quantization
    views: tuple[Node, ...]

    @property
    def node(self) -> Node:
        """The call that quantizes."""
        return self.quantization.node


@dataclass(frozen=True)
class Quantized:
    """The integers, scales and zero points of all tokens of a value."""

    integers: Node
    scale: Node
    zero_point: Node


class Rewriter:
    """Changes a graph; ``clean`` ends the changes.

    Args:
        graph: The graph.
        recorded: Whether autograd may still record the graph.
    """

    def __init__(self, graph: Graph, *, recorded: bool) -> None:
        self.graph = graph
        self.recorded = recorded
        self._touched: set[Node] = set()

    def share(self, value: Node, uses: list[Use], scheme: Scheme) -> None:
        """Quantize a value once, in front of the first use.

        Args:
            value: What the views of all uses start from.
            uses: The quantizations, in the order of the graph.
            scheme: That of all of them.
        """
        first = uses[0].node
        # A graph after autograd has core ops alone, and Inductor takes no others.
        core = not self.recorded or any(is_core(use.quantization) for use in uses)

        def build() -> Quantized:
            return self._outputs(self.graph.call_function(*scheme.quantize(value, core=core)))

        quantized = self._insert(first, first.meta, build)
        guarded = quantized
        if self.recorded and any(use.quantization.product is not None for use in uses):
            guarded = self._insert(first, first.meta, lambda: self._guarded(quantized, value))
        for use in uses:
            self._replace(use, quantized if use.quantization.product is None else guarded)

    def fuse(self, op: FloatOp, uses: list[Use], scheme: Scheme) -> None:
        """Replace a float op by its quantizing form, for all that read its output."""

        def build() -> tuple[Node, Quantized]:
            call = self.graph.call_function(*op.quantize(scheme))
            return call, self._outputs(call)

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

    def _outputs(self, call: Node) -> Quantized:
        get = operator.getitem
        return Quantized(*(self.graph.call_function(get, (call, i)) for i in range(3)))

    def _guarded(self, quantized: Quantized, value: Node) -> Quantized:
        # Integers carry no gradient, and quantized_linear has one. The empty slice changes no bit
        # of the scale, but the scale now requires a gradient if the value does, and int8_linear
        # refuses such a scale: the gradient is never dropped without a word.
        aten = torch.ops.aten
        empty = self.graph.call_function(aten.slice.Tensor, (value, -1, 0, 0))
        scale = self.graph.call_function(aten.cat.default, ([quantized.scale, empty], -1))
        return Quantized(quantized.integers, scale, quantized.zero_point)

    def _insert(self, place: Node, meta: dict[str, Any], build: Callable[[], T]) -> T:
        """Build nodes in front of a node, with a copy of a meta and values of their own."""
        before = place.prev
        with self.graph.inserting_before(place):
            built = build()
        node = before.next
        while node is not place:
            node.meta = {key: value for key, value in meta.items() if key not in _STALE}
            _set_value(node)
            self._touched.add(node)
            node = node.next
        return built

    def _replace(self, use: Use, source: Quantized) -> None:
        """Let a use read what was quantized at once."""
        node = use.node
        self._touched.update((node, *use.views))

        def see() -> Quantized:
            return Quantized(
                replay(self.graph, use.views, source.integers, of_scale=False),
                replay(self.graph, use.views, source.scale, of_scale=True),
                replay(self.graph, use.views, source.zero_point, of_scale=True),
            )

        seen = self._insert(node, node.meta, see)
        if use.quantization.product is not None:
            _take_integers(use.quantization, seen)
            return
        for index, output in enumerate((seen.integers, seen.scale, seen.zero_point)):
            for item in items(node, index):
                # The node stays, as its name may be that of an output of the graph.
                item.target, item.args, item.kwargs = output.target, output.args, output.kwargs
                _set_value(item)


def _take_integers(quantization: Quantization, seen: Quantized) -> None:
    """Make a product take integers instead of the value that it would quantize."""
    node = quantization.node
    given = arguments(node)
    offsets = (given["offsets"],) if "offsets" in given else ()
    args = (seen.integers, given["weight"], *offsets, seen.scale, given["weight_scale"])
    kwargs: dict[str, Any] = {"dtype": output_dtype(quantization)}
    if not quantization.scheme.symmetric:
        kwargs["input_zero_point"] = seen.zero_point
        if given["weight_sum"] is not None:
            kwargs["weight_sum"] = given["weight_sum"]
    node.target, node.args, node.kwargs = quantization.product, (*args, given["bias"]), kwargs
    node.meta.pop("eager_input_vals", None)


def output_dtype(quantization: Quantization) -> torch.dtype | None:
    """Return the dtype of a product; None if the graph does not have it."""
    dtype: torch.dtype | None = arguments(quantization.node).get("dtype")
    value = value_of(quantization.input)
    return dtype if dtype is not None or value is None else value.dtype


def _set_value(node: Node) -> None:
    """Compute the fake value of a node, where its arguments have one."""
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    fake = next((value for value in _flat(values) if isinstance(value, FakeTensor)), None)
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


def _flat(values: list[Any]) -> list[Any]:
    return [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
