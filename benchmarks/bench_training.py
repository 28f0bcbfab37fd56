# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of a Transformer block's training step: forward, backward and optimizer.

A block in floats, ours prepared for W8A8 and W4A8, and what else there is: a chain of PyTorch's own
ops, PyTorch's fake quantize, torchao. Each is run eagerly, compiled, and captured whole in a CUDA
graph, in turns; ratios are to the block in floats in the same mode. The peak of memory is what a
step takes above parameters and optimizer state. A size is batch x tokens x width.

    python -m benchmarks.bench_training                     # on a GPU if there is one
    python -m benchmarks.bench_training --what eager --sizes 4x2048x4096 --dtypes bfloat16
    python -m benchmarks.bench_training --only "baraquant W8A8" "baraquant W8A8 int8"
"""

import argparse
import functools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.bench import Timer, describe, free_memory
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run
from benchmarks.bench_report import Part
from benchmarks.bench_row import Row

# isort: split
from benchmarks.training_block import (
    CHAIN,
    OWN_INT8,
    OWN_INT8_INPUT,
    OWN_W8A8,
    Variant,
    variants,
)
from benchmarks.training_plot import plot_training
from benchmarks.training_row import TRAINING, PeaksAtMost, TakesAtMost, TrainingRow
from benchmarks.training_step import Figures, Stepper
from tests.support.cases import name_of

MODES = ("eager", "compiled", "graph")
COMPILE_FOR = 200  # seconds into the run: nothing is compiled after that


@dataclass(frozen=True)
class TrainingPlan(Plan):
    """A plan over sizes and dtypes; all variants are compared in one part."""

    def cases(self) -> list[Any]:
        """One."""
        return ["step"]


def plans_of(what: str, options: argparse.Namespace) -> list[TrainingPlan]:
    """The plan of a mode; quick runs, and the CPU, take a toy."""
    threads = [torch.get_num_threads()]
    if options.device.type != "cuda":
        if what == "graph" or (what == "compiled" and options.quick):
            return []
        return [TrainingPlan(["2x64x128" if options.quick else "2x128x512"], ["float32"], threads)]
    return [TrainingPlan(["2x128x512" if options.quick else "4x2048x4096"], ["bfloat16"], threads)]


def parse_shape(text: str) -> list[int]:
    """Batch, tokens and width of ``4x2048x4096``."""
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text):
        shape = [int(part) for part in match.groups()]
        if shape[-1] % 128 == 0 or shape[-1] < 128:
            return shape
    raise ValueError(
        "expected batch x tokens x width, such as 4x2048x4096, the width below 128 or a multiple "
        f"of it, but got {text!r}"
    )


def targets_of(variant: Variant, mode: str, baseline: str, device: torch.device) -> list[Any]:
    """What W8A8, with each backward pass, has to reach on a GPU."""
    most = {OWN_W8A8: 1.0, OWN_INT8_INPUT: 0.80, OWN_INT8: 0.68}
    if variant.name not in most or device.type != "cuda":
        return []
    targets: list[Any] = [TakesAtMost(baseline, most[variant.name])]
    if variant.name == OWN_W8A8:
        targets.append(TakesAtMost(CHAIN, 0.5))
    return targets if mode == "graph" else [*targets, PeaksAtMost(baseline)]


def timer_of(options: argparse.Namespace) -> Timer:
    """A step takes tens of milliseconds on a GPU: there is time for many."""
    cuda = options.device.type == "cuda"
    rounds = 3 if options.quick else 25 if cuda else 5
    return Timer(options.device, rounds, budget=25.0 if cuda else 10.0)


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    timer, until = timer_of(options), time.monotonic() + COMPILE_FOR
    for mode in (mode for mode in MODES if mode in options.what):
        rows = functools.partial(measure, mode, options.device, timer, until, options.only)
        if plans := plans_of(mode, options):
            yield mode, list(parts_of(plans, options, rows))


def measure(
    mode: str,
    device: torch.device,
    timer: Timer,
    until: float,
    only: list[str] | None,
    plan: TrainingPlan,
    size: str,
    dtype: torch.dtype,
    cases: list[Any],
) -> Iterator[Row]:
    """The rows of one mode, size and dtype; a variant that fails hinders no other."""
    shape, baseline = parse_shape(size), name_of(dtype)
    known = [
        variant
        for variant in variants(baseline)
        if mode in variant.modes and (not only or variant.name in (baseline, *only))
    ]
    stepper = Stepper(mode, device, dtype, shape, until)
    threads = torch.get_num_threads() if device.type == "cpu" else None

    def row_of(variant: Variant) -> TrainingRow:
        return TrainingRow(
            *(mode, variant.name, mode, baseline, shape, threads),
            targets_of(variant, mode, baseline, device),
            baseline=baseline,
        )

    yield from measured(stepper, known, timer, row_of)
    free_memory(device)


def measured(
    stepper: Stepper, known: list[Variant], timer: Timer, row_of: Callable[[Variant], TrainingRow]
) -> Iterator[Row]:
    """The rows of variants that are measured in turns; ``row_of`` makes one without figures."""
    try:
        results = stepper.measure([v for v in known if not v.missing], timer)
    except Exception as error:  # such as too little memory
        results = {v.name: describe(error) for v in known}
    for variant in known:
        row = row_of(variant)
        row.note = variant.missing or stepper.skipped.get(variant.name, "")
        yield row if row.note else filled(row, results, stepper.figures)


def filled(
    row: TrainingRow, results: dict[str, float | str], figures: dict[str, Figures]
) -> TrainingRow:
    """The row with its own figures, and those of the two that it is compared with."""
    names = dict.fromkeys((row.op, row.baseline, CHAIN))
    for name in (name for name in names if name in figures):
        own = figures[name]
        if own.peak is not None:
            row.peaks[name] = own.peak
        if own.held is not None:
            row.held[name] = own.held
    if row.op in figures:
        row.phases = figures[row.op].medians()
    row.fill({name: results[name] for name in names if name in results}, row.op)
    return row


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("training", __doc__, MODES, sizes="4x2048x4096, batch x tokens x width")
    parser.add_argument("--only", nargs="+", help="variants beside the float block, by name")
    options = parse(parser, argv, parse_shape)
    known = [variant.name for variant in variants("bfloat16")]
    if unknown := [name for name in options.only or [] if name not in known]:
        parser.error(f"expected variants among {known}, but got {unknown}")
    options.what = options.what or list(MODES)
    return run(sections(options), options, plot_training, TRAINING)


if __name__ == "__main__":
    main()
