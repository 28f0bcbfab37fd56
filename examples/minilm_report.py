# SPDX-License-Identifier: BSD-3-Clause
"""The rows, the table, the plot and the conclusion of ``smoothquant_minilm.py``."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from minilm_speed import Speed

matplotlib.use("Agg")
from matplotlib import pyplot as plt

RESAMPLES = 20_000
BOX = box.SIMPLE_HEAD


@dataclass(frozen=True)
class Row:
    """What was measured of one encoder.

    Attributes:
        name: The scheme.
        cosine: Mean cosine similarity to the float embeddings.
        least_cosine: The least of them.
        retrieval: Percent of questions that find their own answer first.
        change: By how many points that differs from the float model's.
        interval: Where that change lies with 95 % confidence (paired bootstrap).
        file_bytes: Size on disk.
        speeds: By batch, such as ``32 x 64`` for 32 sentences of 64 tokens.
        compiled: The same for ``torch.compile`` of each model, the first one's included.
    """

    name: str
    cosine: float
    least_cosine: float
    retrieval: float
    change: float
    interval: tuple[float, float]
    file_bytes: int
    speeds: dict[str, Speed] = field(default_factory=dict)
    compiled: dict[str, Speed] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Return all as plain data."""
        return asdict(self)


def interval(found: Any, found_by_float: Any) -> tuple[float, float]:
    """Return where the change of the retrieval lies with 95 % confidence, in points.

    The paired bootstrap: passages are drawn again and again, each with what both models made of it.

    Args:
        found: Whether each question finds its answer, bool ``[passages]``.
        found_by_float: The same of the float model.
    """
    gained = int((found & ~found_by_float).sum())
    lost = int((~found & found_by_float).sum())
    count = len(found)
    # All that a resample keeps of the passages is how many of each kind it has.
    shares = [gained / count, lost / count, (count - gained - lost) / count]
    drawn = np.random.default_rng(0).multinomial(count, shares, size=RESAMPLES)
    low, high = np.quantile(100 * (drawn[:, 0] - drawn[:, 1]) / count, [0.025, 0.975])
    return float(low), float(high)


def _columns(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of the table."""
    batches, compiled = list(rows[0].speeds), list(rows[0].compiled)
    headings = ["", "cosine", "least", "retrieval", "change (95 %)", "MB", "smaller"]
    headings += [f"{batch}, ms" if batch == "1 x 64" else f"{batch}, /s" for batch in batches]
    headings += [f"{batch}, faster" for batch in batches if batch != "1 x 64"]
    headings += [f"{batch}, faster, both compiled" for batch in compiled]
    base, cells = rows[0], []
    for row in rows:
        low, high = row.interval
        line = [row.name, f"{row.cosine:.4f}", f"{row.least_cosine:.3f}", f"{row.retrieval:.1f} %"]
        line += ["" if row is base else f"{row.change:+.1f} ({low:+.1f} to {high:+.1f})"]
        line += [f"{row.file_bytes / 1e6:.1f}", f"{base.file_bytes / row.file_bytes:.2f} x"]
        for batch, speed in row.speeds.items():
            size = int(batch.split()[0])
            is_one = batch == "1 x 64"
            line.append(f"{1e3 * speed.seconds:.2f}" if is_one else f"{size / speed.seconds:.0f}")
        line += [f"{s.faster:.2f} x" for b, s in row.speeds.items() if b != "1 x 64"]
        line += [f"{row.compiled[b].faster:.2f} x" if b in row.compiled else "" for b in compiled]
        cells.append(line)
    return headings, cells


def print_table(rows: list[Row], console: Console) -> None:
    """Print all rows; sizes and speeds beside those of the first, the float model."""
    headings, cells = _columns(rows)
    table = Table(box=BOX, padding=(0, 1, 0, 0))
    for name in headings:
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=name == "")
    for line in cells:
        table.add_row(*line)
    console.print(table)


def markdown(rows: list[Row], about: dict[str, Any]) -> str:
    """Return the table and the conclusion as Markdown."""
    headings, cells = _columns(rows)
    lines = [
        ", ".join(f"{key} {value}" for key, value in about.items() if key != "arguments"),
        "",
        "| " + " | ".join(headings) + " |",
        "|---" + "|--:" * (len(headings) - 1) + "|",
        *("| " + " | ".join(line) + " |" for line in cells),
        "",
        *conclude(rows),
    ]
    return "\n".join(lines) + "\n"


def conclude(rows: list[Row]) -> list[str]:
    """Return what the figures say, in words."""
    base, by_name = rows[0], {row.name: row for row in rows}
    eight = [row for row in rows[1:] if "8" in row.name or "Smooth" in row.name]
    eight = [row for row in eight if not row.name.startswith("W4")]
    best = max(eight, key=lambda row: row.cosine)
    low, high = best.interval
    lines = [
        f"Of the eight-bit schemes {best.name} is nearest to the float model: cosine "
        f"{best.cosine:.4f}, retrieval {best.change:+.1f} points (95 %: {low:+.1f} to "
        f"{high:+.1f}), {base.file_bytes / best.file_bytes:.2f} times smaller."
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
    """Draw how far each encoder is from the float one, its retrieval, and its speed."""
    base, others = rows[0], rows[1:]
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(14, 0.42 * len(others) + 1.8), sharey=True
    )
    names = [row.name for row in others]
    left.barh(names, [1 - row.cosine for row in others], color="tab:blue")
    left.set_xscale("log")
    left.set_xlabel("1 - cosine similarity to the\nfloat embeddings (shorter is better)")
    left.invert_yaxis()
    changes = [row.change for row in others]
    spread = [
        [r.change - r.interval[0] for r in others],
        [r.interval[1] - r.change for r in others],
    ]
    middle.errorbar(changes, names, xerr=spread, fmt="o", color="tab:green", capsize=3)
    middle.axvline(0, color="black", linestyle="--", linewidth=1)
    middle.set_xlabel(
        f"change of retrieval, points, 95 % interval\n(float: {base.retrieval:.1f} %)"
    )
    batch = next((b for b in base.speeds if b.startswith("32")), None)
    if batch is not None:
        speeds = [row.speeds[batch] for row in others]
        errors = [
            [s.faster - s.spread[0] for s in speeds],
            [s.spread[1] - s.faster for s in speeds],
        ]
        right.barh(names, [s.faster for s in speeds], xerr=errors, color="tab:orange", capsize=3)
        right.axvline(1, color="black", linestyle="--", linewidth=1)
    right.set_xlabel(f"times as fast as float32,\nbatch of {batch} tokens")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
