# SPDX-License-Identifier: BSD-3-Clause
"""What the blocks of a model are called with, and which of it comes from where.

A first run of the float model finds the order of the blocks. It also finds which arguments of a
block are the very output of an earlier block, or an object that an earlier block got too, such as a
mask. Such an argument has a :data:`Source`, and need not be computed by the model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from ..calibration.run import evaluating
from .batch_cache import is_plain

# Where an argument comes from: the output of a block, whose index it is (then the second number is
# -1), or the first block that got it, and which of its arguments it was.
Source: TypeAlias = tuple[int, int]


@dataclass
class Form:
    """How a block is called: the structure of the arguments, and each of them.

    Attributes:
        spec: The structure.
        values: The values of plain arguments, and None in place of the others.
        sources: Where the other arguments come from, and None in place of plain ones.
    """

    spec: TreeSpec
    values: list[Any]
    sources: list[Source | None]

    def needed(self) -> set[Source]:
        """Return the arguments that are not plain."""
        return {source for source in self.sources if source is not None}


@dataclass
class Block:
    """A block of the model.

    Attributes:
        path: Its path.
        module: The module.
        form: How it is called; None if that is not the same in all runs.
        fewest: The fewest calls in a run of the model.
        most: The most calls in a run.
        check: A number that stands for its float output in the first run; None: it has none.
    """

    path: str
    module: nn.Module
    form: Form | None = None
    fewest: int = 0
    most: int = 0
    check: Tensor | None = None

    def why_not(self) -> str | None:
        """Return why the block cannot be reconstructed; None if it can be."""
        if self.most == 0:
            return "the calibration data does not reach it"
        if self.fewest != 1 or self.most != 1:
            count = self.most if self.fewest == self.most else f"{self.fewest} to {self.most}"
            return f"it is called {count} times in a run of the model"
        return None if self.check is not None else "its output has no tensor of floating numbers"


def hidden_of(output: Any) -> Tensor | None:
    """Return the output of a block that counts: a tensor, or the first of a tuple or list."""
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    return first if isinstance(first, Tensor) and first.is_floating_point() else None


def mark_of(output: Tensor) -> Tensor:
    """Return a number, in float64, that differs in all likelihood where an output does."""
    values = output.detach().double().flatten()
    ramp = torch.linspace(1, 2, max(1, len(values)), dtype=values.dtype, device=values.device)
    return (values * ramp[: len(values)]).sum()


@dataclass
class _Trace:
    """Watches one run of the model after the other."""

    blocks: list[Block]
    order: list[int] = field(default_factory=list)  # of the blocks' first calls
    runs: int = 0
    _counts: dict[int, int] = field(default_factory=dict)
    # Of this run: where each object is from, with its version, and what keeps its id its own.
    _known: dict[tuple[int, int], Source] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)
    _varies: set[int] = field(default_factory=set)

    def begin(self, *_: Any) -> None:
        self.end()
        self.runs += 1

    def end(self) -> None:
        for index, block in enumerate(self.blocks) if self.runs else ():
            count = self._counts.get(index, 0)
            block.fewest = count if self.runs == 1 else min(block.fewest, count)
            block.most = max(block.most, count)
        self._counts.clear()
        self._known.clear()
        self._held.clear()

    def before(self, index: int, args: Any, kwargs: Any) -> None:
        if index not in self.order:
            self.order.append(index)
        self._counts[index] = self._counts.get(index, 0) + 1
        leaves, spec = tree_flatten((args, kwargs))
        form = Form(spec, [], [])
        for position, leaf in enumerate(leaves):
            is_value = is_plain(leaf)
            form.values.append(leaf if is_value else None)
            form.sources.append(None if is_value else self._source(leaf, (index, position)))
        block = self.blocks[index]
        if block.form is None and index not in self._varies:
            block.form = form
        elif block.form != form:
            block.form = None
            self._varies.add(index)

    def after(self, index: int, output: Any) -> None:
        hidden = hidden_of(output)
        if hidden is None:
            return
        self._known[_key(hidden)] = index, -1
        self._held.append(hidden)
        if self.runs == 1:
            self.blocks[index].check = mark_of(hidden)

    def _source(self, leaf: Any, own: Source) -> Source:
        self._held.append(leaf)
        return self._known.setdefault(_key(leaf), own)


def _key(leaf: Any) -> tuple[int, int]:
    """Return what stands for an object, and for what it holds where that is known."""
    is_counted = isinstance(leaf, Tensor) and not leaf.is_inference()
    return id(leaf), leaf._version if is_counted else 0


def trace(
    model: nn.Module, blocks: Mapping[str, nn.Module], run: Callable[[], Iterator[None]]
) -> list[Block]:
    """Run the model; return the blocks in the order of their first calls, uncalled ones last."""
    seen = _Trace([Block(path, module) for path, module in blocks.items()])
    with evaluating(model):
        model.register_forward_pre_hook(seen.begin)
        for index, block in enumerate(seen.blocks):
            watch_calls(block.module, partial(seen.before, index), partial(seen.after, index))
        for _ in run():
            pass
    seen.end()
    return _in_order(seen)


def _in_order(seen: _Trace) -> list[Block]:
    """Return the blocks in the order of their calls, with sources of these numbers."""
    rest = [index for index in range(len(seen.blocks)) if index not in seen.order]
    order = [*seen.order, *rest]
    new = {old: index for index, old in enumerate(order)}
    for block in seen.blocks:
        if block.form is not None:
            block.form.sources = [
                None if source is None else (new[source[0]], source[1])
                for source in block.form.sources
            ]
    return [seen.blocks[index] for index in order]


def watch_calls(
    module: nn.Module,
    before: Callable[[tuple[Any, ...], dict[str, Any]], object],
    after: Callable[[Any], object],
) -> None:
    """Let functions see the calls of a module until :func:`evaluating` ends."""

    def ahead(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before(args, kwargs)

    def behind(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        after(output)

    module.register_forward_pre_hook(ahead, with_kwargs=True, prepend=True)
    module.register_forward_hook(behind)
