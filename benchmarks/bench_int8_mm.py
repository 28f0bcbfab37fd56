# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the integer matrix family: linear layers of int8 weights, W8A8.

Every figure stands beside what PyTorch has, timed in turns in the same run: ``torch._int_mm``,
alone and with the dequantization that a user adds, a float layer, and fp8 on a GPU or
quantize_dynamic on a CPU. A size is a weight's, N x K; the shapes of the table are M x N x K.

    python -m benchmarks.bench_int8_mm                    # on a GPU if there is one
    python -m benchmarks.bench_int8_mm --sizes 4096x4096 --rows 1 64 --what linear
"""

import argparse
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.bench import Compiler, Timer, describe, free_memory
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_products
from benchmarks.bench_report import Part
from benchmarks.bench_row import Case, Row
from benchmarks.int8_mm_layer import COPIED, Bench, Weights
from benchmarks.int8_mm_rows import (
    bench_behind,
    bench_cached,
    bench_linear,
    bench_odd,
    bench_training,
    bench_variants,
    bench_whole,
)

# Layers of Llama 3 with 8 and 70 billion parameters: attention, gate and up, down.
SIZES = [
    *("4096x4096", "6144x4096", "28672x4096", "4096x14336"),
    *("57344x8192", "8192x28672", "8192x8192"),
]
ROWS = [1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192]
BENCHES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "linear": bench_linear,
    "cached": bench_cached,
    "whole": bench_whole,
    "behind": bench_behind,
    "training": bench_training,
    "odd": bench_odd,
    "variants": bench_variants,
}
COMPILE_FOR = 120  # seconds into the run: nothing is compiled after that


@dataclass(frozen=True)
class ProductPlan(Plan):
    """A plan over numbers of rows, and whether the peers are compiled as well."""

    rows: list[int]
    compiled: bool = False

    def cases(self) -> list[Any]:
        """Each M."""
        return list(self.rows)


def cuda_plans(what: str) -> list[ProductPlan]:
    """All that is worth knowing in three minutes; what is compiled first, while time is left."""
    plan = functools.partial(ProductPlan, dtypes=["bfloat16"], threads=[torch.get_num_threads()])
    some = ["4096x4096", "28672x4096"]
    if what == "linear":
        return [plan(some, rows=[64, 4096], compiled=True), plan(SIZES, rows=ROWS)]
    if what == "cached":
        return []  # there a network has more weights than a cache holds
    if what == "whole":
        rows = [1, 16, 64, 256, 1024, 4096]
        return [plan(some, rows=[4096], compiled=True), plan(SIZES, rows=rows)]
    if what == "behind":
        return [plan(SIZES, rows=[16, 4096])]
    if what == "training":
        sizes = [*some, "4096x14336", "8192x8192"]
        return [plan(some[:1], rows=[4096], compiled=True), plan(sizes, rows=[4096, 16384])]
    if what == "odd":
        sizes = ["4096x4095", "4096x4097", "4095x4096", "4097x4097"]
        return [plan(sizes, rows=[1, 17, 255, 4097])]
    return [plan(some, rows=[16, 256, 4096])]


def cpu_plans(what: str) -> list[ProductPlan]:
    """Five minutes on two cores."""
    threads = torch.get_num_threads()
    plan = functools.partial(ProductPlan, dtypes=["float32"], threads=[threads])
    one_and_all = sorted({1, threads})
    if what == "linear":
        return [
            plan(["4096x4096"], rows=[1, 4, 16, 64, 128, 512], threads=one_and_all),
            plan(["1024x4096", "4096x14336"], rows=[1, 128]),
        ]
    if what == "cached":
        return [plan(["1024x1024", "4096x4096"], rows=[1], threads=one_and_all)]
    if what == "whole":
        return [plan(["4096x4096"], rows=[1, 16, 128, 512], threads=one_and_all)]
    if what == "behind":
        return [plan(["4096x4096"], rows=[1, 128])]
    if what == "training":
        return [plan(["4096x4096"], rows=[128])]
    if what == "odd":
        return [plan(["4096x4095", "4097x4097"], rows=[1, 127])]
    return [plan(["4096x4096"], rows=[1, 128])]


def plans_of(what: str, options: argparse.Namespace) -> list[ProductPlan]:
    """The plans of a section; quick is one size, every third M of it, and nothing compiled."""
    plans = cuda_plans(what) if options.device.type == "cuda" else cpu_plans(what)
    if not options.quick or not plans:
        return plans
    last = plans[-1]
    return [replace(last, sizes=last.sizes[:1], rows=last.rows[::3], compiled=False)]


def parse_weight(text: str) -> tuple[int, int]:
    """N and K of ``4096x14336``."""
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text):
        return int(match[1]), int(match[2])
    raise ValueError(f"expected the size of a weight, such as 4096x14336, but got {text!r}")


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    timer = timer_of(options)
    compiler = Compiler(COMPILE_FOR)
    copy = Case(options.device, torch.bfloat16, COPIED[options.device.type])
    for what in (what for what in BENCHES if what in options.what):
        rows = functools.partial(measure, what, options.device, timer, compiler, copy)
        if plans := plans_of(what, options):
            yield what, list(parts_of(plans, options, rows))


def measure(
    what: str,
    device: torch.device,
    timer: Timer,
    compiler: Compiler,
    copy: Case,
    plan: ProductPlan,
    size: str,
    dtype: torch.dtype,
    rows: list[int],
) -> Iterator[Row]:
    """The rows of one weight and dtype; an M that fails hinders no other."""
    weights = Weights(device, dtype, *parse_weight(size))
    for m in rows:
        bench = Bench(weights, m, timer, compiler if plan.compiled else None, copy)
        try:
            yield from BENCHES[what](bench)
        except Exception as error:  # such as too little memory for what the peers take
            yield bench.row(what, what, "").fail(describe(error))
        free_memory(device)


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("int8_mm", __doc__, list(BENCHES), sizes="4096x14336, N x K")
    parser.add_argument("--rows", nargs="+", type=int, help="how many rows of input, M")
    options = parse(parser, argv, parse_weight)
    options.what = options.what or list(BENCHES)
    return run(sections(options), options, plot_products)


if __name__ == "__main__":
    main()
