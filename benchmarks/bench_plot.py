# SPDX-License-Identifier: BSD-3-Clause
"""Plots of rows: in percent of the copy, or for products in operations per second."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.bench_row import Row, TakesAtMost, Target

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

Panels = dict[tuple[str, ...], list[Row]]
Plot = Callable[[list[Row], dict[str, Any], Path], None]

PEER_MARKERS = {"PyTorch": "o", "torch.compile": "D", "fused_moving_avg_obs_fake_quant": "^"}
COLORS = {"float32": "#4c72b0", "bfloat16": "#55a868", "float16": "#c7a252", "float64": "#8172b3"}
LINES = {"baraquant": "#c44e52", "torch.compile": "#4c72b0", "PyTorch": "#999999"}
PRODUCT_LINES = {
    "baraquant": "#c44e52",
    "torch._int_mm": "#4c72b0",
    "quantize + _int_mm + dequantize": "#4c72b0",
    "bfloat16 linear": "#55a868",
    "float32 linear": "#55a868",
    "fp8 rowwise": "#c7a252",
    "quantize_dynamic": "#8172b3",
    "humming": "#e377c2",
    "torchao": "#4c72b0",
    "gemlite": "#c7a252",
    "bitsandbytes": "#8172b3",
    "bound": "#999999",
}
MAX_PANELS = 6


def plot_bars(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Draws a panel for each op: bars in percent of the copy, target as a line, peers as marks.

    Only the largest shape is drawn, with all threads: that is where bandwidth is the bound.
    """
    drawn = _largest(rows, lambda row: (row.what, row.op, row.case, row.dtype))
    panels: Panels = {}
    for row in drawn:
        panels.setdefault((row.op, row.what), []).append(row)
    _draw(panels, about, path, _plot_bars, _bars_legend(drawn))


def plot_lengths(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Draws a panel for each case and dtype of the rows per token: a line over the row length.

    Of each length the largest shape is drawn, with all threads. One length makes no line.
    """
    tokens = [row for row in rows if row.what == "token"]
    panels: Panels = {}
    drawn = _largest(tokens, lambda row: (row.op, row.case, row.dtype, row.shape[-1]))
    for row in sorted(drawn, key=lambda row: row.shape[-1]):
        panels.setdefault((row.op, f"{row.case}, {row.dtype}"), []).append(row)
    if lines := {title: rows for title, rows in panels.items() if len(rows) > 1}:
        panels = lines
    legend = [Line2D([], [], color=c, marker="o", label=name) for name, c in LINES.items()]
    if any(_copy_target(row) for row in drawn):
        legend.append(_target_mark())
    _draw(panels, about, path, _plot_lengths, legend)


def plot_products(
    rows: list[Row], about: dict[str, Any], path: Path, most: int = MAX_PANELS
) -> None:
    """Draws a panel for each weight: operations per second over the number of rows of input.

    Drawn are the product alone, then the whole layer, with all threads, in ``most`` panels.
    """
    threads = max((row.threads or 0 for row in rows), default=0)
    panels: Panels = {}
    for what in ("linear", "whole"):
        own = [
            row for row in rows if row.what == what and row.tops and row.threads in (None, threads)
        ]
        for row in sorted(own, key=lambda row: row.shape[0]):
            panels.setdefault((row.op, "weight " + "x".join(map(str, row.shape[1:]))), []).append(
                row
            )
    drawn = [item for item in panels.items() if len(item[1]) > 1] or list(panels.items())
    panels = dict(drawn[:most])
    names = {name for own in panels.values() for row in own for name in _tops(row)}
    legend = [
        Line2D([], [], color=color, marker="o", label=name)
        for name, color in PRODUCT_LINES.items()
        if name in names
    ]
    _draw(panels, about, path, _plot_products, legend, ", 10¹² operations per second")


def plot_speedups(
    rows: list[Row],
    about: dict[str, Any],
    path: Path,
    panel: Callable[[Any], tuple[str, str]] = lambda row: (row.what, f"{row.shape[0]} images"),
    label: Callable[[Any], str] = lambda row: f"{row.case}, {row.shape[1:]}",
) -> None:
    """Draws a panel for each network and batch: bars of how many times as fast as the first peer.

    The other peers are marks, and a target is a line. ``panel`` and ``label`` name the panel and
    the bar of a row.
    """
    panels: Panels = {}
    for row in rows:
        if row.speedups:
            panels.setdefault(panel(row), []).append(row)
    drawn = [row for own in panels.values() for row in own]
    marks = []
    if any(len(row.speedups) > 1 for row in drawn):
        marks.append(Line2D([], [], color="k", marker="s", linestyle="", label="other peers"))
    if any(row.targets for row in drawn):
        marks.append(_target_mark())
    first = {next(iter(row.speedups)) for row in drawn}
    against = first.pop() if len(first) == 1 else "the first peer"
    draw = functools.partial(_plot_speedups, label=label)
    _draw(panels, about, path, draw, marks, f": times the speed of {against}")


def _plot_speedups(axis: Any, rows: list[Row], label: Callable[[Any], str]) -> None:
    for place, row in enumerate(rows):
        first, *others = row.speedups.values()
        axis.barh(place, first, 0.8, color=COLORS.get(row.dtype, "#999999"))
        axis.text(first, place, f" {first:.2f}", va="center", fontsize=6)
        for other in others:
            axis.plot(first / other, place, "s", color="k", markersize=3)
        for target in row.targets:
            if isinstance(target, Target | TakesAtMost):
                wanted = 1 / target.share if isinstance(target, TakesAtMost) else target.at_least
                axis.plot([wanted] * 2, [place - 0.4, place + 0.4], color="crimson")
    axis.set_yticks(range(len(rows)), [label(row) for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)


def _largest(rows: list[Row], key: Callable[[Row], tuple]) -> list[Row]:
    """The largest row of each key that has a bandwidth, in the order of rows."""
    found: dict[tuple, Row] = {}
    for row in sorted(rows, key=lambda row: (math.prod(row.shape), row.threads or 0)):
        if row.of_copy is not None:
            found[key(row)] = row
    return [row for row in rows if found.get(key(row)) is row]


def _draw(
    panels: Panels,
    about: dict[str, Any],
    path: Path,
    draw: Callable[[Any, list[Row]], None],
    legend: list[Any],
    unit: str = ": % of a copy's bytes per second",
) -> None:
    if not panels:
        return
    columns = 2 if len(panels) in (1, 2, 4) else 3
    lines = math.ceil(len(panels) / columns)
    size = (4.6 * columns, 0.5 + 3.4 * lines)
    figure, grid = plt.subplots(lines, columns, figsize=size, squeeze=False)
    axes = list(grid.flat)
    for axis, ((op, what), own) in zip(axes, panels.items(), strict=False):
        draw(axis, own)
        axis.set_title(f"{op}\n{what}{unit}", fontsize="small")
        axis.tick_params(axis="both", which="both", labelsize=7)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(f"{about['device']}, torch {about['torch']}", fontsize="medium")
    if legend:
        figure.legend(handles=legend, loc="lower center", ncols=len(legend), fontsize="small")
    figure.tight_layout(rect=(0, 0.3 / size[1], 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, format="png")
    plt.close(figure)


def _plot_bars(axis: Any, rows: list[Row]) -> None:
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
        for target, reached in zip(row.targets, row.reached, strict=True):
            if isinstance(target, Target) and reached:
                line = percent * target.at_least / reached
                axis.plot([line] * 2, [place - height / 2, place + height / 2], color="crimson")
    axis.set_yticks(range(len(cases)), cases)
    axis.set_ylim(len(cases) - 0.5, -0.5)
    axis.set_xlim(0, max(110, *(110 * (row.of_copy or 0) for row in rows)))


def _bars_legend(rows: list[Row]) -> list[Any]:
    handles: list[Any] = [
        Patch(color=COLORS.get(dtype, "#999999"), label=dtype)
        for dtype in dict.fromkeys(row.dtype for row in rows)
    ]
    for name in sorted({name for row in rows for name in row.speedups}):
        marker = PEER_MARKERS.get(name, "s")
        handles.append(Line2D([], [], color="k", marker=marker, linestyle="", label=name))
    if any(isinstance(target, Target) for row in rows for target in row.targets):
        handles.append(_target_mark())
    return handles


def _plot_lengths(axis: Any, rows: list[Row]) -> None:
    places = range(len(rows))
    for name, color in LINES.items():
        percents = [_percent_of_copy(row, name) for row in rows]
        axis.plot(places, percents, marker="o", markersize=4, color=color)
    for place, row in zip(places, rows, strict=True):
        if target := _copy_target(row):
            axis.plot(place, 100 * target.at_least, "_", color="crimson", markersize=14)
    axis.set_xticks(places, [f"{row.shape[-1]}\n{row.shape[0]} rows" for row in rows])
    axis.set_ylim(0, max(110, *(110 * (row.of_copy or 0) for row in rows)))


def _plot_products(axis: Any, rows: list[Row]) -> None:
    for name, color in PRODUCT_LINES.items():
        points = [(row.shape[0], _tops(row).get(name, math.nan)) for row in rows]
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, color=color)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks([row.shape[0] for row in rows], [f"{row.shape[0]}" for row in rows])
    axis.set_xlabel("rows of input", fontsize=7)
    axis.grid(alpha=0.3)


def _tops(row: Row) -> dict[str, float]:
    """Of baraquant, the peers and the bound, each under the name of its line."""
    if not row.tops:
        return {}
    peers = {name: row.tops / ratio for name, ratio in row.speedups.items()}
    bound = {"bound": row.tops / row.of_bound} if row.of_bound else {}
    return {"baraquant": row.tops, **peers, **bound}


def _percent_of_copy(row: Row, name: str) -> float:
    """Of baraquant or a peer; NaN, which leaves a gap, where it was not measured."""
    ratio = 1.0 if name == "baraquant" else row.speedups.get(name, math.nan)
    return 100 * (row.of_copy or math.nan) / ratio


def _copy_target(row: Row) -> Target | None:
    targets = (t for t in row.targets if isinstance(t, Target) and t.against == "copy")
    return next(targets, None)


def _target_mark() -> Line2D:
    return Line2D([], [], color="crimson", label="target")
