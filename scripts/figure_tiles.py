# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the kernels of a product on a GPU, out of what benchmarks/rows_sweep.py measured."""

from __future__ import annotations

from collections.abc import Callable

import results
from results import Row, table

GPUS = ("h100", "h200")  # the newest result of either counts
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


def cell(row: Row) -> str:
    """The time of the fastest, and how many times as long a bfloat16 layer takes."""
    time = row["microseconds"][best(row)]
    return f"{time:,.1f} ({row['microseconds'][BASELINE] / time:.2f} ×)"


def fastest(family: str) -> str:
    """A line for each number of rows, a column for each weight."""
    rows = results.report(GPUS, family)["rows"]
    weights = list(dict.fromkeys((row["n"], row["k"]) for row in rows))
    lines = [
        [str(m), *(cell(row) for n, k in weights for row in rows if at(row) == (m, n, k))]
        for m in dict.fromkeys(row["m"] for row in rows)
    ]
    return table(["M", *(f"{n} × {k}" for n, k in weights)], lines)


def at(row: Row) -> tuple[int, int, int]:
    """The sizes of a product."""
    return row["m"], row["n"], row["k"]


def large_tile() -> str:
    """Microseconds of the two largest of Hopper's tiles, for many rows."""
    names = ("hopper_128x128x128_pingpong_cluster2x1", "hopper_256x128x128_cooperative")
    lines = []
    for row in results.report(GPUS, TILES)["rows"]:
        times = [row["microseconds"].get(name) for name in names]
        if row["m"] < 512 or None in times:
            continue
        place = [str(row["m"]), f"{row['n']} × {row['k']}"]
        lines.append([*place, *(f"{time:,.1f}" for time in times), f"{tops(row):,.0f}"])
    return table(["M", "N × K", "128 × 128", "256 × 128", "TOPS of the faster"], lines)


def tops_of_many_rows() -> str:
    """Tera-operations a second of the generic kernel from 1024 rows on."""
    rows = [row for row in results.report(GPUS, GENERIC)["rows"] if row["m"] >= 1024]
    return results.span(map(tops, rows), ".0f")


FIGURES: dict[str, Callable[[], str]] = {
    "table.generic.gpu": lambda: fastest(GENERIC),
    "table.tiles.gpu": large_tile,
    "generic.tops": tops_of_many_rows,
}
