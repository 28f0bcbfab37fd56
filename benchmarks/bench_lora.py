# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of a LoRA step over decoder layers whose base is floating or quantized.

A step is forward, backward and AdamW of the adapters (rank 16, over all linear layers); the base is
frozen. The bases: floating, ours with int8 products (W8A8) and with integers that a product reads
as floats (W8A16, W4A16), and bitsandbytes' NF4 as in QLoRA. They are run in turns; ratios are to
the floating base in the same mode. "Weights" are the bytes of the frozen linear layers. The peak of
memory is what a step takes above the state between steps. A size is batch x tokens x width; the
feed-forward layer is 3.5 times as wide.

    python -m benchmarks.bench_lora                     # on a GPU if there is one
    python -m benchmarks.bench_lora --device cpu --quick
"""

import argparse
import functools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.bench import free_memory
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run
from benchmarks.bench_report import Layout, Part, verdicts
from benchmarks.bench_row import Row, ShareAtMost, TakesAtMost

# isort: split
from benchmarks import training_row
from benchmarks.bench_training import COMPILE_FOR, measured, timer_of
from benchmarks.lora_block import LAYERS, OWN_INT8, LoraStep, adapter_name, variants
from benchmarks.training_block import Variant
from benchmarks.training_plot import plot_training
from benchmarks.training_row import MIB, TrainingRow
from benchmarks.training_step import Step, Stepper
from tests.support.cases import name_of

MODES = ("eager", "compiled")


def parse_shape(text: str) -> list[int]:
    """Batch, tokens and width of ``4x2048x4096``; groups of 128 fit the width, and 3.5 times it."""
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text):
        shape = [int(part) for part in match.groups()]
        if shape[-1] % 256 == 0:
            return shape
    raise ValueError(
        "expected batch x tokens x width, such as 4x2048x4096, the width a multiple of 256, "
        f"but got {text!r}"
    )


class WeighsAtMost(ShareAtMost):
    """Keep the frozen weights in at most ``share`` of the bytes of ``against``."""

    def __str__(self) -> str:
        return f"weights ≤ {self.share:g}x {self.against}"

    def reached(self, row: "LoraRow") -> float | None:
        """The share of the bytes; None where one of the two is not known."""
        own, peer = row.weights.get(row.op), row.weights.get(self.against)
        return own / peer if own is not None and peer else None


@dataclass
class LoraRow(TrainingRow):
    """A step over a base, ``op``; ``weights`` are bytes, ``adapters`` says whose were measured."""

    weights: dict[str, int] = field(default_factory=dict)
    adapters: str = ""
    layers: int = LAYERS

    @property
    def weights_of_baseline(self) -> float | None:
        """The share of the baseline's weights."""
        return WeighsAtMost(self.baseline, 1).reached(self)


NUMBERS = (*training_row.NUMBERS, "weights MiB", "weights of float")


def columns(rows: list[Row]) -> tuple[str, ...]:
    """The titles; ratios are to the floating base in the same mode."""
    return ("LoRA over", "mode", "batch x tokens x width", *NUMBERS, "note", "target", "")


def cells(row: LoraRow) -> tuple[str, ...]:
    """The texts of a row."""
    *texts, note, targets, _ = training_row.cells(row)
    weights, share = row.weights.get(row.op), row.weights_of_baseline
    return (
        *texts,
        "" if weights is None else f"{weights / MIB:,.1f}",
        "" if share is None else f"{share:.3f}",
        *(note, targets, verdicts(row)),
    )


LORA = Layout(columns, cells, frozenset(NUMBERS))


def plans_of(mode: str, options: argparse.Namespace) -> list["LoraPlan"]:
    """The plan of a mode; quick runs, and the CPU, take a toy."""
    threads = [torch.get_num_threads()]
    if options.device.type != "cuda":
        if mode == "compiled" and options.quick:
            return []
        return [LoraPlan(["2x64x256" if options.quick else "2x128x512"], ["float32"], threads)]
    return [LoraPlan(["2x128x512" if options.quick else "4x2048x4096"], ["bfloat16"], threads)]


@dataclass(frozen=True)
class LoraPlan(Plan):
    """A plan over sizes and dtypes; all bases are compared in one part."""

    def cases(self) -> list[Any]:
        """One."""
        return ["step"]


def targets_of(variant: Variant, baseline: str, device: torch.device) -> list[Any]:
    """What the int8 base has to reach on a GPU: half of the weights, but for the scales."""
    if variant.name != OWN_INT8 or device.type != "cuda":
        return []
    return [TakesAtMost(baseline, 1.0), WeighsAtMost(baseline, 0.51)]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    timer, until = timer_of(options), time.monotonic() + COMPILE_FOR
    for mode in (mode for mode in MODES if mode in options.what):
        rows = functools.partial(measure, mode, options.device, timer, until)
        if plans := plans_of(mode, options):
            yield f"{mode}, {adapter_name()}", list(parts_of(plans, options, rows))


def measure(
    mode: str,
    device: torch.device,
    timer: Any,
    until: float,
    plan: LoraPlan,
    size: str,
    dtype: torch.dtype,
    cases: list[Any],
) -> Iterator[Row]:
    """The rows of one mode, size and dtype; a base that fails hinders no other."""
    shape, baseline = parse_shape(size), name_of(dtype)
    known = [variant for variant in variants(baseline) if mode in variant.modes]
    weights: dict[str, int] = {}

    def make(variant: Variant, *args: Any) -> Step:
        step = LoraStep.of(variant, *args)
        weights[variant.name] = step.weights
        return step

    stepper = Stepper(mode, device, dtype, shape, until, make)
    threads = torch.get_num_threads() if device.type == "cpu" else None

    def row_of(variant: Variant) -> LoraRow:
        return LoraRow(
            *(mode, variant.name, mode, baseline, shape, threads),
            targets_of(variant, baseline, device),
            baseline=baseline,
            weights={n: weights[n] for n in {variant.name, baseline} & weights.keys()},
            adapters=adapter_name(),
        )

    yield from measured(stepper, known, timer, row_of)
    free_memory(device)


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("lora", __doc__, MODES, sizes="4x2048x4096, batch x tokens x width")
    options = parse(parser, argv, parse_shape)
    options.what = options.what or list(MODES)
    plot = functools.partial(plot_training, what=f"LoRA step over {LAYERS} decoder layers")
    return run(sections(options), options, plot, LORA)


if __name__ == "__main__":
    main()
