# SPDX-License-Identifier: BSD-3-Clause
"""What is shown of a run: failures, a summary, and the page docs/models.md."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

from tests.zoo import torchvision_support
from tests.zoo.cells import ARCHITECTURES, FAILED, NOT_RUN, NOTHING, Result
from tests.zoo.schemes import SCHEMES

COMMAND = "python -m tests.zoo.run --only"
MAX_REASONS = 3

INTRODUCTION = """# Models

Models that nobody here wrote, under every scheme. They are built from the configurations of
transformers and of torchvision, tiny and with random weights: what is shown is that their code runs
on quantized layers and that the numbers are right, not how accurate a trained model is.
`make zoo` makes this page; nothing on it is written by hand.

| column | meaning |
|---|---|
| integers | the share of the parameters that `quantize_` with `W8A8` turns into integers |
| stays floating | the largest of what is left: its share, and the reason in the report |
| converted = evaluated | after training, `convert_` keeps the bits of the prepared model |
| loaded = saved | a new process gets the bits, with a function that builds the model to load \
into, and with a model on the meta device |
| generates | `generate` gives the same tokens before and after conversion, with and without a \
cache |

The last three count the schemes with which this held. A dash: there is nothing to check.
"""


def show_failure(console: Console, result: Result) -> None:
    """One failed cell: what failed, and the command that shows it again."""
    console.print(f"[red]failed[/]  {escape(result.cell)}")
    for check, message in result.failed.items():
        console.print(f"        {escape(check)}: {escape(message)}", soft_wrap=True)
    console.print(f"        {COMMAND} {escape(result.cell)}", soft_wrap=True)


def show_summary(console: Console, results: list[Result], seconds: float) -> None:
    """Counts, and why cells were not run or had nothing to quantize."""
    counts = Counter(result.status for result in results)
    for status in (NOT_RUN, NOTHING):
        reasons = Counter(
            (result.reason if status == NOT_RUN else result.cell.split(":")[0])
            for result in results
            if result.status == status
        )
        for reason, count in reasons.most_common():
            console.print(f"{status}: {count} cells: {escape(reason)}", soft_wrap=True)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    architectures = len({result.cell.split(":")[0] for result in results})
    console.print(f"{architectures} architectures, {len(results)} cells: {told}; {seconds:.0f} s")


def page(results: list[Result]) -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    lines += [
        "| architecture | kind | integers | stays floating | converted = evaluated | "
        "loaded = saved | generates |",
        "|---|---|---|---|---|---|---|",
    ]
    missing: dict[str, list[str]] = {}
    for name, group in itertools.groupby(results, lambda result: result.cell.split(":")[0]):
        found = list(group)
        ran = [result for result in found if result.status != NOT_RUN]
        if not ran:
            missing.setdefault(found[0].reason, []).append(name)
            continue
        cells = [name, ARCHITECTURES[name].family, *_weights(ran)]
        cells += [_count(ran, check) for check in ("converted", "loaded", "generates")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [""] + [f"Not run: {', '.join(names)}: {why}." for why, names in missing.items()]
    return "\n".join([*lines, *_foot(results)]) + "\n"


def _weights(results: list[Result]) -> tuple[str, str]:
    """The share of integers, and what stays floating, of W8A8; else of what comes first."""
    for result in results:
        if "share" in result.figures:
            break
    else:
        reasons = [result.reason for result in results if result.status == NOTHING]
        return "0 %", reasons[0] if reasons else "–"
    total = sum(result.floating.values()) / max(1e-9, 1.0 - result.figures["share"])
    some = list(result.floating.items())[:MAX_REASONS]
    what = "; ".join(f"{_percent(count / total)} {reason}" for reason, count in some if count)
    return _percent(result.figures["share"]), what or "–"


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _count(results: list[Result], check: str) -> str:
    """With how many schemes a check passed, of those that it was made with."""
    passed = sum(check in result.passed for result in results)
    failed = sum(any(name.startswith(check) for name in result.failed) for result in results)
    return f"{passed} of {passed + failed}" if passed + failed else "–"


def _foot(results: list[Result]) -> Iterable[str]:
    counts = Counter(result.status for result in results)
    told = ", ".join(f"{counts[s]} {s}" for s in sorted(counts, key=lambda s: -counts[s]))
    yield "## The run"
    yield ""
    yield f"{len(results)} cells (architecture, scheme, dtype): {told}."
    if counts[FAILED]:
        yield "Failed: " + ", ".join(f"`{r.cell}`" for r in results if r.status == FAILED) + "."
    yield f"Schemes: {', '.join(SCHEMES)}."
    versions = [f"{name} {_version(name)}" for name in ("torch", "transformers", "torchvision")]
    yield f"Versions: {', '.join(versions)}."


def _version(name: str) -> str:
    if name == "torchvision":
        return torchvision_support.version() or "not installed"
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
