# SPDX-License-Identifier: BSD-3-Clause
"""Runs the sections of a benchmark, and shows its rows: as table, Markdown, JSON and plot."""

import argparse
import gc
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import Row, describe, environment, free_memory

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

Part = Callable[[], Iterator[Row]]

COLUMNS = ("op", "case", "dtype", "shape", "µs", "GB/s", "of copy", "against", "target", "")
PEER_MARKERS = {"PyTorch": "o", "torch.compile": "D"}
PANELS_IN_A_LINE = 3
COLORS = {"float32": "#4c72b0", "bfloat16": "#55a868", "float16": "#c7a252", "float64": "#8172b3"}


def run_sections(
    sections: Iterable[tuple[str, list[Part]]], options: argparse.Namespace, console: Console
) -> list[Row]:
    """Measures section by section; each is printed, and written to the JSON, when it is done.

    Args:
        sections: A title, and functions that yield rows.
        options: ``device``, and the paths ``json``, ``markdown`` and ``plot``, or None.
        console: Where the tables go.
    """
    if not console.is_terminal:
        console = Console(width=170)  # a log file has no width of its own
    start = time.monotonic()
    about = environment(options.device)
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows: list[Row] = []
    for title, parts in sections:
        gc.collect()
        gc.freeze()  # what was imported stays: collections between rows need not walk it
        own = _run_parts(title, parts, options, console)
        gc.unfreeze()
        rows += own
        if own:
            print_table(title, own, console)
        else:
            console.print(f"{title}: nothing measured, the time was used up\n")
        if options.json:
            write_json(rows, about, options.json)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(markdown(rows, about))
    if options.plot:
        plot(rows, about, options.plot)
    seconds = time.monotonic() - start
    console.print(f"{count_verdicts(rows)} {seconds:.0f} s.", highlight=False)
    return rows


def _run_parts(
    title: str, parts: list[Part], options: argparse.Namespace, console: Console
) -> list[Row]:
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        for part in progress.track(parts, description=title):
            try:
                rows.extend(part())
            except Exception as error:  # such as too little memory for the inputs
                rows.append(Row(title, title, "", "", [], error=describe(error)))
            free_memory(options.device)
    return rows


def cells(row: Row) -> tuple[str, ...]:
    """The texts of a row."""
    case = row.case if row.threads is None else f"{row.case}, {_threads(row.threads)}"
    head = (row.op, case, row.dtype, "x".join(map(str, row.shape)))
    target = str(row.target) if row.target else ""
    if row.seconds is None:
        return (*head, "", "", "", row.error or "not measured", target, _verdict(row))
    against = [f"{ratio:.2f}x {name}" for name, ratio in row.speedups.items()]
    against += [f"{name} failed" for name in row.peer_errors]
    return (
        *head,
        f"{row.seconds * 1e6:,.1f}",
        f"{row.gbps:,.0f}" if row.gbps else "",
        f"{row.of_copy:.1%}" if row.of_copy else "",
        ", ".join(against),
        target,
        _verdict(row),
    )


def print_table(title: str, rows: list[Row], console: Console) -> None:
    """Prints rows, verdicts in colour."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("µs", "GB/s", "of copy") else "left")
    colors = {"met": "green", "missed": "red", "error": "red", "": ""}
    for row in rows:
        *texts, verdict = cells(row)
        color = colors[verdict]
        table.add_row(*texts, f"[{color}]{verdict}" if color else "")
    console.print(table)


def markdown(rows: list[Row], about: dict[str, Any]) -> str:
    """A table for documentation, under a line that names the machine and the versions."""
    lines = [
        ", ".join(f"{name} {value}" for name, value in about.items()),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join("---" for _ in COLUMNS) + "|",
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def count_verdicts(rows: list[Row]) -> str:
    """How many targets are met, in a sentence."""
    judged = [row for row in rows if row.target is not None]
    met = sum(row.met is True for row in judged)
    failed = sum(row.error is not None for row in rows)
    return f"{met} of {len(judged)} targets met; {failed} of {len(rows)} rows failed."


def write_json(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Writes all rows and the environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"environment": about, "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(report, indent=1) + "\n")


def plot(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Draws a panel for each op: bars in percent of the copy, target as a line, peers as marks.

    Only the largest shape is drawn, with all threads: that is where bandwidth is the bound.
    """
    drawn: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (math.prod(row.shape), row.threads or 0)):
        if row.of_copy is not None:
            drawn[row.what, row.op, row.case, row.dtype] = row
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if drawn.get((row.what, row.op, row.case, row.dtype)) is row:
            panels.setdefault((row.what, row.op), []).append(row)
    if not panels:
        return
    lines = math.ceil(len(panels) / PANELS_IN_A_LINE)
    size = (4.6 * PANELS_IN_A_LINE, 0.5 + 3.4 * lines)
    figure, grid = plt.subplots(lines, PANELS_IN_A_LINE, figsize=size, squeeze=False)
    axes = list(grid.flat)
    for axis, ((what, op), own) in zip(axes, panels.items(), strict=False):
        _plot_panel(axis, own)
        axis.set_title(f"{op}\n{what}: % of a copy's bytes per second", fontsize="small")
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(f"{about['device']}, torch {about['torch']}", fontsize="medium")
    _legend(figure, list(drawn.values()))
    figure.tight_layout(rect=(0, 0.3 / size[1], 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, format="png")
    plt.close(figure)


def _plot_panel(axis: Any, rows: list[Row]) -> None:
    cases = list(dict.fromkeys(row.case for row in rows))
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    height = 0.8 / len(dtypes)
    for row in rows:
        assert row.of_copy is not None
        place = cases.index(row.case) + (dtypes.index(row.dtype) - (len(dtypes) - 1) / 2) * height
        percent = 100 * row.of_copy
        axis.barh(place, percent, height, color=COLORS.get(row.dtype, "#999999"))
        axis.text(percent, place, f" {percent:.0f}", va="center", fontsize=6)
        for name, ratio in row.speedups.items():
            axis.plot(percent / ratio, place, PEER_MARKERS.get(name, "s"), color="k", markersize=3)
        if row.target is not None and row.reached:
            line = percent * row.target.at_least / row.reached
            axis.plot([line] * 2, [place - height / 2, place + height / 2], color="crimson")
    axis.set_yticks(range(len(cases)), cases, fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylim(len(cases) - 0.5, -0.5)
    axis.set_xlim(0, max(110, *(110 * (row.of_copy or 0) for row in rows)))


def _legend(figure: Any, rows: list[Row]) -> None:
    handles: list[Any] = [
        Patch(color=COLORS.get(dtype, "#999999"), label=dtype)
        for dtype in dict.fromkeys(row.dtype for row in rows)
    ]
    for name in sorted({name for row in rows for name in row.speedups}):
        marker = PEER_MARKERS.get(name, "s")
        handles.append(Line2D([], [], color="k", marker=marker, linestyle="", label=name))
    if any(row.target is not None for row in rows):
        handles.append(Line2D([], [], color="crimson", label="target"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize="small")


def _verdict(row: Row) -> str:
    if row.error is not None:
        return "error"
    return {True: "met", False: "missed", None: ""}[row.met]


def _threads(count: int) -> str:
    return f"{count} thread" + ("s" if count > 1 else "")
