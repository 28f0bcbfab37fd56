# SPDX-License-Identifier: BSD-3-Clause
"""The rows, the table, the verdicts and the plot of models of few bits."""

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from few_bits import FLOAT, METHODS, RECIPE, FewBits
from lm_report import BOX, PASSED, mean_and_deviation

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import ScalarFormatter

ASKED = {4: 0.5, 3: 0.6, 2: 0.75}  # by bits: the share of GPTQ's loss that the recipe regains
LINEAR = 1e-3  # of the loss: below it the axis of the plot is linear, so that it shows gains too


@dataclass(frozen=True)
class FewBitsRow:
    """All seeds of a method at a width.

    Attributes:
        method: Its name.
        bits: Of the weights.
        group: Neighbours in a row of a weight that share a scale.
        seeds: Their number.
        lost: The loss above the float model's of the same seed, which was trained on if this one
            was: mean and sample standard deviation.
        regained: The share of what GPTQ loses that the method does not lose, of the means; None
            where GPTQ loses nothing.
        seconds: From the float checkpoint to the integers: the median over the seeds.
        verdict: Whether the recipe reached what is asked; empty for other methods.
        more: Other figures: mean and deviation of each.
    """

    method: str
    bits: int
    group: int
    seeds: int
    lost: tuple[float, float]
    regained: float | None
    seconds: float
    verdict: str
    more: dict[str, tuple[float, float]]


@contextmanager
def progress_bar(console: Console, steps: int) -> Iterator[Callable[[str, int], None]]:
    """Show a bar of so many steps; what this gives hears what is done, and its steps."""
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=steps)
        yield lambda text, done: progress.update(bar, advance=done, description=text)


def publish(
    found: list[FewBits], about: dict[str, Any], path: Path, loss: str, console: Console
) -> None:
    """Print what was found, and write the JSON and the plot; ``loss`` says what the loss is."""
    rows = summarize_few_bits(found)
    print_few_bits(rows, console)
    for line in conclude_few_bits(rows):
        console.print(line, highlight=False)
    result = {"about": about, "loss": loss, "few_bits_rows": [asdict(row) for row in rows]}
    path.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    plot_few_bits(rows, path.with_suffix(".png"), loss)
    console.print(f"figures and plot: {path}")


def summarize_few_bits(found: list[FewBits]) -> list[FewBitsRow]:
    """Return a row for each method at each width, and the float models' losses are in none."""
    floats = {(one.seed, one.tuned): one.loss for one in found if one.method == FLOAT}
    rows: list[FewBitsRow] = []
    lost_by_gptq: dict[tuple[int, int], float] = {}
    for bits, group in dict.fromkeys((one.bits, one.group) for one in found if one.bits):
        for method in METHODS:
            own = [o for o in found if (o.method, o.bits, o.group) == (method, bits, group)]
            if not own:
                continue
            lost = mean_and_deviation([one.loss - floats[one.seed, one.tuned] for one in own])
            if method == "GPTQ":
                lost_by_gptq[bits, group] = lost[0]
            of = lost_by_gptq.get((bits, group), 0.0)
            regained = 1 - lost[0] / of if of > 0 else None
            verdict = judge(bits, lost[0], regained) if method == RECIPE else ""
            seconds = statistics.median(one.seconds for one in own)
            more = {
                name: mean_and_deviation([one.more[name] for one in own]) for name in own[0].more
            }
            about = len(own), lost, regained, seconds, verdict, more
            rows.append(FewBitsRow(method, bits, group, *about))
    return rows


def judge(bits: int, lost: float, regained: float | None) -> str:
    """Say whether the recipe regains as much of GPTQ's loss as is asked at a width."""
    if regained is None:  # GPTQ loses nothing: neither may the recipe
        return PASSED if lost <= 0 else f"failed: {lost:.5f} lost, where GPTQ loses nothing"
    is_enough = regained >= ASKED[bits]  # NaN fails
    return PASSED if is_enough else f"failed: less than {ASKED[bits]:.0%} of GPTQ's loss regained"


def conclude_few_bits(rows: list[FewBitsRow]) -> list[str]:
    """Return what the rows say, in words."""
    return [
        f"{row.bits} bits in groups of {row.group}, {row.method}: {row.verdict} "
        f"({row.lost[0]:+.5f} ± {row.lost[1]:.5f}"
        f"{'' if row.regained is None else f'; {row.regained:.0%} of what GPTQ loses'})."
        for row in rows
        if row.verdict
    ]


def print_few_bits(rows: list[FewBitsRow], console: Console) -> None:
    """Print a table with a row for each method and a column for each width."""
    if not rows:
        return
    widths = dict.fromkeys((row.bits, row.group) for row in rows)
    cells = {(row.method, row.bits, row.group): row for row in rows}
    table = Table(title="Few bits: loss above float, and seconds", box=BOX)
    table.add_column("method")
    for bits, group in widths:
        table.add_column(f"{bits} bits, {group}", justify="right")
    for method in dict.fromkeys(row.method for row in rows):
        own = [cells.get((method, *width)) for width in widths]
        texts = ("" if one is None else f"{one.lost[0]:+.4f}, {one.seconds:.0f} s" for one in own)
        table.add_row(method, *texts)
    console.print(table)


def plot_few_bits(rows: list[FewBitsRow], path: Path, loss: str) -> None:
    """Draw what is lost over the bits, a line for each method and a panel for each group size.

    ``loss`` says what the loss is.
    """
    groups = sorted({row.group for row in rows})
    figure, axes = plt.subplots(
        1, len(groups), figsize=(6.5 * len(groups), 5), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, group in zip(axes[0], groups, strict=True):
        for method in METHODS:
            own = [row for row in rows if (row.method, row.group) == (method, group)]
            means, deviations = ([row.lost[i] for row in own] for i in (0, 1))
            bits = [row.bits for row in own]
            width = 2.5 if method == RECIPE else 1.2
            axis.errorbar(
                bits, means, deviations, label=method, marker="o", capsize=3, linewidth=width
            )
        axis.set_yscale("symlog", linthresh=LINEAR)
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.axhline(0, color="gray", linewidth=1)
        axis.set_xticks(sorted({row.bits for row in rows}))
        axis.invert_xaxis()
        axis.set_xlabel("bits of a weight")
        axis.set_title(f"groups of {group}")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(f"{loss} above the float model: mean ± deviation")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
