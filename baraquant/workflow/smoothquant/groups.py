# SPDX-License-Identifier: BSD-3-Clause
"""Finds the layers that share the factors of their inputs, and what can absorb the division."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ..calibration.run import Watcher
from .flow import Flow
from .producers import producers


@dataclass
class Group:
    """Layers that share their factors, because one preceding module absorbs the division.

    Attributes:
        producer: The path of that module; None: there is none, and one layer.
        layers: Their paths.
        alpha: The exponent that gives the factors; None if nothing is scaled.
        smooth: The factors, ``[K]``; None: no scaling.
        readable: The path of a module that could absorb the division if no other call could read
            its output.
    """

    producer: str | None
    layers: list[str]
    alpha: float | None = None
    smooth: Tensor | None = None
    readable: str | None = None


def find_groups(
    model: nn.Module,
    watchers: Mapping[str, Watcher],
    fixed: set[str],
    run: Callable[[Mapping[str, Watcher]], set[str]],
) -> tuple[list[Group], set[str]]:
    """Run the model once; return the groups, and the paths of layers that saw no input.

    Each layer that the data reaches and that is not fixed is in one group.

    Args:
        model: The float model.
        watchers: What sees the inputs of linear layers in this run, by the layer's path.
        fixed: Those of the layers whose weights must not change.
        run: Runs the model with watchers, and returns the paths of those that saw no input.
    """
    at = dict(model.named_modules(remove_duplicate=False))
    able = {
        path: at[path]
        for path in watchers
        if path not in fixed and not at[path]._forward_hooks and not at[path]._forward_pre_hooks
    }
    flow = Flow(model, producers(model), able)
    with flow:
        unreached = run({path: _Aside(flow, watcher) for path, watcher in watchers.items()})
    groups = [Group(producer, consumers) for producer, consumers in flow.feeds().items()]
    known = {path for group in groups for path in group.layers} | fixed | unreached
    readable = flow.feeds_readable()
    alone = [path for path in watchers if path not in known]
    return groups + [Group(None, [one], readable=readable.get(one)) for one in alone], unreached


class _Aside:
    """A watcher whose ops do not count as the model's."""

    def __init__(self, flow: Flow, watcher: Watcher) -> None:
        self.flow, self.watcher = flow, watcher

    def observe(self, input: Tensor) -> None:
        with self.flow.aside():
            self.watcher.observe(input)

    def unusable(self) -> Tensor | None:
        return self.watcher.unusable()

    @property
    def skipped_batches(self) -> Tensor | None:
        return self.watcher.skipped_batches
