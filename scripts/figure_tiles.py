# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the kernels of a product on a GPU, out of what benchmarks/rows_sweep.py measured."""

from __future__ import annotations

from collections.abc import Callable

import results
from results import GPUS, Row, table

BASELINE = "bfloat16"
TILES, GENERIC = "tiles", "generic_tiles"  # families of results: all kernels, and without Hopper's


def best(row: Row) -> str:
    """The fastest of our kernels."""
    times: dict[str, float] = {k: t for k, t in row["microseconds"].items() if k != BASELINE}
    return min(times, key=lambda name: times[name])


def tops(row: Row) -> float:
    """Tera-operations a second of the fastest."""
    operations = 2 * row["m"] * row["n"] * row["k"]
    return float(1e-6 * operations / row["microseconds"][best(row)])


def cell(row: Row, kernel: str) -> str:
    """The time of a kernel, and how many times as long a bfloat16 layer takes."""
    time = row["microseconds"][kernel]
    return f"{time:,.1f} ({row['microseconds'][BASELINE] / time:.2f} ×)"


def by_weight(family: str, kernel_of: Callable[[Row], str]) -> str:
    """A line for each number of rows, a column for each weight."""
    rows = results.report(GPUS, family)["rows"]
    weights = list(dict.fromkeys((row["n"], row["k"]) for row in rows))
    lines = [
        [str(m), *(cell(r, kernel_of(r)) for n, k in weights for r in rows if at(r) == (m, n, k))]
        for m in dict.fromkeys(row["m"] for row in rows)
    ]
    return table(["M", *(f"{n} × {k}" for n, k in weights)], lines)


def at(row: Row) -> tuple[int, int, int]:
    """The sizes of a product."""
    return row["m"], row["n"], row["k"]


def chosen(row: Row) -> str:
    """The kernel that the rule takes."""
    return str(row["chosen"])


def losses() -> list[float]:
    """By how many percent the rule's choice is slower than the fastest, for each product."""
    rows = results.report(GPUS, TILES)["rows"]
    times = [(row["microseconds"][chosen(row)], row["microseconds"][best(row)]) for row in rows]
    return [100 * (ours / least - 1) for ours, least in times]


def tops_of_many_rows() -> str:
    """Tera-operations a second of the generic kernel from 1024 rows on."""
    rows = [row for row in results.report(GPUS, GENERIC)["rows"] if row["m"] >= 1024]
    return results.span(map(tops, rows), ".0f")


FIGURES: dict[str, Callable[[], str]] = {
    "table.generic.gpu": lambda: by_weight(GENERIC, best),
    "table.tiles.gpu": lambda: by_weight(TILES, chosen),
    "tiles.loss": lambda: f"{sum(losses()) / len(losses()):.1f} %",
    "tiles.most": lambda: f"{max(losses()):.0f} %",
    "generic.tops": tops_of_many_rows,
}
