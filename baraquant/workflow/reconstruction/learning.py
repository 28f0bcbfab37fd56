# SPDX-License-Identifier: BSD-3-Clause
"""Learns one block: a step for each batch, and the better of the start and the end is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...nn.shared.precision import wide
from ..transaction import undo_by
from .learned_parameter import LearnedParameter
from .not_learned import NotLearnedError
from .streams import Streams


@dataclass(frozen=True)
class Learning:
    """How blocks learn.

    Attributes:
        steps: The steps of each block.
        lr: The learning rate of the first step; it falls linearly to 0.
        seed: What the order of the batches follows from.
    """

    steps: int
    lr: float
    seed: int

    def learn(
        self,
        streams: Streams,
        index: int,
        block: nn.Module,
        learned: Sequence[LearnedParameter],
        advance: Callable[[], object],
    ) -> tuple[float, float]:
        """Let a block learn, and move its outputs on; return its errors before and after.

        Raises:
            NotLearnedError: Its gradient cannot be computed; it is as before.
        """
        before = streams.error(index)
        try:
            with streams.replaying(block):
                _require_gradients(block, learned)
                for step, number in enumerate(self._order(index, len(streams))):
                    self._step(streams, index, number, learned, self.lr * (1 - step / self.steps))
                    advance()
        except NotLearnedError:
            _restore(learned)
            raise
        after = streams.error(index, moves_on=True)
        if after < before:
            return before, after
        _restore(learned)
        return before, streams.error(index, moves_on=True)

    def _order(self, index: int, count: int) -> Iterator[int]:
        """Return which batch each step takes: all of them in turn, in another order each time."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        orders = [
            torch.randperm(count, generator=generator) for _ in range(-(-self.steps // count))
        ]
        return iter(torch.cat([*orders, torch.empty(0, dtype=torch.int64)])[: self.steps].tolist())

    @staticmethod
    def _step(
        streams: Streams, index: int, number: int, learned: Sequence[LearnedParameter], lr: float
    ) -> None:
        with torch.enable_grad():
            output, target = streams.call(index, number)
            # A sum, so that the gradients of a float16 output do not vanish.
            loss = (wide(output) - wide(target)).square().sum() / _mean_square(target)
        if not loss.requires_grad:
            return
        parameters = [one.parameter for one in learned]
        try:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            reason = "its call overwrites what its gradient needs"
            raise NotLearnedError(reason) from error
        for one, gradient in zip(learned, gradients, strict=True):
            if gradient is not None:
                one.move(gradient, lr)


def _mean_square(target: Tensor) -> Tensor:
    return wide(target).square().mean().clamp_min(torch.finfo(torch.float32).tiny)


def _restore(learned: Sequence[LearnedParameter]) -> None:
    for one in learned:
        one.restore()


def _require_gradients(block: nn.Module, learned: Sequence[LearnedParameter]) -> None:
    """Let what is learned alone require a gradient, until :func:`evaluating` ends."""
    own = {id(one.parameter) for one in learned}
    for parameter in block.parameters():
        undo_by(parameter.requires_grad_, parameter.requires_grad)
        parameter.requires_grad_(id(parameter) in own)
