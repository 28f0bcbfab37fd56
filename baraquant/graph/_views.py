# SPDX-License-Identifier: BSD-3-Clause
"""Views between a value and its quantization. Those that keep each token whole can come after it.

A token is a vector along the last dimension, with one scale, so the scales ``[..., 1]`` take the
same views as the integers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ._patterns import arguments

_ATEN = torch.ops.aten
_SAME = {_ATEN.alias.default, _ATEN.clone.default, _ATEN.contiguous.default, _ATEN.detach.default}
_RESHAPED = {_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default}
_MOVED = {
    _ATEN.flatten.using_ints,
    _ATEN.permute.default,
    _ATEN.squeeze.dim,
    _ATEN.squeeze.dims,
    _ATEN.transpose.int,
    _ATEN.unsqueeze.default,
}
# These leave tokens out.
_PICKED = {_ATEN.select.int, _ATEN.slice.Tensor}


def value_of(node: Any) -> Tensor | None:
    """Return the fake tensor that stands for a node's value, if the graph has it."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def keeps_tokens(node: Node, *, picks: bool) -> bool:
    """Whether a node is a view of its first argument that leaves each token as it is.

    With ``picks`` the view may leave tokens out.
    """
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return False
    if node.target in _SAME:
        return node.kwargs.get("memory_format") in (None, torch.contiguous_format)
    before, after = value_of(node.args[0]), value_of(node)
    if before is None or after is None or before.dim() == 0 or after.dim() == 0:
        return False
    if node.target in _RESHAPED:
        return _has_same_tokens(before, after)
    if node.target in _MOVED or (picks and node.target in _PICKED):
        return _leaves_last(node, before.dim()) and _has_same_tokens(before, after)
    return False


def _has_same_tokens(before: Tensor, after: Tensor) -> bool:
    """Whether both have tokens of the same length, known when the graph was made."""
    # Of vectors without elements a reshape may make any number.
    same = before.shape[-1] == after.shape[-1]
    return bool(statically_known_true(same) and statically_known_true(before.shape[-1] > 0))


def _leaves_last(node: Node, dimensions: int) -> bool:
    """Whether a view that moves or picks dimensions does not touch the last one."""
    given = arguments(node)
    last = dimensions - 1
    if node.target is _ATEN.permute.default:
        return bool(given["dims"][-1] % dimensions == last)
    if node.target is _ATEN.unsqueeze.default:
        return bool(given["dim"] % (dimensions + 1) != dimensions)
    if node.target is _ATEN.transpose.int:
        named = [given["dim0"], given["dim1"]]
    elif node.target is _ATEN.flatten.using_ints:
        named = [given["end_dim"]]
    else:
        named = list(given["dim"]) if isinstance(given["dim"], (list, tuple)) else [given["dim"]]
    return all(dim % dimensions != last for dim in named)


def root_of(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """Follow views that keep all tokens; return what is viewed, and the views in order."""
    steps: list[Node] = []
    while keeps_tokens(node, picks=False):
        steps.append(node)
        node = node.all_input_nodes[0]
    return node, tuple(reversed(steps))


def replay(graph: Graph, steps: tuple[Node, ...], value: Node, *, of_scale: bool) -> Node:
    """Apply views to integers, or to their scales, which have one element for each token."""
    for step in steps:
        if step.target in _SAME:
            continue
        target, rest, kwargs = step.target, step.args[1:], dict(step.kwargs)
        if target in _RESHAPED:
            sizes = list(arguments(step)["shape" if target is _ATEN.reshape.default else "size"])
            # The integers may have other strides than the value, which a view might not take.
            target, kwargs = _ATEN.reshape.default, {}
            rest = ([*sizes[:-1], 1] if of_scale else sizes,)
        value = graph.call_function(target, (value, *rest), kwargs)
    return value
