# SPDX-License-Identifier: BSD-3-Clause
"""Chooses few of many combinations such that every value is chosen at least once."""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence


def cover(combinations: Sequence[Collection[Hashable]]) -> list[int]:
    """Returns positions, in ascending order, of combinations that together hold every value.

    At least one is taken, where there is one. The choice is greedy: next comes the combination with
    the most values that are still missing; among equals the one whose values were taken least, so
    that pairs differ too; among equals again the first. It depends on nothing but the order of the
    combinations.
    """
    rows = [set(combination) for combination in combinations]
    missing = set().union(*rows)
    taken: Counter[Hashable] = Counter()
    left = list(range(len(rows)))
    chosen: list[int] = []
    while missing or (rows and not chosen):
        best = min(left, key=lambda i: (-len(rows[i] & missing), sum(taken[v] for v in rows[i])))
        chosen.append(best)
        left.remove(best)
        missing -= rows[best]
        taken.update(rows[best])
    return sorted(chosen)
