# SPDX-License-Identifier: BSD-3-Clause
"""The rows, the tables, the verdicts and the plot of ``language_model.py``."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

from lm_gradients import LEAST, WAYS, Cosines
from lm_schemes import BASELINE, EXACT_ENOUGH, SCHEMES
from lm_training import Training

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TOLERANCE = 0.005  # of the baseline's validation loss
MODES = {"scratch": "trained from scratch", "checkpoint": "trained on from a float checkpoint"}
PASSED = "passed"


@dataclass(frozen=True)
class Run:
    """What one seed gave with one scheme.

    Attributes:
        mode: ``scratch`` or ``checkpoint``.
        scheme: Its name.
        seed: Of the first weights and of the batches.
        before: Validation loss before the first step, in nats per byte.
        validation: And after the last.
        training: The loss curve, time and memory.
        same_bits: Whether the converted model gives the logits of the prepared one's evaluation,
            bit for bit; None for the float model.
    """

    mode: str
    scheme: str
    seed: int
    before: float
    validation: float
    training: Training
    same_bits: bool | None


@dataclass(frozen=True)
class Row:
    """All seeds of one scheme.

    Attributes:
        mode: ``scratch`` or ``checkpoint``.
        scheme: Its name.
        seeds: Their number.
        before: Mean validation loss before the first step.
        validation: Mean and sample standard deviation after the last.
        change: Of that mean, relative to the baseline's; None without a baseline.
        verdict: Whether it is as good as the baseline. Empty: that is not asked of this scheme.
        step_seconds: The median over the seeds.
        cpu_seconds: The same of the processor time.
        peak_bytes: Peak memory of a step above the state between steps: the maximum over the seeds.
        same_bits: How many converted models gave the bits of evaluation; None for the float model.
        tokens_per_second: Of validation with the converted model; None if not measured.
        faster: How many times as fast as the float model that is.
    """

    mode: str
    scheme: str
    seeds: int
    before: float
    validation: tuple[float, float]
    change: float | None
    verdict: str
    step_seconds: float
    cpu_seconds: float
    peak_bytes: int
    same_bits: int | None
    tokens_per_second: float | None = None
    faster: float | None = None


def summarize(runs: list[Run], speeds: dict[str, tuple[float, float]]) -> list[Row]:
    """Return a row for each scheme of each mode.

    Args:
        runs: All.
        speeds: By scheme: tokens per second of validation, and the ratio to the float model.
    """
    rows = []
    for mode, scheme in dict.fromkeys((run.mode, run.scheme) for run in runs):
        own = _of(runs, mode, scheme)
        base = _of(runs, mode, BASELINE)
        loss = mean_and_deviation([run.validation for run in own])
        base_loss = mean_and_deviation([run.validation for run in base]) if base else None
        bits = [run.same_bits for run in own if run.same_bits is not None]
        rows.append(
            Row(
                mode,
                scheme,
                len(own),
                statistics.mean(run.before for run in own),
                loss,
                None if base_loss is None else loss[0] / base_loss[0] - 1,
                judge(loss[0], base_loss, len(base)) if SCHEMES[scheme].is_asked else "",
                statistics.median(run.training.step_seconds for run in own),
                statistics.median(run.training.cpu_seconds for run in own),
                max(run.training.peak_bytes for run in own),
                sum(bits) if bits else None,
                *speeds.get(scheme, (None, None)),
            )
        )
    return rows


def judge(loss: float, base: tuple[float, float] | None, seeds: int) -> str:
    """Say whether a loss is the baseline's, to within 0.5 % and within the seeds' spread.

    Args:
        loss: Mean over the seeds.
        base: Mean and standard deviation of the baseline; None if it was not trained.
        seeds: Of the baseline.
    """
    if base is None:
        return f"not judged: no {BASELINE}"
    if seeds < 2:
        return "not judged: one seed has no spread"
    change = abs(loss - base[0])
    reasons = []
    if not change <= TOLERANCE * base[0]:  # written so that NaN fails
        reasons.append(f"more than {TOLERANCE:.1%} off")
    if not change <= base[1]:
        reasons.append("beyond the seeds' spread")
    return f"failed: {' and '.join(reasons)}" if reasons else PASSED


def judge_cosines(cosines: list[Cosines]) -> dict[str, str]:
    """Say of each scheme with an int8_input backward pass whether its gradients are near enough."""
    verdicts = {}
    for found in cosines:
        if SCHEMES[found.scheme].arguments.get("backward") == EXACT_ENOUGH:
            below = [f"{way} {found.worst(way)[0]:.5f}" for way in WAYS]
            below = [t for t, way in zip(below, WAYS, strict=True) if not _is_near(found, way)]
            verdicts[found.scheme] = f"failed: {', '.join(below)} < {LEAST}" if below else PASSED
    return verdicts


def _is_near(found: Cosines, way: str) -> bool:
    return found.worst(way)[0] >= LEAST


def _of(runs: Iterable[Run], mode: str, scheme: str) -> list[Run]:
    return [run for run in runs if (run.mode, run.scheme) == (mode, scheme)]


def mean_and_deviation(values: list[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation; the latter is 0 for one value."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def conclude(rows: list[Row], cosines: list[Cosines], missing: dict[str, str]) -> list[str]:
    """Return what the figures say, in words."""
    lines = []
    for row in rows:
        if row.scheme == BASELINE:
            floats = next((r for r in rows if (r.mode, r.scheme) == (row.mode, "float")), None)
            beside = "" if floats is None else f" (float: {_plus_minus(floats.validation)})"
            lines.append(
                f"{BASELINE}, {MODES[row.mode]}, has a validation loss of "
                f"{_plus_minus(row.validation)} nats per byte{beside}."
            )
        elif row.verdict:
            change = "" if row.change is None else f" ({_percent(row.change)})"
            lines.append(f"{row.scheme}, {MODES[row.mode]}: {row.verdict}{change}.")
    checked = [(row.same_bits, row.seeds) for row in rows if row.same_bits is not None]
    if checked:
        same, all_of_them = (sum(column) for column in zip(*checked, strict=True))
        lines.append(
            f"Converted to integers, {same} of {all_of_them} models give bit for bit the logits of "
            "the prepared models' evaluation, over all of the validation text."
        )
    lines += [
        f"Gradients of {scheme}: {verdict}." for scheme, verdict in judge_cosines(cosines).items()
    ]
    for why in dict.fromkeys(missing.values()):
        names = ", ".join(name for name in missing if missing[name] == why)
        lines.append(f"Not trained, because {why}: {names}.")
    return lines


def print_tables(rows: list[Row], cosines: list[Cosines], console: Console) -> None:
    """Print a table for each mode, and one of the cosines if there are some."""
    for mode, title in MODES.items():
        if own := [row for row in rows if row.mode == mode]:
            console.print(_table(f"Validation loss in nats per byte, {title}", HEADINGS, own))
    if not cosines:
        return
    table = Table(title=f"Least cosine of a layer's gradients, {cosines[0].steps} steps", box=BOX)
    for heading in ("scheme", *(text for way in WAYS for text in (way, "of which"))):
        table.add_column(heading)
    for found in cosines:
        cells = [(f"{value:.6f}", path) for value, path in map(found.worst, WAYS)]
        table.add_row(found.scheme, *(text for pair in cells for text in pair))
    console.print(table)


BOX = box.SIMPLE_HEAD
HEADINGS = ("scheme", "untrained", "loss", "change", "as good?", "step, ms")
HEADINGS += ("CPU, ms", "peak, MiB", "same bits", "tokens/s", "faster")


def _table(title: str, headings: tuple[str, ...], rows: list[Row]) -> Table:
    table = Table(title=title, box=BOX, padding=(0, 1, 0, 0))
    for heading in headings:
        left = heading in ("scheme", "as good?")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading == "scheme")
    for row in rows:
        table.add_row(
            row.scheme,
            f"{row.before:.3f}",
            _plus_minus(row.validation),
            "" if row.change is None else _percent(row.change),
            row.verdict,
            f"{1e3 * row.step_seconds:.1f}",
            f"{1e3 * row.cpu_seconds:.1f}",
            f"{row.peak_bytes / 2**20:.1f}",
            "" if row.same_bits is None else f"{row.same_bits} of {row.seeds}",
            "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
            "" if row.faster is None else f"{row.faster:.2f} x",
        )
    return table


def _percent(share: float) -> str:
    return f"{round(share, 4) + 0.0:+.2%}"  # + 0.0: what rounds to zero has no minus


def _plus_minus(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.4f} ± {pair[1]:.4f}"


def plot(runs: list[Run], rows: list[Row], path: Path) -> None:
    """Draw for each mode: the loss curves, what separates them, and the final losses."""
    modes = list(dict.fromkeys(row.mode for row in rows))
    figure, axes = plt.subplots(len(modes), 3, figsize=(15, 4.2 * len(modes)), squeeze=False)
    colors = dict(zip(SCHEMES, plt.get_cmap("tab20").colors, strict=False))
    for mode, (curves, changes, losses) in zip(modes, axes, strict=True):
        own = [row for row in rows if row.mode == mode]
        base = _mean_curve(runs, mode, BASELINE)
        for row in own:
            steps, curve = _mean_curve(runs, mode, row.scheme)
            curves.plot(steps, curve, label=row.scheme, color=colors[row.scheme], linewidth=1)
            if base[1] and row.scheme != BASELINE:
                change = [100 * (a / b - 1) for a, b in zip(curve, base[1], strict=True)]
                changes.plot(steps, change, color=colors[row.scheme], linewidth=1)
        curves.set_title(MODES[mode])
        curves.set_ylabel("training loss, nats per byte")
        curves.legend(fontsize=8)
        changes.axhline(0, color=colors[BASELINE], linewidth=1)
        changes.set_ylabel(f"the same, % above {BASELINE}")
        for axis in (curves, changes):
            axis.set_xlabel("step (mean of the seeds, which see the same batches)")
        _plot_losses(own, [run for run in runs if run.mode == mode], colors, losses)
        for axis in (curves, changes, losses):
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _plot_losses(rows: list[Row], runs: list[Run], colors: dict[str, object], axis: Axes) -> None:
    """Draw the validation loss of each seed, mean and deviation, and what is asked."""
    for place, row in enumerate(rows):
        color = colors[row.scheme]
        mean, deviation = row.validation
        axis.errorbar(mean, place, xerr=deviation, fmt="o", color=color, capsize=4)
        seeds = [run.validation for run in runs if run.scheme == row.scheme]
        axis.plot(seeds, [place + 0.2] * len(seeds), "|", color=color)
        if row.scheme == BASELINE:
            near = TOLERANCE * mean
            axis.axvspan(mean - near, mean + near, color=color, alpha=0.12, label="±0.5 %")
            axis.legend(fontsize=8)
    axis.set_yticks(range(len(rows)), [row.scheme for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("validation loss: mean ± deviation, and each seed")


def _mean_curve(runs: list[Run], mode: str, scheme: str) -> tuple[list[int], list[float]]:
    """Return the last steps of the chunks, and the mean loss of the seeds in each."""
    own = _of(runs, mode, scheme)
    losses = zip(*(run.training.curve for run in own), strict=True)
    means = [statistics.mean(of_a_chunk) for of_a_chunk in losses]
    return [own[0].training.chunk * (index + 1) for index in range(len(means))], means
