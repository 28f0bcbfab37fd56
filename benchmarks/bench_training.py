# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of a training step: forward, backward and optimizer.

A Transformer block in floats, ours prepared for W8A8 and W4A8, and what else there is: a chain of
PyTorch's own ops, PyTorch's fake quantize, torchao. Each is run eagerly, compiled, and captured
whole in a CUDA graph, in turns; ratios are to the floats in the same mode. The peak of memory is
what a step takes above parameters and optimizer state. A size is batch x tokens x width.

With ``--model llama`` it is the step of a whole model of Llama's shape with random weights, which
the width chooses: 2048 has 1.1 billion parameters. Compiled are its blocks, one by one.

    python -m benchmarks.bench_training                     # on a GPU if there is one
    python -m benchmarks.bench_training --what eager --sizes 4x2048x4096 --dtypes bfloat16
    python -m benchmarks.bench_training --model llama --what compiled
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
from benchmarks.bench_row import Row, TakesAtMost

# isort: split
from benchmarks.peers import versions
from benchmarks.training_block import (
    CHAIN,
    OWN_INT8,
    OWN_INT8_INPUT,
    OWN_W8A8,
    Variant,
    variants,
)
from benchmarks.training_llama import OWN_W4A8, LlamaStep, llama_variants, shape_of
from benchmarks.training_plot import plot_training
from benchmarks.training_row import TRAINING, PeaksAtMost, TrainingRow
from benchmarks.training_step import Figures, Step, Stepper
from tests.support.cases import name_of

MODES = ("eager", "compiled", "graph")
BLOCK, LLAMA = "block", "llama"
# What takes part of the time of the floats that is asked for on a GPU, at most.
AT_MOST = {
    BLOCK: {OWN_W8A8: 1.0, OWN_INT8_INPUT: 0.80, OWN_INT8: 0.68},
    LLAMA: {OWN_INT8: 0.82, OWN_W4A8: 0.95},
}
COMPILE_FOR = 200  # seconds into the run: nothing is compiled after that


@dataclass(frozen=True)
class TrainingPlan(Plan):
    """A plan over sizes and dtypes; all variants are compared in one part."""

    def cases(self) -> list[Any]:
        """One."""
        return ["step"]


def variants_of(model: str, baseline: str) -> list[Variant]:
    """What a model is trained in."""
    return llama_variants(baseline) if model == LLAMA else variants(baseline)


def plans_of(what: str, options: argparse.Namespace) -> list[TrainingPlan]:
    """The plan of a mode; quick runs, and the CPU, take a toy."""
    if options.model == LLAMA:
        return llama_plans_of(what, options)
    threads = [torch.get_num_threads()]
    if options.device.type != "cuda":
        if what == "graph" or (what == "compiled" and options.quick):
            return []
        return [TrainingPlan(["2x64x128" if options.quick else "2x128x512"], ["float32"], threads)]
    return [TrainingPlan(["2x128x512" if options.quick else "4x2048x4096"], ["bfloat16"], threads)]


def llama_plans_of(what: str, options: argparse.Namespace) -> list[TrainingPlan]:
    """The same for a whole model."""
    is_cuda = options.device.type == "cuda"
    if not is_cuda and what != "eager":
        return []
    size = "2x32x256" if options.quick else "4x2048x2048" if is_cuda else "1x128x768"
    dtype = "bfloat16" if is_cuda else "float32"
    return [TrainingPlan([size], [dtype], [torch.get_num_threads()])]


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


def targets_of(
    variant: Variant, mode: str, baseline: str, device: torch.device, model: str = BLOCK
) -> list[Any]:
    """What our schemes, with each backward pass, have to reach on a GPU; a whole model compiled."""
    most = AT_MOST[model]
    if variant.name not in most or device.type != "cuda" or (model, mode) == (LLAMA, "eager"):
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
        rows = functools.partial(measure, mode, options, timer, until)
        if plans := plans_of(mode, options):
            yield mode, list(parts_of(plans, options, rows))


def measure(
    mode: str,
    options: argparse.Namespace,
    timer: Timer,
    until: float,
    plan: TrainingPlan,
    size: str,
    dtype: torch.dtype,
    cases: list[Any],
) -> Iterator[Row]:
    """The rows of one mode, size and dtype; a variant that fails hinders no other."""
    shape, baseline, device = parse_shape(size), name_of(dtype), options.device
    model, only = options.model, options.only
    known = [
        variant
        for variant in variants_of(model, baseline)
        if mode in variant.modes and (not only or variant.name in (baseline, *only))
    ]
    make = LlamaStep.of if model == LLAMA else Step.of
    stepper = Stepper(mode, device, dtype, shape, until, make)
    threads = torch.get_num_threads() if device.type == "cpu" else None

    def row_of(variant: Variant) -> TrainingRow:
        return TrainingRow(
            *(mode, variant.name, mode, baseline, shape, threads),
            targets_of(variant, mode, baseline, device, model),
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
    parser.add_argument("--model", choices=(BLOCK, LLAMA), default=BLOCK)
    parser.add_argument("--only", nargs="+", help="variants beside the floats, by name")
    options = parse(parser, argv, parse_shape)
    try:
        for size in options.sizes or [] if options.model == LLAMA else []:
            shape_of(parse_shape(size)[-1])
    except ValueError as error:
        parser.error(str(error))
    known = [variant.name for variant in variants_of(options.model, "bfloat16")]
    if unknown := [name for name in options.only or [] if name not in known]:
        parser.error(f"expected variants among {known}, but got {unknown}")
    options.what = options.what or list(MODES)
    what = "Llama" if options.model == LLAMA else "Transformer block"
    plot = functools.partial(plot_training, what=f"training step of a {what}")
    return run(sections(options), options, plot, TRAINING, versions())


if __name__ == "__main__":
    main()
