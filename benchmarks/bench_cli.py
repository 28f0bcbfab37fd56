# SPDX-License-Identifier: BSD-3-Clause
"""The command line that the benchmarks share, and the plans it changes."""

import argparse
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from benchmarks.bench import Timer, keep_freed_memory
from benchmarks.bench_plot import Plot
from benchmarks.bench_report import OPS, Layout, Part, run_sections
from benchmarks.bench_row import DTYPES, Row

# The options that name a file, and its suffix.
FILES = {"json": "json", "markdown": "md", "plot": "png"}


@dataclass(frozen=True)
class Plan:
    """What one section runs over; each kind of plan adds its cases."""

    sizes: list[str]
    dtypes: list[str]
    threads: list[int]

    def cases(self) -> list[Any]:
        """What is measured of each size, dtype and number of threads."""
        raise NotImplementedError


@dataclass(frozen=True)
class SegmentPlan(Plan):
    """A plan over what shares a scale."""

    granularities: list[str]

    def cases(self) -> list[Any]:
        """Each granularity."""
        return list(self.granularities)


P = TypeVar("P", bound=Plan)


def parse_size(text: str, dtype: torch.dtype) -> int:
    """Elements of a size such as ``64MiB`` (bytes), ``2^28``, ``14336x4096`` or ``4096``."""
    text = text.strip()
    if match := re.fullmatch(r"(\d+)\s*([KMG])iB", text):
        shift = {"K": 10, "M": 20, "G": 30}[match[2]]
        return (int(match[1]) << shift) // dtype.itemsize
    if match := re.fullmatch(r"(\d+)\^(\d+)", text):
        return int(match[1]) ** int(match[2])
    if re.fullmatch(r"\d+(x\d+)*", text):
        return math.prod(int(part) for part in text.split("x"))
    raise ValueError(f"expected a size such as 64MiB, 2^28, 14336x4096 or 4096, but got {text!r}")


def parser_of(
    family: str, description: str | None, what: Sequence[str], sizes: str = "64MiB 14336x4096 2^28"
) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; ``sizes`` are examples."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="{family} in a path stands for " + family + ".",
    )

    def path(text: str) -> Path:
        return Path(text.replace("{family}", family))

    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(default_device))
    parser.add_argument("--sizes", nargs="+", help=f"such as {sizes}")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES)
    parser.add_argument("--what", nargs="+", choices=what, help="which sections")
    parser.add_argument("--threads", nargs="+", type=int, help="on the CPU")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="on the CPU: keep freed memory, not as by default",
    )
    parser.add_argument("--json", type=path, help="write all rows here")
    parser.add_argument("--markdown", type=path, help="write the table here")
    parser.add_argument("--plot", type=path, help="write a PNG here")
    parser.add_argument("--out", type=path, help="write all three, with this path before suffixes")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, dtypes and rounds")
    return parser


def parse(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    read_size: Callable[[str], object] = lambda size: parse_size(size, torch.float32),
) -> argparse.Namespace:
    """Reads the command line, refuses sizes that ``read_size`` refuses, and names the files."""
    options = parser.parse_args(argv)
    try:
        for size in options.sizes or []:
            read_size(size)
    except ValueError as error:
        parser.error(str(error))
    for name, suffix in FILES.items() if options.out else ():
        path = getattr(options, name) or options.out.with_name(f"{options.out.name}.{suffix}")
        setattr(options, name, path)
    return options


def timer_of(options: argparse.Namespace) -> Timer:
    """As many rounds as there is time for."""
    cuda = options.device.type == "cuda"
    rounds = 3 if options.quick else 7 if cuda else 5
    return Timer(options.device, rounds, budget=2.0 if cuda else 1.0)


def chosen(plan: P, options: argparse.Namespace) -> P:
    """The plan with what the command line says in the place of defaults."""
    given = {name: getattr(options, name, None) for name in (field.name for field in fields(plan))}
    return replace(plan, **{name: value for name, value in given.items() if value})


def parts_of(
    plans: Iterable[P],
    options: argparse.Namespace,
    measure: Callable[[P, str, torch.dtype, list[Any]], Iterator[Row]],
) -> Iterator[Part]:
    """One part for each size, dtype and number of threads: ``measure`` of the cases in it.

    What is in several plans, as the command line may have it, belongs to the first.
    """
    cpu = options.device.type == "cpu"
    seen: set[tuple[object, ...]] = set()

    def part(
        plan: P, size: str, dtype: torch.dtype, threads: int, cases: list[Any]
    ) -> Iterator[Row]:
        if cpu:
            torch.set_num_threads(threads)
        yield from measure(plan, size, dtype, cases)

    for plan in (chosen(plan, options) for plan in plans):
        all_threads = plan.threads if cpu else plan.threads[:1]
        for size, name, threads in itertools.product(plan.sizes, plan.dtypes, all_threads):
            cases = [case for case in plan.cases() if (size, name, threads, case) not in seen]
            seen.update((size, name, threads, case) for case in cases)
            if cases:
                yield functools.partial(part, plan, size, DTYPES[name], threads, cases)


def run(
    sections: Iterable[tuple[str, list[Part]]],
    options: argparse.Namespace,
    plot: Plot,
    layout: Layout = OPS,
    about: Mapping[str, str] | None = None,
) -> list[Row]:
    """Measures and reports, from a seed, and leaves the number of threads as it was."""
    torch.manual_seed(0)
    if options.keep_memory:
        keep_freed_memory()
    threads = torch.get_num_threads()
    try:
        return run_sections(sections, options, Console(), plot, layout, about)
    finally:
        torch.set_num_threads(threads)
