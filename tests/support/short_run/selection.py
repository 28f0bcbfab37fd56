# SPDX-License-Identifier: BSD-3-Clause
"""Which tests are run: those that this machine can run, the short run, or one part of several.

The short run, `-m "not exhaustive"`, takes of each parametrized test a few combinations that hold
every value of every axis at least once (cover.py), for each device alike. All others get the marker
`exhaustive` here. What costs much, marked `inductor`, `process` or `packaging`, is exhaustive too,
unless it is also marked `smoke`. Of a test marked `pairs` also the full run takes but a few. How to
choose, CONTRIBUTING.md says.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import Any

import pytest

from tests.support.short_run.cover import cover

Item = pytest.Item
COSTLY = ("inductor", "process", "packaging")
DEVICES = ("device", "any_device")


def parameters(item: Item) -> dict[str, Any]:
    """The values that a test is called with, by name; not those of its fixtures' own making."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def axes(item: Item) -> list[tuple[str, ...]]:
    """The names that vary together: those of one decorator, of one fixture, of `cover`'s pairs."""
    names = parameters(item).keys() - set(DEVICES)
    found = []
    for mark in item.iter_markers("parametrize"):
        given = mark.args[0] if mark.args else mark.kwargs["argnames"]
        listed = given.replace(",", " ").split() if isinstance(given, str) else given
        found.append(tuple(name for name in listed if name in names))
    alone = names - {name for axis in found for name in axis}
    pairs = [tuple(pair) for mark in item.iter_markers("cover") for pair in mark.args]
    return [axis for axis in found if axis] + [(name,) for name in sorted(alone)] + pairs


def facets(item: Item, name: str) -> Iterable[Hashable] | None:
    """What a value counts for, where it is more than one thing; None where it counts as itself."""
    value = parameters(item)[name]
    for mark in item.iter_markers("cover"):
        if name in mark.kwargs:
            function = mark.kwargs[name]
            return () if function is None else function(value)
    return getattr(value, "facets", None)


def combination(item: Item) -> set[Hashable]:
    """The values of the axes; an object stands for itself, since decorators reuse their objects."""
    values = parameters(item)
    found: set[Hashable] = set()
    for axis in axes(item):
        parts = {name: facets(item, name) for name in axis}
        if all(part is None for part in parts.values()):
            found.add((axis, *(id(values[name]) for name in axis)))
            continue
        for name, part in parts.items():
            found.update((name, f) for f in ([id(values[name])] if part is None else part))
    return found


def is_costly(item: Item) -> bool:
    """Whether a test costs too much for the short run."""
    costly = any(item.get_closest_marker(name) for name in COSTLY)
    return costly and item.get_closest_marker("smoke") is None


def split(items: Iterable[Item], wanted: Callable[[Item], bool]) -> tuple[list[Item], list[Item]]:
    """The items that are wanted, and the others."""
    both: tuple[list[Item], list[Item]] = ([], [])
    for item in items:
        both[not wanted(item)].append(item)
    return both


def pairs_of_values(item: Item) -> set[Hashable]:
    """Every two values that a test is called with."""
    named = [(name, id(value)) for name, value in parameters(item).items()]
    return {*combinations(named, 2)}


def few(items: Iterable[Item], holds: Callable[[Item], set[Hashable]]) -> set[Item]:
    """Of each function, for each device alike, items that together hold what all of them do."""
    functions: dict[tuple[str, Hashable], list[Item]] = {}
    for item in items:
        values = parameters(item)
        device = tuple(values[name] for name in DEVICES if name in values)
        functions.setdefault((item.nodeid.partition("[")[0], device), []).append(item)
    return {same[i] for same in functions.values() for i in cover([holds(item) for item in same])}


def mark_exhaustive(items: Iterable[Item]) -> None:
    """Marks what the short run leaves out."""
    short = [item for item in items if item.get_closest_marker("exhaustive") is None]
    candidates, others = split(short, lambda item: not is_costly(item))
    chosen = few(candidates, combination)
    for item in (*candidates, *others):
        if item not in chosen:
            item.add_marker("exhaustive")


def needs_cuda(item: Item) -> bool:
    """Whether a test runs on CUDA alone."""
    return item.get_closest_marker("cuda") is not None or "cuda" in item.fixturenames


class Selection:
    """The hooks that select.

    Args:
        no_cuda: Why CUDA cannot be tested here; None where it can.
        part: Which part of how many is run.
    """

    def __init__(self, no_cuda: str | None, part: tuple[int, int]) -> None:
        self.no_cuda = no_cuda
        self.part = part
        self.not_collected = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Item]) -> None:
        part, parts = self.part
        found, dropped = list(items), []
        if self.no_cuda:
            # What takes a device was parametrized without CUDA; what takes only CUDA goes here.
            twins = sum("cpu" in map(parameters(item).get, DEVICES) for item in items)
            found, dropped = split(items, lambda item: not needs_cuda(item))
            self.not_collected = len(dropped) + twins
        of_pairs = [item for item in found if item.get_closest_marker("pairs")]
        more, found = split(found, ({*of_pairs} - few(of_pairs, pairs_of_values)).__contains__)
        mark_exhaustive(found)
        # The part, from 1 on, that a test belongs to is the same on every machine.
        items[:], others = split(found, lambda i: zlib.crc32(i.nodeid.encode()) % parts == part - 1)
        config.hook.pytest_deselected(items=dropped + more + others)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["not_collected"] = self.not_collected

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = getattr(node, "workeroutput", {}).get("not_collected", 0)
        self.not_collected = max(self.not_collected, found)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.no_cuda:
            terminalreporter.write_line(
                f"CUDA: {self.no_cuda}, {self.not_collected:,} tests were not collected"
            )
