# SPDX-License-Identifier: BSD-3-Clause
"""Picks one option for each group so that the summed error is the least within a budget of bytes.

This is the multiple-choice knapsack problem. Its linear relaxation follows the lower convex hull
of each group's options, the steepest step of any group first (Sinha and Zoltners, 1979). It gives
a first solution and a lower bound. Then dynamic programming goes through the groups and keeps the
partial solutions that no other one beats in both bytes and error (Nemhauser and Ullmann, 1969),
without those whose lower bound is no better than the first solution. If more remain than there is
room for, those with the least bounds are kept, and the least of the others bounds the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Option = tuple[int, float]  # bytes, error

_WORK = 2_000_000  # partial solutions of all groups together
_MOST, _LEAST = 1 << 16, 1 << 8  # partial solutions of a group
_ROUNDING = 1e-12  # the relative error of sums


class Solution(NamedTuple):
    """What was picked.

    Attributes:
        picks: The index of each group's option.
        bytes: Their sum.
        error: The sum of their errors.
        bound: No choice within the budget has a smaller error, but for the rounding of sums.
    """

    picks: list[int]
    bytes: int
    error: float
    bound: float


class _Step(NamedTuple):
    """A step along the hull of a group, from one option to a larger one with a smaller error."""

    slope: float  # error per byte, < 0
    group: int
    bytes: int
    error: float
    pick: int


def least_bytes(groups: Sequence[Sequence[Option]]) -> int:
    """Return the bytes of the smallest options together."""
    return sum(min(size for size, _ in options) for options in groups)


def solve(groups: Sequence[Sequence[Option]], budget: int, work: int = _WORK) -> Solution:
    """Return the options with the least summed error.

    Args:
        groups: The options of each group: bytes >= 0, and a finite error >= 0.
        budget: The bytes of all picked options together; at least :func:`least_bytes`.
        work: A limit on the partial solutions. Up to it the result is exact.
    """
    if not groups:
        return Solution([], 0, 0.0, 0.0)
    fronts = [_front(options) for options in groups]
    steps = sorted(step for group, front in enumerate(fronts) for step in _hull(group, front))
    best = _greedy(fronts, steps, budget)
    improved, bound = _improved(fronts, steps, budget, best, work)
    picks = [fronts[group][pick][0] for group, pick in enumerate(improved)]
    chosen = [groups[group][pick] for group, pick in enumerate(picks)]
    error = math.fsum(error for _, error in chosen)
    is_best = bound >= error * (1 - _ROUNDING)
    return Solution(picks, sum(size for size, _ in chosen), error, error if is_best else bound)


def _front(options: Sequence[Option]) -> list[tuple[int, int, float]]:
    """Return (index, bytes, error) of the options that none beats in both, the smallest first."""
    front: list[tuple[int, int, float]] = []
    order = sorted(range(len(options)), key=lambda index: (*options[index], index))
    for index in order:
        size, error = options[index]
        if not front or error < front[-1][2]:
            front.append((index, size, error))
    return front


def _hull(group: int, front: list[tuple[int, int, float]]) -> list[_Step]:
    """Return the steps along the lower convex hull of a group's options."""
    steps: list[_Step] = []
    here = 0
    while here < len(front) - 1:
        _, size, error = front[here]
        there = min(
            range(here + 1, len(front)),
            key=lambda index: ((front[index][2] - error) / (front[index][1] - size), -index),
        )
        gained, lost = front[there][1] - size, front[there][2] - error
        steps.append(_Step(lost / gained, group, gained, lost, there))
        here = there
    return steps


def _greedy(
    fronts: list[list[tuple[int, int, float]]], steps: list[_Step], budget: int
) -> list[int]:
    """Return indices in the fronts: take each step that fits, the steepest first."""
    picks = [0] * len(fronts)
    left = budget - sum(front[0][1] for front in fronts)
    closed: set[int] = set()
    for step in steps:
        if step.group in closed:
            continue
        if step.bytes <= left:
            picks[step.group], left = step.pick, left - step.bytes
        else:
            closed.add(step.group)  # its later steps start where this one ends
    return picks


class _Relaxed:
    """The least error of the groups that remain if options may be mixed, for any budget.

    The steps are those along all hulls, the steepest first. The groups leave in the given order.
    """

    def __init__(
        self, fronts: list[list[tuple[int, int, float]]], steps: list[_Step], order: list[int]
    ) -> None:
        self._groups = torch.tensor([step.group for step in steps], dtype=torch.int64)
        self._bytes = torch.tensor([step.bytes for step in steps], dtype=torch.int64)
        self._errors = torch.tensor([step.error for step in steps], dtype=torch.float64)
        self._slopes = torch.tensor([step.slope for step in steps], dtype=torch.float64)
        least, most = [0], [0.0]  # of the last groups of the order
        for group in reversed(order):
            least.append(least[-1] + fronts[group][0][1])
            most.append(most[-1] + fronts[group][0][2])
        self._least, self._most = least, most

    @property
    def least(self) -> int:
        """The bytes of the smallest options of the groups that remain."""
        return self._least[-1]

    def leave(self, group: int) -> None:
        """Remove the next group of the order."""
        self._least.pop()
        self._most.pop()
        remains = self._groups != group
        self._groups, self._bytes = self._groups[remains], self._bytes[remains]
        self._errors, self._slopes = self._errors[remains], self._slopes[remains]

    def error(self, budget: Tensor) -> Tensor:
        """Return the error for budgets of at least ``least`` bytes, int64 ``[S]``."""
        ends = torch.nn.functional.pad(self._bytes.cumsum(0), (1, 0))
        gained = torch.nn.functional.pad(self._errors.cumsum(0), (1, 0))
        slopes = torch.nn.functional.pad(self._slopes, (0, 1))
        room = budget - self.least
        index = torch.searchsorted(ends, room, right=True) - 1
        rest = (room - ends[index]) * slopes[index]
        return (self._most[-1] + gained[index] + rest).clamp(min=0.0)


def _improved(
    fronts: list[list[tuple[int, int, float]]],
    steps: list[_Step],
    budget: int,
    known: list[int],
    work: int,
) -> tuple[list[int], float]:
    """Return the best picks, and a lower bound of the error of any picks.

    Groups with the widest choice come first, so that the rest is estimated well.
    """
    room = min(_MOST, max(_LEAST, work // len(fronts)))
    order = sorted(range(len(fronts)), key=lambda g: (fronts[g][0][1] - fronts[g][-1][1], g))
    best = math.fsum(front[pick][2] for front, pick in zip(fronts, known, strict=True))
    bound = best
    sizes = torch.zeros(1, dtype=torch.int64)
    errors = torch.zeros(1, dtype=torch.float64)
    history: list[tuple[Tensor, Tensor]] = []
    rest = _Relaxed(fronts, steps, order)
    for group in order:
        rest.leave(group)
        front = fronts[group]
        more = torch.tensor([size for _, size, _ in front])
        lost = torch.tensor([error for _, _, error in front], dtype=torch.float64)
        tried, total = (sizes[:, None] + more).reshape(-1), (errors[:, None] + lost).reshape(-1)
        index = torch.nonzero(tried + rest.least <= budget)[:, 0]
        estimate = total[index] + rest.error(budget - tried[index])
        is_hopeful = estimate < best
        index, estimate = index[is_hopeful], estimate[is_hopeful]
        index, estimate = _unbeaten(tried, total, index, estimate)
        if len(index) > room:
            ranks = torch.sort(estimate, stable=True).indices
            bound = min(bound, float(estimate[ranks[room]]))
            index = index[ranks[:room].sort().values]
        if len(index) == 0:
            return known, bound
        history.append((index // len(front), index % len(front)))
        sizes, errors = tried[index], total[index]
    state = int(errors.argmin())
    bound = min(bound, float(errors[state]))
    picks = list(known)
    for group, (before, pick) in zip(reversed(order), reversed(history), strict=True):
        picks[group], state = int(pick[state]), int(before[state])
    return picks, bound


def _unbeaten(
    sizes: Tensor, errors: Tensor, index: Tensor, estimate: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the partial solutions that no other one beats in both ways, the smallest first."""
    if len(index) == 0:
        return index, estimate
    by_error = torch.sort(errors[index], stable=True).indices
    ranks = by_error[torch.sort(sizes[index][by_error], stable=True).indices]
    index, estimate = index[ranks], estimate[ranks]
    sorted_errors = errors[index]
    least = torch.cummin(sorted_errors, 0).values
    is_better = torch.ones(len(index), dtype=torch.bool)
    is_better[1:] = sorted_errors[1:] < least[:-1]
    return index[is_better], estimate[is_better]
