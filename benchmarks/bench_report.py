# SPDX-License-Identifier: BSD-3-Clause
"""Runs the sections of a benchmark, and shows its rows: as table, Markdown and JSON."""

import argparse
import contextlib
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.bench import describe, free_memory
from benchmarks.bench_plot import Plot
from benchmarks.bench_row import Row, Within

Part = Callable[[], Iterator[Row]]

HEAD, TAIL = ("op", "case", "dtype", "shape"), ("against", "target", "")
RATES = ("µs", "GB/s", "of copy")
PRODUCT_RATES = ("µs", "TOPS", "of bound")


def columns(rows: list[Row]) -> tuple[str, ...]:
    """The titles: a product counts operations, everything else bytes."""
    return (*HEAD, *(PRODUCT_RATES if any(row.tops for row in rows) else RATES), *TAIL)


def cells(row: Row) -> tuple[str, ...]:
    """The texts of a row."""
    case = row.case if row.threads is None else f"{row.case}, {threads_text(row.threads)}"
    head = (row.op, case, row.dtype, "x".join(map(str, row.shape)))
    targets = ", ".join(map(str, row.targets))
    if row.seconds is None:
        return (*head, "", "", "", row.error or "not measured", targets, verdicts(row))
    against = [f"{ratio:.2f}x {name}" for name, ratio in row.speedups.items()]
    against += [f"{name} failed" for name in row.peer_errors]
    if row.bound is not None and any(isinstance(target, Within) for target in row.targets):
        against.append(f"bound {(row.seconds - row.bound) * 1e6:+.1f} µs")
    if row.held:
        texts = (f"{bytes_text(held)} ({name})" for name, held in row.held.items())
        against.append("holds " + " vs ".join(texts))
    if row.note:
        against.append(row.note)
    rate, share = (row.tops, row.of_bound) if row.tops else (row.gbps, row.of_copy)
    return (
        *head,
        f"{row.seconds * 1e6:,.1f}",
        (f"{rate:.3g}" if row.tops and rate < 100 else f"{rate:,.0f}") if rate else "",
        f"{share:.1%}" if share else "",
        ", ".join(against),
        targets,
        verdicts(row),
    )


@dataclass(frozen=True)
class Layout:
    """What a table shows of rows, the verdict last; ``numbers`` are the columns of numbers."""

    columns: Callable[[list[Row]], tuple[str, ...]]
    cells: Callable[[Row], tuple[str, ...]]
    numbers: frozenset[str]


OPS = Layout(columns, cells, frozenset((*RATES, *PRODUCT_RATES)))


def print_table(title: str, rows: list[Row], console: Console, layout: Layout = OPS) -> None:
    """Prints rows, verdicts in colour."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in layout.columns(rows):
        table.add_column(name, justify="right" if name in layout.numbers else "left")
    for row in rows:
        *texts, verdict = layout.cells(row)
        color = "red" if row.error is not None or False in row.met else "green"
        table.add_row(*texts, f"[{color}]{verdict}" if verdict else "")
    console.print(table)


def markdown(rows: list[Row], about: dict[str, Any], layout: Layout = OPS) -> str:
    """A table for documentation, under a line that names the machine and the versions."""
    titles = layout.columns(rows)
    lines = [
        ", ".join(f"{name} {value}" for name, value in about.items()),
        "",
        "| " + " | ".join(titles) + " |",
        "|" + "|".join("---" for _ in titles) + "|",
    ]
    lines += ["| " + " | ".join(layout.cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def run_sections(
    sections: Iterable[tuple[str, list[Part]]],
    options: argparse.Namespace,
    console: Console,
    plot: Plot,
    layout: Layout = OPS,
    more: Mapping[str, str] | None = None,
) -> list[Row]:
    """Measures section by section; each is printed when it is done, and the files have each part.

    Args:
        sections: A title, and functions that yield rows.
        options: ``device``, and the paths ``json``, ``markdown`` and ``plot``, or None.
        console: Where the tables go.
        plot: Draws the rows into ``options.plot``.
        layout: What the tables show of rows.
        more: What the results say of the environment beside :func:`environment`.
    """
    if not console.is_terminal:
        console = Console(width=210)  # a log file has no width of its own
    start = time.monotonic()
    about = environment(options.device) | dict(more or {})
    if options.device.type == "cpu":
        about["freed_memory"] = "kept" if options.keep_memory else "given back, by default"
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows: list[Row] = []

    def save(own: list[Row]) -> None:
        if options.json:
            write_json(rows + own, about, options.json)
        if options.markdown:
            options.markdown.parent.mkdir(parents=True, exist_ok=True)
            options.markdown.write_text(markdown(rows + own, about, layout))

    for title, parts in sections:
        gc.collect()
        gc.freeze()  # what was imported stays: collections between rows need not walk it
        own = _run_parts(title, parts, options, console, save)
        gc.unfreeze()
        rows += own
        save([])
        if own:
            print_table(title, own, console, layout)
        else:
            console.print(f"{title}: nothing measured, the time was used up\n")
    if options.plot:
        plot(rows, about, options.plot)
    seconds = time.monotonic() - start
    console.print(f"{count_verdicts(rows)} {seconds:.0f} s.", highlight=False)
    return rows


def _run_parts(
    title: str,
    parts: list[Part],
    options: argparse.Namespace,
    console: Console,
    save: Callable[[list[Row]], None],
) -> list[Row]:
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        for part in progress.track(parts, description=title):
            try:
                rows.extend(part())
            except Exception as error:  # such as too little memory for the inputs
                rows.append(Row(title, title, "", "", [], error=describe(error)))
            save(rows)
            free_memory(options.device)
    return rows


def count_verdicts(rows: list[Row]) -> str:
    """How many targets are met, in a sentence."""
    met = [met for row in rows for met in row.met]
    failed = sum(row.error is not None for row in rows)
    text = f"{met.count(True)} of {len(met)} targets met; "
    if unknown := met.count(None):
        text += f"{unknown} of them without the figure they are set against; "
    return text + f"{failed} of {len(rows)} rows failed."


def write_json(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Writes all rows and the environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"environment": about, "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(report, indent=1) + "\n")


def verdicts(row: Row) -> str:
    """Whether each target is met."""
    if row.error is not None:
        return "error"
    return ", ".join({True: "met", False: "missed", None: "?"}[met] for met in row.met)


def bytes_text(count: int) -> str:
    """In MiB."""
    return f"{count / (1 << 20):,.1f} MiB"


def threads_text(count: int) -> str:
    """Such as ``2 threads``."""
    return f"{count} thread" + ("s" if count > 1 else "")


def environment(device: torch.device) -> dict[str, Any]:
    """Where the figures come from."""
    import baraquant

    about: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "baraquant": baraquant.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        about["cuda"] = torch.version.cuda
        about["multiprocessors"] = torch.cuda.get_device_properties(device).multi_processor_count
    with contextlib.suppress(ImportError, AttributeError):
        from baraquant import _C

        about["cpu_isa"] = _C.cpu_isa()
    about["torch_cpu_isa"] = torch.backends.cpu.get_cpu_capability()
    about["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    return about


def cpu_name() -> str:
    """The processor's name and number of cores."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"
