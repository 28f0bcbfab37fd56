# SPDX-License-Identifier: BSD-3-Clause
"""The two streams that go through the blocks: of the float model, and of the quantized one.

Of each run of the model they hold what the next block is called with, and the output that it should
have: that of the float block, called with what the float blocks before it give. The quantized
stream is what the blocks before it give after they were reconstructed ("QDrop", Wei et al. 2022,
without the dropping). Where all arguments of a block come from blocks before it, or are known, the
streams move on block by block. Otherwise the model runs again, once floating and once quantized.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...nn.shared.precision import wide
from ..calibration.run import State, evaluating
from .batch_cache import BatchCache, Item, is_plain
from .calls import Block, Form, Source, hidden_of, mark_of, watch_calls
from .float_values import FloatValues
from .not_learned import NotLearnedError

# How far a float block may be from what the model gave in its first run, relative; a GPU adds in
# any order.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass
class _RunState:
    """What is known of one run of the model: values by their sources, in both streams."""

    floats: dict[Source, Item] = field(default_factory=dict)
    quantized: dict[Source, Item] = field(default_factory=dict)
    form: Form | None = None  # of the current block
    target: Item | None = None  # the float output of the current block


class Streams:
    """The inputs and the wanted outputs of one block after the other.

    Args:
        model: The prepared model.
        blocks: The blocks in their order, those too that are not reconstructed.
        cache: Where values are kept.
        floats: What lets a block compute in floating point.
        run: Runs the model on the data, and yields after each batch.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[Block],
        cache: BatchCache,
        floats: FloatValues,
        run: Callable[[], Iterator[None]],
    ) -> None:
        self._model, self._blocks, self._cache = model, blocks, cache
        self._floats, self._run = floats, run
        self._runs: list[_RunState] = []
        self._state: State | None = None  # of the block that is replayed, before each call
        self._needed = [set() if b.form is None else b.form.needed() for b in blocks]

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._runs)

    def enter(self, index: int) -> None:
        """Make the inputs and targets of a block ready.

        Raises:
            NotLearnedError: A call of the block alone has other outputs than within the model.
        """
        block = self._blocks[index]
        known = set(self._runs[0].quantized) if self._runs else set()
        is_known = block.form is not None and self._needed[index] <= known
        if is_known and self._repeat(block):
            return
        self._capture(index)
        if not self._is_repeated(block):
            raise NotLearnedError("a second call with the same inputs has other outputs")

    def _repeat(self, block: Block) -> bool:
        """Compute the targets by the float block; whether they are those of the float model."""
        with self.replaying(block.module), self._floating(block.module):
            for number, run in enumerate(self._runs):
                run.form = block.form
                target = hidden_of(self._call(block, run, run.floats))
                if number == 0 and not _is_near(target, block.check):
                    return False
                self._set_target(run, target)
        return True

    def _is_repeated(self, block: Block) -> bool:
        with self.replaying(block.module), self._floating(block.module):
            run = self._runs[0]
            assert run.target is not None
            got = hidden_of(self._call(block, run, run.floats))
            return _is_near(got, mark_of(self._cache.get(run.target)))

    @contextmanager
    def replaying(self, module: nn.Module) -> Iterator[None]:
        """Let a block be called; each call starts from what the block holds now."""
        with evaluating(module):
            self._state = State([module])
            try:
                yield
            finally:
                self._state = None

    @contextmanager
    def _floating(self, module: nn.Module) -> Iterator[None]:
        """Let each call compute in floating point."""
        with self._floats.within(module):
            self._state = State([module])  # with the switches of floating point
            yield

    def _capture(self, index: int) -> None:
        """Run the model for what the block is called with, and for its float output."""
        is_new = not self._runs
        self._watch(index, is_float=True, is_new=is_new)
        self._watch(index, is_float=False, is_new=False)

    def _watch(self, index: int, *, is_float: bool, is_new: bool) -> None:
        """Run the model once, floating or quantized; it is new if its runs are not known yet."""
        calls, returned = itertools.count(), 0

        def before(args: Any, kwargs: Any) -> None:
            number = next(calls)
            if is_new:
                self._runs.append(_RunState())
            if number == len(self._runs):
                raise ValueError(_UNLIKE)
            self._note(index, self._runs[number], is_float, args, kwargs)

        def after(output: Any) -> None:
            nonlocal returned
            if is_float:
                self._set_target(self._runs[returned], hidden_of(output))
            returned += 1

        within = self._floats.within(self._model) if is_float else nullcontext()
        with evaluating(self._model), within:
            watch_calls(self._blocks[index].module, before, after)
            for _ in self._run():
                pass
        if returned != len(self._runs):
            raise ValueError(_UNLIKE)

    def _note(self, index: int, run: _RunState, is_float: bool, args: Any, kwargs: Any) -> None:
        """Keep the arguments of a call."""
        regular = self._blocks[index].form
        leaves, spec = tree_flatten((args, kwargs))
        form = Form(spec, [], [])
        for position, leaf in enumerate(leaves):
            is_value = is_plain(leaf)
            form.values.append(leaf if is_value else None)
            own = (index, position)
            if regular is not None and regular.spec == spec:
                own = regular.sources[position] or own
            form.sources.append(None if is_value else own)
        if not is_float and run.form is not None and run.form.spec != spec:
            raise ValueError(_UNLIKE)
        run.form = form
        values = run.floats if is_float else run.quantized
        for source, leaf in zip(form.sources, leaves, strict=True):
            if source is not None:
                self._set(values, source, leaf)

    def _set(self, values: dict[Source, Item], source: Source, value: Any) -> None:
        if source in values:
            self._cache.drop(values[source])
        values[source] = self._cache.put(value)

    def _set_target(self, run: _RunState, target: Tensor | None) -> None:
        if run.target is not None:
            self._cache.drop(run.target)
        run.target = self._cache.put(target)

    def _call(self, block: Block, run: _RunState, values: dict[Source, Item]) -> Any:
        form = run.form
        assert form is not None
        pairs = zip(form.values, form.sources, strict=True)
        leaves = [v if s is None else self._cache.get(values[s]) for v, s in pairs]
        args, kwargs = tree_unflatten(leaves, form.spec)
        if self._state is not None:
            self._state.restore()
        return block.module(*args, **kwargs)

    def call(self, index: int, number: int) -> tuple[Tensor, Tensor]:
        """Call the quantized block; return its output in a run of the model, and the wanted one."""
        run = self._runs[number]
        assert run.target is not None
        output = hidden_of(self._call(self._blocks[index], run, run.quantized))
        assert output is not None
        return output, self._cache.get(run.target)

    def error(self, index: int, *, moves_on: bool = False) -> float:
        """Return the squared error of a block's outputs relative to the square of the wanted ones.

        Args:
            index: The block's.
            moves_on: Whether to keep the outputs, for the blocks that come next.
        """
        moves_on = moves_on and any((index, -1) in needed for needed in self._needed[index + 1 :])
        errors: list[Tensor] = []
        with self.replaying(self._blocks[index].module):
            for number, run in enumerate(self._runs):
                output, target = self.call(index, number)
                difference = _square(wide(output) - wide(target))
                errors.append(torch.stack([difference, _square(wide(target))]).cpu())
                if moves_on:
                    self._set(run.quantized, (index, -1), output)
        error, square = torch.stack(errors).sum(0).tolist()
        return 0.0 if error == 0 else error / square if square else float("inf")

    def leave(self, index: int) -> None:
        """Move on to the next block: the targets are its float inputs; drop what no block needs."""
        later = set().union(*self._needed[index + 1 :])
        for run in self._runs:
            assert run.target is not None
            if (index, -1) in run.quantized:
                run.floats[index, -1] = run.target
            else:
                self._cache.drop(run.target)
            run.target = None
            for values in (run.floats, run.quantized):
                for source in [one for one in values if one not in later]:
                    self._cache.drop(values.pop(source))


_UNLIKE = (
    "baraquant.reconstruct_: expected calibration that runs the model in the same way each time, "
    "but it called a block more or less often, or otherwise, than before"
)


def _square(values: Tensor) -> Tensor:
    """Return the sum of the squares."""
    return values.square().sum(dtype=torch.float64)


def _is_near(output: Tensor | None, mark: Tensor | None) -> bool:
    if output is None or mark is None:
        return False
    got, size = mark_of(output), mark_of(output.abs())
    tolerance = _TOLERANCE.get(output.dtype, 1e-2)
    return bool((got - mark.to(got.device)).abs() <= tolerance * size)
