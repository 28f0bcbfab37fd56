# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the range family: scales from the data, and quantization with them.

Every figure stands beside a copy of the same input and beside PyTorch's ops, eager and under
torch.compile, timed in turns in the same run; the targets are ratios of those. A decode step (few
rows) on a GPU stands beside an empty launch and the time of its bytes.

    python -m benchmarks.bench_range                    # on a GPU if there is one
    python -m benchmarks.bench_range --device cpu --json results/range.json
"""

import argparse
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.bench import Compiler, Timer, free_memory
from benchmarks.bench_cli import SegmentPlan, parse, parse_size, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_lengths
from benchmarks.bench_report import Part
from benchmarks.bench_row import Case, Row
from benchmarks.pytorch_chains import Chain
from benchmarks.range_rows import (
    GRANULARITIES,
    MODES,
    Bench,
    bench_choose,
    bench_decode,
    bench_fake_quantize,
    bench_observe,
    bench_quantize,
)

LENGTHS = (512, 4096, 5120, 14336, 65536)
BENCHES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "token": functools.partial(bench_quantize, what="token"),
    "decode": bench_decode,
    "segments": bench_quantize,
    "choose": bench_choose,
    "fake-quantize": bench_fake_quantize,
    "observe": bench_observe,
}
COMPILE_FOR = {"cuda": 130, "cpu": 200}  # seconds into the run: nothing is compiled after that
SEGMENTS = ["group128", "tensor", "channel0", "channel1"]


@dataclass(frozen=True)
class RangePlan(SegmentPlan):
    """A plan, with the schemes of the scale, and whether the peers are compiled as well."""

    modes: list[str]
    compiled: bool = True

    def cases(self) -> list[tuple[str, str]]:
        """What is measured of each size, dtype and number of threads."""
        return list(itertools.product(self.granularities, self.modes))


def plan_of(
    sizes: list[str],
    dtypes: str,
    granularities: list[str],
    modes: tuple[str, ...] = MODES[:1],
    compiled: bool = True,
) -> RangePlan:
    """A plan with all threads."""
    threads = [torch.get_num_threads()]
    return RangePlan(sizes, dtypes.split(), threads, granularities, list(modes), compiled)


def cuda_plans(what: str) -> list[RangePlan]:
    """All that is worth knowing in three minutes; what has a target first, while time is left."""
    size, both = ["65536x4096"], "bfloat16 float32"
    if what == "token":
        full, few = (
            [f"{min(rows, (1 << 30) // length)}x{length}" for length in LENGTHS]
            for rows in (65536, 1024)
        )
        return [
            plan_of(full, both, ["token"]),
            plan_of([full[1], full[3]], "bfloat16", ["token"], MODES),
            plan_of(full, both, ["token"], MODES, compiled=False),
            plan_of(few, both, ["token"], compiled=False),
        ]
    if what == "decode":
        some, every = (
            [f"{rows}x{length}" for length in lengths for rows in (1, 16, 64)]
            for lengths in ([4096], LENGTHS)
        )
        return [
            plan_of(some, "bfloat16", ["token"]),
            plan_of(every, "bfloat16", ["token"], compiled=False),
            plan_of(some, both, ["token"], MODES, compiled=False),
        ]
    if what == "segments":
        return [
            plan_of(size, both, SEGMENTS),
            plan_of(size, both, SEGMENTS, MODES, compiled=False),
        ]
    if what == "choose":
        return [plan_of(size, "bfloat16", list(GRANULARITIES))]
    if what == "fake-quantize":
        return [
            plan_of(size, "bfloat16", ["token", "tensor"]),
            plan_of(size, both, ["token", *SEGMENTS], MODES, compiled=False),
        ]
    return [plan_of(size, "float32 bfloat16", ["tensor", "channel0"])]


def cpu_plans(what: str) -> list[RangePlan]:
    """Four minutes on two cores; torch.compile is a target of every row."""
    size, both = ["4096x4096"], "float32 bfloat16"
    if what == "token":
        sizes = [f"{(1 << 24) // length}x{length}" for length in LENGTHS]
        return [plan_of(sizes, both, ["token"]), plan_of(size, both, ["token"], MODES)]
    if what == "decode":
        return [
            plan_of(["1x4096", "64x4096"], both, ["token"]),
            plan_of(["1x4096"], "float32", ["token"], MODES),
        ]
    if what == "segments":
        return [plan_of(size, both, SEGMENTS), plan_of(size, "float32", SEGMENTS, MODES)]
    if what == "choose":
        return [plan_of(size, "float32", list(GRANULARITIES))]
    if what == "fake-quantize":
        return [plan_of(size, both, ["token"], MODES), plan_of(size, "float32", ["tensor"])]
    return [plan_of(size, "float32", ["tensor", "channel0"])]


def plans_of(what: str, options: argparse.Namespace) -> list[RangePlan]:
    """The plans of a section; quick is the last size of each, and nothing compiled."""
    plans = cuda_plans(what) if options.device.type == "cuda" else cpu_plans(what)
    if not options.quick:
        return plans
    return [replace(plan, sizes=plan.sizes[-1:], compiled=False) for plan in plans]


def shapes_of(size: str, dtype: torch.dtype) -> list[list[int]]:
    """``rows x length`` as it is; of any other size as many rows of each length as it holds."""
    if match := re.fullmatch(r"(\d+)x(\d+)", size):
        return [[int(match[1]), int(match[2])]]
    elements = parse_size(size, dtype)
    return [[max(elements // length, 1), length] for length in LENGTHS]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    timer = timer_of(options)
    compiler = Compiler(COMPILE_FOR[options.device.type])
    for what in (what for what in BENCHES if what in options.what):
        rows = functools.partial(measure, BENCHES[what], options.device, timer, compiler)
        yield what, list(parts_of(plans_of(what, options), options, rows))


def measure(
    bench: Callable[[Bench], Iterator[Row]],
    device: torch.device,
    timer: Timer,
    compiler: Compiler,
    plan: RangePlan,
    size: str,
    dtype: torch.dtype,
    cases: list[tuple[str, str]],
) -> Iterator[Row]:
    """The rows of one size and dtype."""
    for shape in shapes_of(size, dtype):
        case = Case(device, dtype, shape)
        for granularity, mode in cases:
            chain = Chain(GRANULARITIES[granularity], symmetric=mode == MODES[0])
            yield from bench(Bench(case, chain, timer, compiler if plan.compiled else None))
            free_memory(device)


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("range", __doc__, list(BENCHES))
    parser.add_argument("--granularities", nargs="+", choices=list(GRANULARITIES))
    parser.add_argument("--modes", nargs="+", choices=MODES)
    options = parse(parser, argv)
    options.what = options.what or list(BENCHES)
    return run(sections(options), options, plot_lengths)


if __name__ == "__main__":
    main()
