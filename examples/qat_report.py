# SPDX-License-Identifier: BSD-3-Clause
"""The table, the plot and the conclusion of ``qat_digits.py``: everything comes from its runs."""

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

from quantized_layers import Widths

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

KEPT = 1.0  # accuracy counts as kept where the mean loses at most this many points

# What is done with the trained float network: the key of its accuracies, and a colour.
WAYS = {
    "QAT": ("qat", "tab:green"),
    "PTQ, fitted scales": ("ptq", "tab:orange"),
    "PTQ, scales from the maximum": ("ptq_max", "tab:red"),
}


@dataclass(frozen=True)
class Run:
    """What one seed gave at one width.

    Attributes:
        seed: The seed of split, first weights and order of training.
        widths: Bits and granularity.
        accuracy: Percent of the test images, for ``float``, ``ptq_max`` (quantized after training,
            scales by the symmetric rule), ``ptq`` (fitted scales) and ``qat``.
        tensor_bytes: All tensors as stored.
        file_bytes: The file, its header included.
        integers_equal: The stored integers gave the outputs of training's last evaluation.
    """

    seed: int
    widths: Widths
    accuracy: dict[str, float]
    tensor_bytes: int
    file_bytes: int
    integers_equal: bool


@dataclass(frozen=True)
class Summary:
    """All seeds at one width; accuracies are (mean, sample standard deviation) in percent."""

    widths: Widths
    accuracy: dict[str, tuple[float, float]]
    tensor_bytes: int

    def loss(self, way: str) -> float:
        """Points of accuracy that ``way`` loses against float, in the mean."""
        return self.accuracy["float"][0] - self.accuracy[way][0]


def summarize(runs: list[Run]) -> list[Summary]:
    """Gathers the seeds of each width."""
    summaries = []
    for widths in dict.fromkeys(run.widths for run in runs):
        own = [run for run in runs if run.widths == widths]
        accuracy = {}
        for way in own[0].accuracy:
            values = [run.accuracy[way] for run in own]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            accuracy[way] = (statistics.mean(values), spread)
        summaries.append(Summary(widths, accuracy, own[0].tensor_bytes))
    return summaries


def conclude(summaries: list[Summary]) -> str:
    """Says in words down to which width each way keeps the float network's accuracy."""

    def narrowest(way: str) -> Summary | None:
        kept = [summary for summary in summaries if summary.loss(way) <= KEPT]

        def width(summary: Summary) -> tuple[int, int, float]:
            return summary.widths.weight_bits, summary.widths.input_bits, summary.loss(way)

        return min(kept, key=width, default=None)

    qat, ptq = narrowest("qat"), narrowest("ptq")
    float_accuracy = summaries[0].accuracy["float"][0]
    if qat is None:
        return f"At no width did training keep the float accuracy of {float_accuracy:.1f} %."
    sentence = (
        f"Quantization-aware training keeps the float accuracy of {float_accuracy:.1f} % to within "
        f"{KEPT:g} point down to {_in_words(qat.widths)}: {qat.accuracy['qat'][0]:.1f} %, where "
        f"quantization after training gives {qat.accuracy['ptq'][0]:.1f} % with fitted scales and "
        f"{qat.accuracy['ptq_max'][0]:.1f} % with scales from the maximum. Quantization after "
        f"training, with fitted scales, keeps it "
    )
    if ptq is None:
        return sentence + "at no width."
    if ptq.widths == qat.widths:
        return sentence + "there too."
    return sentence + f"down to {_in_words(ptq.widths)}."


def print_table(summaries: list[Summary], float_bytes: int, console: Console) -> None:
    """Prints accuracies and sizes."""
    table = Table(title="Digits: test accuracy in % (mean ± deviation)", box=box.SIMPLE_HEAD)
    table.pad_edge = False
    columns = ("bits w/x", "scale per", "PTQ, max", "PTQ, fitted", "QAT", "bytes", "")
    for name in columns:
        table.add_column(name, justify="left" if name == "scale per" else "right", no_wrap=True)

    def cell(summary: Summary, way: str) -> str:
        mean, spread = summary.accuracy[way]
        color = "green" if summary.loss(way) <= KEPT else "red"
        return f"[{color}]{mean:.1f} ± {spread:.1f}"

    for bits, rows in itertools.groupby(summaries, lambda summary: summary.widths.weight_bits):
        for row in rows:
            table.add_row(
                f"{bits} / {row.widths.input_bits}",
                f"group {row.widths.group_size}" if row.widths.group_size else "channel",
                *(cell(row, way) for way in ("ptq_max", "ptq", "qat")),
                f"{row.tensor_bytes:,}",
                f"{float_bytes / row.tensor_bytes:.1f}x",
            )
        table.add_section()
    console.print(table)
    mean, spread = summaries[0].accuracy["float"]
    console.print(
        f"float32: {mean:.1f} ± {spread:.1f} %, {float_bytes:,} bytes. Green: within {KEPT:g} "
        "point of it; red: beyond. w: weights; x: the input of every layer. PTQ: quantized after "
        "training, with scales from the maximum or fitted by least squares. Bytes: as stored, "
        "weights packed to their width, scales and biases in float32.",
        highlight=False,
    )


def plot(summaries: list[Summary], path: Path) -> None:
    """Draws accuracy over the width of the weights, a panel for each granularity and input."""
    group_sizes = list(dict.fromkeys(summary.widths.group_size for summary in summaries))
    input_widths = list(dict.fromkeys(summary.widths.input_bits for summary in summaries))
    grid = (len(input_widths), len(group_sizes))
    figure, axes = plt.subplots(*grid, figsize=(9, 6.5), sharex=True, sharey=True, squeeze=False)
    for row, input_bits in zip(axes, input_widths, strict=True):
        for axis, group_size in zip(row, group_sizes, strict=True):
            panel = (group_size, input_bits)
            own = [s for s in summaries if (s.widths.group_size, s.widths.input_bits) == panel]
            _plot_panel(axis, own)
            scale = f"group of {group_size}" if group_size else "channel"
            axis.set_title(f"{input_bits}-bit inputs, one scale per {scale}", fontsize="medium")
    for axis in axes[-1]:
        axis.set_xlabel("bits of a weight")
    for axis in axes[:, 0]:
        axis.set_ylabel("test accuracy in %")
    axes[0][0].legend(loc="lower left", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _plot_panel(axis: Axes, summaries: list[Summary]) -> None:
    mean, spread = summaries[0].accuracy["float"]
    axis.axhline(mean, color="black", linestyle=":", label=f"float32: {mean:.1f} %")
    axis.axhspan(mean - spread, mean + spread, color="black", alpha=0.08)
    places = range(len(summaries))
    for label, (way, color) in WAYS.items():
        means, spreads = zip(*(summary.accuracy[way] for summary in summaries), strict=True)
        axis.errorbar(places, means, spreads, label=label, color=color, marker="o", capsize=3)
    axis.set_xticks(places, [str(summary.widths.weight_bits) for summary in summaries])
    axis.grid(alpha=0.3)


def _in_words(widths: Widths) -> str:
    granularity = f"groups of {widths.group_size}" if widths.group_size else "one scale per channel"
    return f"{widths.weight_bits}-bit weights ({granularity}) and {widths.input_bits}-bit inputs"
