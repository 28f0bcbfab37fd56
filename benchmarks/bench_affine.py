# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the affine family: quantize, dequantize, fake_quantize, and their gradients.

Every figure stands beside a copy of the same input and beside PyTorch's own op, timed in turns in
the same run; the targets are ratios of those.

    python benchmarks/bench_affine.py                    # on a GPU if there is one
    python benchmarks/bench_affine.py --device cpu --json results/affine.json
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from affine_rows import (
    DTYPES,
    GRANULARITIES,
    Case,
    bench_backward,
    bench_call_overhead,
    bench_compile,
    bench_forward,
    bench_scale_gradient,
)
from bench import Row, Timer, free_memory, parse_size
from bench_report import Part, run_sections

BENCHES = {
    "forward": bench_forward,
    "backward": bench_backward,
    "scale-gradient": bench_scale_gradient,
    "compile": bench_compile,
}
WHAT = ("call-overhead", *BENCHES)
COMPILE_UNTIL = 120  # seconds into the run: nothing is compiled after that


@dataclass(frozen=True)
class Plan:
    """What one section runs over."""

    sizes: list[str]
    dtypes: list[str]
    granularities: list[str]
    threads: list[int]


def default_plans(what: str, device: torch.device, quick: bool) -> list[Plan]:
    """All that is worth knowing in the time there is: two to three minutes, or 40 seconds."""
    cuda = device.type == "cuda"
    sizes = ["64MiB", "14336x4096", "2^28"] if cuda else ["4096x4096"]
    dtypes = ["float32", "bfloat16", "float16"]
    granularities = list(GRANULARITIES)
    threads = [torch.get_num_threads()]
    if what == "compile":  # compiling is slow: one scale for all, and many scales
        return [Plan(sizes[-1:], dtypes[: 2 if cuda else 1], ["tensor", "group128"], threads)]
    if not cuda and what != "forward":
        return [Plan(sizes, dtypes[:1], ["tensor", "channel0", "group32"], threads)]
    if quick:
        return [Plan(sizes[-1:], dtypes[:2], granularities, threads)]
    if not cuda:
        one_and_all = sorted({1, *threads})
        return [
            Plan(sizes, dtypes[:1], granularities, one_and_all),
            Plan(sizes, dtypes[1:], granularities, threads),
        ]
    return [Plan(sizes, dtypes, granularities, threads)]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    start = time.monotonic()
    cuda = options.device.type == "cuda"
    rounds = 3 if options.quick else 7 if cuda else 5
    timer = Timer(options.device, rounds, budget=2.0 if cuda else 1.0)
    for what in (what for what in WHAT if what in options.what):
        if what == "call-overhead":
            yield what, [lambda: bench_call_overhead(options.device, timer, options.quick)]
        else:
            deadline = start + COMPILE_UNTIL if what == "compile" else None
            plans = chosen_plans(what, options)
            parts = (parts_of(p, BENCHES[what], options.device, timer, deadline) for p in plans)
            yield what, list(itertools.chain.from_iterable(parts))


def chosen_plans(what: str, options: argparse.Namespace) -> list[Plan]:
    """The plans of a section, with what the command line says in the place of defaults."""
    plans = [
        Plan(
            options.sizes or plan.sizes,
            options.dtypes or plan.dtypes,
            options.granularities or plan.granularities,
            options.threads or plan.threads,
        )
        for plan in default_plans(what, options.device, options.quick)
    ]
    return plans[:1] if options.dtypes else plans  # plans differ in their dtypes


def parts_of(
    plan: Plan, bench: Callable, device: torch.device, timer: Timer, deadline: float | None
) -> list[Part]:
    """One part for each size, dtype and number of threads."""

    def part(size: str, dtype: torch.dtype, threads: int) -> Iterator[Row]:
        if device.type == "cpu":
            torch.set_num_threads(threads)
        case = Case(device, dtype, parse_size(size, dtype))
        for name in plan.granularities:
            if deadline is not None and time.monotonic() > deadline:
                return
            yield from bench(case, GRANULARITIES[name], timer)
            free_memory(device)

    return [
        lambda size=size, name=name, threads=threads: part(size, DTYPES[name], threads)
        for size in plan.sizes
        for name in plan.dtypes
        for threads in (plan.threads if device.type == "cpu" else plan.threads[:1])
    ]


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(default_device))
    parser.add_argument("--sizes", nargs="+", help="such as 64MiB 14336x4096 2^28")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES)
    parser.add_argument("--granularities", nargs="+", choices=GRANULARITIES)
    parser.add_argument("--what", nargs="+", choices=WHAT)
    parser.add_argument(
        "--threads", nargs="+", type=int, help="on the CPU; default: all, and 1 for float32"
    )
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--plot", type=Path, help="write a PNG here")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, dtypes and rounds")
    options = parser.parse_args(argv)
    options.what = options.what or (WHAT[:-1] if options.quick else WHAT)
    try:
        for size in options.sizes or []:
            parse_size(size, torch.float32)
    except ValueError as error:
        parser.error(str(error))
    return options


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    options = parse_args(argv)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    try:
        return run_sections(sections(options), options, Console())
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
