# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the affine family: quantize, dequantize, fake_quantize, and their gradients.

Every figure stands beside a copy of the same input and beside PyTorch's own op, timed in turns in
the same run; the targets are ratios of those.

    python -m benchmarks.bench_affine                    # on a GPU if there is one
    python -m benchmarks.bench_affine --device cpu --json results/affine.json
"""

import argparse
import functools
from collections.abc import Callable, Iterator

import torch

from benchmarks.affine_rows import (
    COLUMNS,
    GRANULARITIES,
    bench_backward,
    bench_call_overhead,
    bench_compile,
    bench_forward,
    bench_scale_gradient,
)
from benchmarks.bench import Compiler, Timer, free_memory
from benchmarks.bench_cli import SegmentPlan, parse, parse_size, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_bars
from benchmarks.bench_report import Part
from benchmarks.bench_row import Case, Row

BENCHES = {
    "forward": bench_forward,
    "backward": bench_backward,
    "scale-gradient": bench_scale_gradient,
    "compile": bench_compile,
}
WHAT = ("call-overhead", *BENCHES)
COMPILE_FOR = 120  # seconds into the run: nothing is compiled after that


def default_plans(what: str, device: torch.device, quick: bool) -> list[SegmentPlan]:
    """All that is worth knowing in the time there is: two to three minutes, or 40 seconds."""
    cuda = device.type == "cuda"
    sizes = ["64MiB", "14336x4096", "2^28"] if cuda else ["4096x4096"]
    dtypes = ["float32", "bfloat16", "float16"]
    granularities = list(GRANULARITIES)
    threads = [torch.get_num_threads()]
    if what == "compile":  # compiling is slow: one scale for all, and many scales
        return [
            SegmentPlan(sizes[-1:], dtypes[: 2 if cuda else 1], threads, ["tensor", "group128"])
        ]
    if not cuda and what != "forward":
        return [SegmentPlan(sizes, dtypes[:1], threads, ["tensor", "channel0", "group32"])]
    if quick:
        return [SegmentPlan(sizes[-1:], dtypes[:2], threads, granularities)]
    if not cuda:
        one_and_all = sorted({1, *threads})
        smaller = ["8MiB", "16MiB", "32MiB"]  # glibc gives 32 MiB and more back to the system
        return [
            SegmentPlan(sizes, dtypes[:1], one_and_all, granularities),
            SegmentPlan(smaller, dtypes[:1], threads, granularities),
            SegmentPlan(sizes, dtypes[1:], threads, granularities),
        ]
    return [SegmentPlan(sizes, dtypes, threads, granularities)]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    timer = timer_of(options)
    compiler = Compiler(COMPILE_FOR)
    for what in (what for what in WHAT if what in options.what):
        if what == "call-overhead":
            yield what, [lambda: bench_call_overhead(options.device, timer, options.quick)]
            continue
        bench: Callable = BENCHES[what]
        if what == "compile":
            bench = functools.partial(bench, compiler=compiler)
        plans = default_plans(what, options.device, options.quick)
        yield (
            what,
            list(parts_of(plans, options, functools.partial(measure, bench, timer, options))),
        )


def measure(
    bench: Callable,
    timer: Timer,
    options: argparse.Namespace,
    plan: SegmentPlan,
    size: str,
    dtype: torch.dtype,
    granularities: list[str],
) -> Iterator[Row]:
    """The rows of one size and dtype."""
    rows = max(-(-parse_size(size, dtype) // COLUMNS), 1)
    case = Case(options.device, dtype, [rows, COLUMNS])
    for name in granularities:
        yield from bench(case, GRANULARITIES[name], timer)
        free_memory(options.device)


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("affine", __doc__, WHAT)
    parser.add_argument("--granularities", nargs="+", choices=list(GRANULARITIES))
    options = parse(parser, argv)
    options.what = options.what or (WHAT[:-1] if options.quick else WHAT)
    return run(sections(options), options, plot_bars)


if __name__ == "__main__":
    main()
