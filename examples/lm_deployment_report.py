# SPDX-License-Identifier: BSD-3-Clause
"""The rows, the table, the verdicts and the plots of ``language_model.py``'s deployed models."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

import baraquant
from lm_deployment import Deployed
from lm_generation import Decoded
from lm_report import BOX, PASSED, mean_and_deviation
from lm_schemes import DEPLOYMENTS, FLOAT, FOUR_BITS

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TOLERANCE = 0.01  # of the float model's perplexity, at four bits after training
RECOVERED = 0.5  # of what GPTQ loses, at four bits after training
TITLES = {False: "rounded after training", True: "trained on with the scheme"}


@dataclass(frozen=True)
class DeploymentRow:
    """All seeds of a deployed scheme.

    Attributes:
        scheme: Its name.
        tuned: Whether it was trained with its scheme from the checkpoint.
        seeds: Their number.
        perplexity: Per byte, ``exp`` of the loss: mean and sample standard deviation.
        change: Of the perplexity, relative to the float model's of the same seed: mean and
            deviation. A tuned model is compared with the float model that was trained on too.
        recovered: The share of what GPTQ loses that training regains, of the mean changes; None
            for other rows, and where GPTQ loses nothing beyond the deviation of the seeds.
        verdict: Whether training at four bits reached what is asked. Empty: nothing is asked.
        file_bytes: The maximum over the seeds.
        seconds: That ``quantize_`` took, the median; None where it was not called.
        tokens_per_second: Of writing text, by batch; of the scheme with the same layers.
        faster: How many times as fast as the float model that is, by batch.
    """

    scheme: str
    tuned: bool
    seeds: int
    perplexity: tuple[float, float]
    change: tuple[float, float] | None
    recovered: float | None
    verdict: str
    file_bytes: int
    seconds: float | None
    tokens_per_second: dict[str, float]
    faster: dict[str, float]


def summarize_deployments(deployed: list[Deployed], decoded: list[Decoded]) -> list[DeploymentRow]:
    """Return a row for each deployed scheme, first of those that were not trained with it."""
    keys = dict.fromkeys((one.scheme, one.tuned) for one in deployed)
    changes = {key: _change(deployed, *key) for key in keys}
    rows = []
    for scheme, tuned in sorted(keys, key=lambda key: key[1]):
        own = [one for one in deployed if (one.scheme, one.tuned) == (scheme, tuned)]
        base = DEPLOYMENTS[scheme].base if scheme in DEPLOYMENTS else scheme
        speeds = [one for one in decoded if one.scheme == base]
        seconds = [one.seconds for one in own if one.seconds is not None]
        change = changes[scheme, tuned]
        is_asked = tuned and scheme in FOUR_BITS
        lost = changes.get((f"{scheme}-GPTQ", False)) if is_asked else None
        recovered = _recovered(change, lost)
        rows.append(
            DeploymentRow(
                scheme,
                tuned,
                len(own),
                mean_and_deviation([math.exp(one.loss) for one in own]),
                change,
                recovered,
                judge(change, recovered) if is_asked else "",
                max(one.file_bytes for one in own),
                statistics.median(seconds) if seconds else None,
                {str(one.batch): one.tokens_per_second for one in speeds},
                {str(one.batch): one.faster for one in speeds},
            )
        )
    return rows


def _change(deployed: list[Deployed], scheme: str, tuned: bool) -> tuple[float, float] | None:
    """Return the change of the perplexity against the float model's: mean and deviation."""
    losses = {(one.scheme, one.tuned, one.seed): one.loss for one in deployed}
    changes = [
        math.expm1(loss - losses[FLOAT, tuned, seed])
        for (name, is_tuned, seed), loss in losses.items()
        if (name, is_tuned) == (scheme, tuned) and (FLOAT, tuned, seed) in losses
    ]
    return mean_and_deviation(changes) if changes else None


def _recovered(
    change: tuple[float, float] | None, lost: tuple[float, float] | None
) -> float | None:
    if change is None or lost is None or not lost[0] > lost[1]:
        return None
    return 1 - change[0] / lost[0]


def judge(change: tuple[float, float] | None, recovered: float | None) -> str:
    """Say whether a model of four bits that was trained is as good as asked.

    Args:
        change: Of its perplexity, relative to the float model's: mean and deviation; None if there
            is no float model.
        recovered: The share of what GPTQ loses that training regains; None: not known.
    """
    if change is None:
        return f"not judged: no {FLOAT}"
    reasons = []
    if not change[0] <= TOLERANCE:  # written so that NaN fails
        reasons.append(f"more than {TOLERANCE:.0%} above {FLOAT}")
    if recovered is not None and not recovered >= RECOVERED:
        reasons.append(f"less than {RECOVERED:.0%} of GPTQ's loss recovered")
    return f"failed: {' and '.join(reasons)}" if reasons else PASSED


def conclude_deployments(rows: list[DeploymentRow]) -> list[str]:
    """Return what the rows say, in words."""
    lines = []
    for row in rows:
        if row.verdict:
            change = "" if row.change is None else f" ({_percent(row.change)}"
            if row.recovered is not None:
                change += f"; {row.recovered:.0%} of what GPTQ loses is recovered"
            lines.append(
                f"{row.scheme}, deployed after training with it: {row.verdict}"
                f"{change + ')' if change else ''}."
            )
    return lines


def print_deployments(rows: list[DeploymentRow], decoded: list[Decoded], console: Console) -> None:
    """Print a table of the models that were rounded, and one of those that were trained."""
    hows = ", ".join(dict.fromkeys(one.how for one in decoded))
    batches = list(dict.fromkeys(str(one.batch) for one in decoded))
    for tuned, title in TITLES.items():
        own = [row for row in rows if row.tuned == tuned]
        if not own:
            continue
        table = Table(title=f"Deployed, {title}: perplexity per byte", box=BOX, padding=(0, 1))
        for heading in ("scheme", "perplexity", f"against {FLOAT}", "as good?", "recovered"):
            table.add_column(heading, no_wrap=heading == "scheme")
        for heading in ("kB", "seconds", *(f"tokens/s, {batch}" for batch in batches)):
            table.add_column(heading, justify="right")
        for row in own:
            table.add_row(*_cells(row, batches))
        console.print(table)
    if hows:
        console.print(f"Text was written by greedy decoding with a cache, {hows}.", highlight=False)


def _cells(row: DeploymentRow, batches: list[str]) -> list[str]:
    speeds = [
        f"{row.tokens_per_second[batch]:,.0f} ({row.faster[batch]:.2f} x)"
        if batch in row.faster
        else ""
        for batch in batches
    ]
    return [
        row.scheme,
        "{:.4f} ± {:.4f}".format(*row.perplexity),
        "" if row.change is None else _percent(row.change),
        row.verdict,
        "" if row.recovered is None else f"{row.recovered:.0%}",
        f"{row.file_bytes / 1e3:,.0f}",
        "" if row.seconds is None else f"{row.seconds:.2f}",
        *speeds,
    ]


def _percent(pair: tuple[float, float]) -> str:
    return f"{100 * pair[0]:+.2f} ± {100 * pair[1]:.2f} %"


def plot_deployments(rows: list[DeploymentRow], path: Path) -> None:
    """Draw perplexity against bytes, and its change against the float model's."""
    figure, axes = plt.subplots(1, 2, figsize=(15, 5.5), layout="constrained")
    colors = dict(
        zip(dict.fromkeys(row.scheme for row in rows), plt.get_cmap("tab20").colors, strict=False)
    )
    for row in rows:
        color = colors.get(row.scheme, "black")
        label = f"{row.scheme}, trained" if row.tuned else row.scheme
        _point(axes[0], row, (row.perplexity[0], 0.0), color, label)  # seeds differ by far more
        if row.change is not None and row.scheme != FLOAT:
            _point(axes[1], row, tuple(100 * value for value in row.change), color, label)
    axes[0].set_ylabel("perplexity per byte: mean of the seeds")
    axes[1].set_ylabel(f"its change against {FLOAT} of the same seed, %: mean ± deviation")
    axes[1].axhline(0, color="gray", linewidth=1)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right", fontsize=8)
    for axis in axes:
        axis.set_xlabel("kB of the file")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _point(
    axis: Axes, row: DeploymentRow, pair: tuple[float, ...], color: object, label: str
) -> None:
    marker = "^" if row.tuned else "o"
    size = row.file_bytes / 1e3
    axis.errorbar(size, pair[0], yerr=pair[1], fmt=marker, color=color, label=label, capsize=3)


def print_mixture(mixture: dict[str, Any], console: Console) -> None:
    """Print what each layer suffers, and what was chosen; ``Mixture.as_dict`` gives it."""
    report = baraquant.Sensitivity.from_dict(mixture["report"])
    table = Table(
        title="Relative squared error of each layer's output",
        caption=f"budget {mixture['budget']:,} bytes: {mixture['summary']}",
        box=BOX,
    )
    table.add_column("layer")
    for heading in (*report.configs, "chosen"):
        table.add_column(heading, justify="right")
    for layer in report.layers:
        errors = (f"{layer.errors[name]:.2e}" for name in report.configs)
        table.add_row(layer.path, *errors, mixture["chosen"][layer.path])
    console.print(table)


def plot_mixture(mixture: dict[str, Any], path: Path) -> None:
    """Draw the error of each layer against its bytes, and what was chosen."""
    report = baraquant.Sensitivity.from_dict(mixture["report"])
    report.plot(path, {layer: report.configs[name] for layer, name in mixture["chosen"].items()})
