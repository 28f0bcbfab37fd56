# SPDX-License-Identifier: BSD-3-Clause
"""The table, the plot and the conclusion of ``smoothquant_minilm.py``."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@dataclass(frozen=True)
class Row:
    """What was measured of one encoder.

    Attributes:
        name: The scheme.
        cosine: Mean cosine similarity to the float embeddings.
        least_cosine: The least of them.
        retrieval: Percent of questions that find their own answer first.
        file_bytes: Size on disk.
        latency_ms: One sentence of 64 tokens.
        throughput: Sentences of 64 tokens in a second, in batches.
    """

    name: str
    cosine: float
    least_cosine: float
    retrieval: float
    file_bytes: int
    latency_ms: float
    throughput: float

    def figures(self) -> dict[str, Any]:
        """Return all as plain data."""
        return asdict(self)


def print_table(rows: list[Row], console: Console) -> None:
    """Print all rows; sizes and speeds beside those of the first, the float model."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in (
        "",
        "cosine",
        "least",
        "retrieval",
        "MB",
        "smaller",
        "ms",
        "sentences/s",
        "faster",
    ):
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=True)
    base = rows[0]
    for row in rows:
        table.add_row(
            row.name,
            f"{row.cosine:.4f}",
            f"{row.least_cosine:.4f}",
            f"{row.retrieval:.1f} %",
            f"{row.file_bytes / 1e6:.1f}",
            f"{base.file_bytes / row.file_bytes:.2f} x",
            f"{row.latency_ms:.2f}",
            f"{row.throughput:.0f}",
            f"{row.throughput / base.throughput:.2f} x",
        )
    console.print(table)


def conclude(rows: list[Row]) -> list[str]:
    """Return what the figures say, in words."""
    base, by_name = rows[0], {row.name: row for row in rows}
    eight = [row for row in rows[1:] if not row.name.startswith("W4")]
    best = max(eight, key=lambda row: row.cosine)
    lines = [
        f"Of the eight-bit schemes {best.name} is nearest to the float model: cosine "
        f"{best.cosine:.4f}, retrieval {best.retrieval - base.retrieval:+.1f} points, "
        f"{base.file_bytes / best.file_bytes:.2f} times smaller."
    ]
    if {"W4A8", "W4A8, trained"} <= by_name.keys():
        plain, trained = by_name["W4A8"], by_name["W4A8, trained"]
        lines.append(
            f"Training moves four-bit weights from cosine {plain.cosine:.4f} to "
            f"{trained.cosine:.4f}, and retrieval from {plain.retrieval:.1f} % to "
            f"{trained.retrieval:.1f} % (float: {base.retrieval:.1f} %)."
        )
    return lines


def plot(rows: list[Row], path: Path) -> None:
    """Draw how far each encoder is from the float one, and its retrieval."""
    base, others = rows[0], rows[1:]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.45 * len(others) + 1.8), sharey=True)
    names = [row.name for row in others]
    left.barh(names, [1 - row.cosine for row in others], color="tab:blue")
    left.set_xscale("log")
    left.set_xlabel("1 - cosine similarity to the float embeddings (shorter is better)")
    left.invert_yaxis()
    right.barh(names, [row.retrieval for row in others], color="tab:green")
    right.axvline(base.retrieval, color="black", linestyle="--", label="float32")
    right.set_xlabel("retrieval, percent")
    right.set_xlim(left=0)
    right.legend(loc="lower left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
