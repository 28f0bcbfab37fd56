# SPDX-License-Identifier: BSD-3-Clause
"""The tables, the plot and the conclusion of ``qat_digits.py``: everything comes from its runs."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

from qat_widths import Widths

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

# Where the scale of an input comes from: in the table, in words, and a colour.
SCHEMES = {
    "learned": ("learned", "learned scales", "tab:blue"),
    "symmetric": ("symmetric", "symmetric ones for each image", "tab:purple"),
    "asymmetric": ("asymmetric", "asymmetric ones for each image", "tab:cyan"),
}


@dataclass(frozen=True)
class Run:
    """What one seed gave at one width.

    Attributes:
        seed: The seed of split, first weights and order of training.
        widths: Bits and granularity.
        accuracy: Percent of the test images, for ``float``, ``ptq_max`` (quantized after training,
            scales by the symmetric rule), ``ptq`` (fitted scales) and ``qat``.
        tensor_bytes: All tensors as stored, weights packed to their width.
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
    """All seeds at one width; accuracies are (mean, sample standard deviation) in percent.

    Attributes:
        widths: Bits and granularity.
        accuracy: By the keys of a ``Run``.
        gains: Of each seed, the points by which QAT is above PTQ with fitted scales.
        tensor_bytes: All tensors as stored.
        header_bytes: The rest of the file.
    """

    widths: Widths
    accuracy: dict[str, tuple[float, float]]
    gains: tuple[float, ...]
    tensor_bytes: int
    header_bytes: int

    def loss(self, way: str) -> float:
        """Points of accuracy that ``way`` loses against float, in the mean."""
        return self.accuracy["float"][0] - self.accuracy[way][0]


def summarize(runs: list[Run]) -> list[Summary]:
    """Gathers the seeds of each width."""
    summaries = []
    for widths in dict.fromkeys(run.widths for run in runs):
        own = [run for run in runs if run.widths == widths]
        accuracy = {
            way: mean_and_deviation([run.accuracy[way] for run in own]) for way in own[0].accuracy
        }
        gains = tuple(run.accuracy["qat"] - run.accuracy["ptq"] for run in own)
        size = own[0].tensor_bytes, own[0].file_bytes - own[0].tensor_bytes
        summaries.append(Summary(widths, accuracy, gains, *size))
    return summaries


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation; the latter is 0 for one value."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def report(
    main: list[Summary],
    compared: list[Summary],
    float_bytes: int,
    plot_path: Path,
    console: Console,
) -> str:
    """Prints the tables and the conclusion, and draws the plot; returns the conclusion."""
    print_tables(main, compared, float_bytes, console)
    plot(main, compared, plot_path)
    conclusion = " ".join(filter(None, [conclude(main), gained(main), compare(compared)]))
    console.print(f"\n[bold]{conclusion}[/bold]\n", highlight=False)
    return conclusion


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


def gained(summaries: list[Summary]) -> str:
    """Says in words what training gains on fitted scales, for each width of the weights."""
    parts = []
    for bits in dict.fromkeys(summary.widths.weight_bits for summary in summaries):
        own = [summary.gains for summary in summaries if summary.widths.weight_bits == bits]
        of_seeds = [statistics.mean(gains) for gains in zip(*own, strict=True)]
        mean, spread = mean_and_deviation(of_seeds)
        above = sum(gain > 0 for gain in of_seeds)
        parts.append(
            f"{mean:+.1f} ± {spread:.1f} points with {bits}-bit weights ({above} of "
            f"{len(of_seeds)} seeds gain)"
        )
    return (
        "Against fitted scales, seed by seed and in the mean over granularities and inputs, "
        f"training makes {_listed(parts)}."
    )


def compare(summaries: list[Summary]) -> str:
    """Says in words down to which width of the inputs each scheme of theirs keeps accuracy."""
    if not summaries:
        return ""
    parts = []
    for scheme in dict.fromkeys(summary.widths.inputs for summary in summaries):
        own = [summary for summary in summaries if summary.widths.inputs == scheme]
        kept = [summary for summary in own if summary.loss("qat") <= KEPT]
        least = min(kept, key=lambda summary: summary.widths.input_bits, default=None)
        width = "at no width" if least is None else f"down to {least.widths.input_bits}-bit inputs"
        figure = "" if least is None else f" ({least.accuracy['qat'][0]:.1f} %)"
        parts.append(f"{width} with {SCHEMES[scheme][1]}{figure}")
    bits = summaries[0].widths.weight_bits
    return f"With {bits}-bit weights, training keeps the float accuracy {_listed(parts)}."


def print_tables(
    main: list[Summary], compared: list[Summary], float_bytes: int, console: Console
) -> None:
    """Prints accuracies and sizes: the widths of the weights, then the schemes of the inputs."""
    title = "Digits: test accuracy in % (mean ± deviation)"
    console.print(_table(title, "scale per", _granularity, main, float_bytes))
    mean, spread = main[0].accuracy["float"]
    header = max(summary.header_bytes for summary in main)
    console.print(
        f"float32: {mean:.1f} ± {spread:.1f} %, {float_bytes:,} bytes. Green: within {KEPT:g} "
        "point of it; red: beyond. w: weights; x: the input of every layer. PTQ: quantized after "
        "training, with scales from the maximum or fitted by least squares. Gain: of QAT over PTQ "
        "with fitted scales, in points, seed by seed; QAT has trained for longer, and what that "
        "alone is worth shows at 8 bits. Bytes: as stored, weights packed to their width, scales "
        f"and biases in float32; the header of a file takes {header:,} more.\n",
        highlight=False,
    )
    if not compared:
        return
    title = "By the scale of the inputs: accuracy in % (mean ± deviation)"
    console.print(_table(title, "inputs", lambda w: SCHEMES[w.inputs][0], compared, float_bytes))
    console.print(
        "Inputs: with a scale and a zero point that are learned, or with a scale for each image, "
        "chosen on the fly from the range of its values: symmetric around 0, or asymmetric with a "
        "zero point. Pixels and ReLU are never negative, so a symmetric grid takes one bit more "
        "for the same steps.",
        highlight=False,
    )


def _table(
    title: str,
    column: str,
    describe: Callable[[Widths], str],
    summaries: list[Summary],
    float_bytes: int,
) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("w/x", column, "PTQ max", "PTQ fitted", "QAT", "gain", "bytes", ""):
        table.add_column(name, justify="left" if name == column else "right", no_wrap=True)

    def cell(summary: Summary, way: str) -> str:
        mean, spread = summary.accuracy[way]
        color = "green" if summary.loss(way) <= KEPT else "red"
        return f"[{color}]{mean:.1f} ± {spread:.1f}"

    # A line after each width of what varies: of the weights, or else of the inputs.
    several = len({summary.widths.weight_bits for summary in summaries}) > 1
    width = "weight_bits" if several else "input_bits"
    for _, rows in itertools.groupby(summaries, lambda summary: getattr(summary.widths, width)):
        for row in rows:
            table.add_row(
                f"{row.widths.weight_bits}/{row.widths.input_bits}",
                describe(row.widths),
                *(cell(row, way) for way in ("ptq_max", "ptq", "qat")),
                "{:+.1f} ± {:.1f}".format(*mean_and_deviation(row.gains)),
                f"{row.tensor_bytes:,}",
                f"{float_bytes / row.tensor_bytes:.1f}x",
            )
        table.add_section()
    return table


def plot(main: list[Summary], compared: list[Summary], path: Path) -> None:
    """Draws accuracy over the width of the weights, and over that of the inputs.

    A panel for each granularity and width of input in ``main``; for ``compared`` a last column.
    """
    group_sizes = list(dict.fromkeys(summary.widths.group_size for summary in main))
    input_widths = list(dict.fromkeys(summary.widths.input_bits for summary in main))
    grid = (len(input_widths), len(group_sizes) + bool(compared))
    size = (4.5 * grid[1], 3.25 * grid[0])
    figure, axes = plt.subplots(*grid, figsize=size, sharex="col", sharey=True, squeeze=False)
    for row, input_bits in zip(axes, input_widths, strict=True):
        for axis, group_size in zip(row, group_sizes, strict=False):
            panel = (group_size, input_bits)
            own = [s for s in main if (s.widths.group_size, s.widths.input_bits) == panel]
            lines = [(label, color, own, way) for label, (way, color) in WAYS.items()]
            _plot_panel(axis, lines, "weight_bits")
            scale = f"group of {group_size}" if group_size else "channel"
            axis.set_title(f"{input_bits}-bit inputs, one scale per {scale}", fontsize="medium")
            axes[-1][group_sizes.index(group_size)].set_xlabel("bits of a weight")
    axes[0][0].legend(loc="lower left", fontsize="small")
    if compared:
        _plot_schemes(axes[:, -1], compared)
        axes[0][-1].legend(loc="lower left", fontsize="small")
    for axis in axes[:, 0]:
        axis.set_ylabel("test accuracy in %")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _plot_schemes(axes: Iterable[Axes], summaries: list[Summary]) -> None:
    """Draws the schemes of the inputs: trained above, quantized after training below."""
    bits = summaries[0].widths.weight_bits
    for axis, label in zip(axes, WAYS, strict=False):
        lines = []
        for scheme, (name, _, color) in SCHEMES.items():
            own = [summary for summary in summaries if summary.widths.inputs == scheme]
            lines += [(name, color, own, WAYS[label][0])] if own else []
        _plot_panel(axis, lines, "input_bits")
        axis.set_title(f"{label}: {bits}-bit weights, by scale of the inputs", fontsize="medium")
    axis.set_xlabel("bits of an input")


def _plot_panel(axis: Axes, lines: list[tuple[str, str, list[Summary], str]], width: str) -> None:
    """Draws lines of (label, colour, summaries, way) over a width, and float32 behind them."""
    mean, spread = lines[0][2][0].accuracy["float"]
    axis.axhline(mean, color="black", linestyle=":", label=f"float32: {mean:.1f} %")
    axis.axhspan(mean - spread, mean + spread, color="black", alpha=0.08)
    for label, color, summaries, way in lines:
        places = range(len(summaries))
        means, spreads = zip(*(summary.accuracy[way] for summary in summaries), strict=True)
        axis.errorbar(places, means, spreads, label=label, color=color, marker="o", capsize=3)
        axis.set_xticks(places, [str(getattr(summary.widths, width)) for summary in summaries])
    axis.grid(alpha=0.3)


def _granularity(widths: Widths) -> str:
    return f"group {widths.group_size}" if widths.group_size else "channel"


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]


def _in_words(widths: Widths) -> str:
    granularity = f"groups of {widths.group_size}" if widths.group_size else "one scale per channel"
    return f"{widths.weight_bits}-bit weights ({granularity}) and {widths.input_bits}-bit inputs"
