# SPDX-License-Identifier: BSD-3-Clause
"""What a graph writes in place. Graphs are functional only after they were decomposed."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch.fx import Graph, Node

from ._patterns import is_item

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
    return getattr(node.target, "__module__", None) not in _OF_SIZES or _is_higher_order(node)


def _is_higher_order(node: Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


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
