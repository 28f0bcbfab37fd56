# SPDX-License-Identifier: BSD-3-Clause
"""The plot of the training benchmark: a panel of times for each mode, and one of memory."""

from pathlib import Path
from typing import Any

from benchmarks import bench_plot  # noqa: F401 - chooses a backend that needs no screen

# isort: split
from matplotlib import pyplot as plt

from benchmarks.bench_row import Row
from benchmarks.training_step import PHASES

COLORS = {"forward": "#4c72b0", "backward": "#55a868", "optimizer": "#c7a252", "whole": "#4c72b0"}
OWN_COLOR, PEER_COLOR = "#c44e52", "#999999"


def plot_training(
    rows: list[Row],
    about: dict[str, Any],
    path: Path,
    what: str = "training step of a Transformer block",
) -> None:
    """Draws, of the largest size, bars of the phases for each mode, and of the peaks of memory."""
    largest = max((row.shape for row in rows if row.seconds), default=None, key=_elements)
    drawn = [row for row in rows if row.seconds is not None and row.shape == largest]
    if not drawn:
        return
    modes = list(dict.fromkeys(row.what for row in drawn))
    peaks = [row for row in drawn if row.op in row.peaks]
    panels = len(modes) + bool(peaks)
    most = max(sum(row.what == mode for row in drawn) for mode in modes)
    size = (6.5 * panels, 1.6 + 0.34 * max(most, len(peaks)))
    figure, axes = plt.subplots(1, panels, figsize=size, squeeze=False)
    for axis, mode in zip(axes[0], modes, strict=False):
        _plot_times(axis, mode, [row for row in drawn if row.what == mode])
    if peaks:
        _plot_peaks(axes[0][-1], peaks)
    for axis in axes[0]:
        axis.tick_params(axis="both", labelsize=7)
        axis.invert_yaxis()
    shape = "x".join(map(str, largest))
    figure.suptitle(
        f"{what}, batch x tokens x width {shape}, {drawn[0].dtype}: "
        f"{about['device']}, torch {about['torch']}",
        fontsize="medium",
    )
    if any(row.phases for row in drawn):
        handles = [plt.Rectangle((0, 0), 1, 1, color=COLORS[phase]) for phase in PHASES]
        figure.legend(handles, PHASES, loc="lower center", ncols=len(PHASES), fontsize="small")
    figure.tight_layout(rect=(0, 0.3 / size[1], 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, format="png")
    plt.close(figure)


def _elements(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _plot_times(axis: Any, mode: str, rows: list[Row]) -> None:
    for place, row in enumerate(rows):
        start = 0.0
        phases = row.phases or {"whole": row.seconds}
        for phase, seconds in phases.items():
            axis.barh(place, 1e3 * seconds, left=1e3 * start, color=COLORS[phase])
            start += seconds
        axis.text(1e3 * start, place, f" {1e3 * row.seconds:.1f}", va="center", fontsize=6)
    _finish(axis, rows, [1e3 * row.seconds for row in rows])
    what = ", ".join(PHASES) if any(row.phases for row in rows) else "whole step"
    axis.set_title(f"{mode}: ms of {what}", fontsize="small")


def _plot_peaks(axis: Any, rows: list[Row]) -> None:
    values = [row.peaks[row.op] / 2**30 for row in rows]
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        own = row.op.startswith("baraquant")
        axis.barh(place, value, color=OWN_COLOR if own else PEER_COLOR)
        axis.text(value, place, f" {value:.2f}", va="center", fontsize=6)
    _finish(axis, rows, values, modes=True)
    axis.set_title("GiB at the peak, above parameters and optimizer state", fontsize="small")


def _finish(axis: Any, rows: list[Row], values: list[float], modes: bool = False) -> None:
    names = [f"{row.op}, {row.what}" if modes else row.op for row in rows]
    axis.set_yticks(range(len(rows)), names)
    axis.set_xlim(0, 1.12 * max(values))
    for place, row in enumerate(rows):
        if row.op == row.baseline and not modes:
            axis.axvline(values[place], color="k", linewidth=0.7, linestyle="--")
