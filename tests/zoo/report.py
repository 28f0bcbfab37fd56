# SPDX-License-Identifier: BSD-3-Clause
"""What is shown of a run: failures, a summary, and the page docs/models.md."""

import itertools
from collections import Counter

from rich.console import Console
from rich.markup import escape

from tests.zoo import torchvision_support
from tests.zoo.cells import ARCHITECTURES, FAILED, NOT_RUN, NOTHING, Result
from tests.zoo.schemes import SCHEMES

COMMAND = "python -m tests.zoo.run --only"
MAX_REASONS = 3
PACKAGES = ("torch", "transformers", "torchvision")

INTRODUCTION = """# Models

`make zoo` builds models of transformers, torchvision and torch.nn, runs each under every scheme,
and writes this page. The models are tiny and have random weights. The page shows that their code
runs on quantized layers and that the numbers are right. It does not show how accurate a trained
model is.

| column | meaning |
|---|---|
| integers | the share of the parameters that `quantize_` with `W8A8` turns into integers |
| stays floating | the largest parts of the other parameters, each with its share and the reason \
that the report gives |
| converted = evaluated | after training, the converted model has the bits of the prepared one |
| loaded = saved | a new process loads the file and gets the bits of the model that was saved, \
both with a function that builds the model and with a model on the meta device, and also after \
`merge_linears_` |
| generates | `generate` gives the same tokens before and after conversion, both with a cache \
and without one |

The last three columns count the schemes for which this held. A dash means that there was nothing
to check.
"""
# What a cell did, as a sentence says it.
DID = {FAILED: "failed", NOT_RUN: "did not run", NOTHING: "had nothing to quantize"}


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
    lines = [
        INTRODUCTION,
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
    lines.append("")
    for why, names in missing.items():
        lines += [f"{', '.join(names)} did not run, because {why}.", ""]
    counts = Counter(result.status for result in results)
    told = ", ".join(f"{count} {DID.get(status, status)}" for status, count in counts.most_common())
    amount = f"{len(results)} cells of an architecture, a scheme and a dtype"
    lines += ["## The run", "", f"The run had {amount}: {told}."]
    if counts[FAILED]:
        failed = ", ".join(f"`{r.cell}`" for r in results if r.status == FAILED)
        lines.append(f"These cells failed: {failed}.")
    lines.append(f"The schemes were {', '.join(SCHEMES)}.")
    found = {name: torchvision_support.version(name) for name in PACKAGES}
    versions = ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
    return "\n".join([*lines, f"The versions were {versions}.", ""])


def _weights(results: list[Result]) -> tuple[str, str]:
    """The share of integers, and what stays floating, of W8A8; else of what comes first."""
    result = next((result for result in results if "share" in result.figures), None)
    if result is None:
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
