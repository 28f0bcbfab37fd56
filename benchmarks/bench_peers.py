# SPDX-License-Identifier: BSD-3-Clause
"""Speed of served linear layers under every scheme, beside those of other packages.

Every layer quantizes its own input, if its scheme does so at all. On a GPU each is timed in a CUDA
graph, so the host costs nothing; torchao's layers are compiled. All are timed in turns, and
compared with the floating layer. The weights rotate, so that none is in a cache; a size is N x K.
What is installed of other packages takes part, and a layer that fails has a row with its error.

    python -m benchmarks.bench_peers                    # on a GPU if there is one
    python -m benchmarks.bench_peers --sizes 8192x8192 --rows 1 16 --schemes W4A16 "humming W4A16"
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench import Call, Compiler, Timer, describe, free_memory, rotation_for
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run, timer_of
from benchmarks.bench_int4 import parse_weight
from benchmarks.bench_plot import plot_products
from benchmarks.bench_report import Part
from benchmarks.bench_row import AnyTarget, AtMost, Case, Row, Target, empty_row

# isort: split
from benchmarks.int8_mm_layer import COPIED, int8_peak
from benchmarks.peers import Scheme, missing, schemes, versions
from tests.support.cases import name_of

FLOAT = "{} linear"  # the layer that is not quantized, by its dtype
SIZES = ("4096x4096", "8192x8192", "28672x4096")
ROWS = (1, 16, 64, 256, 1024, 4096)
# On a GPU: at least so many times the speed of the floating layer, by rows, for each of SIZES.
OF_MANY_ROWS = {256: (1.0,) * 3, 1024: (0.95,) * 3, 4096: (0.95,) * 3}
FROM_FLOAT: dict[str, dict[int, tuple[float | None, ...]]] = {
    "W4A16": {
        1: (2.0, 2.8, 3.2),
        16: (1.9, 2.6, 3.0),
        64: (1.3, 2.0, 2.2),
        **OF_MANY_ROWS,
    },
    "W8A16": {
        1: (1.7, 1.85, 1.95),
        16: (1.5, 1.5, 1.5),
        64: (1.5, 1.5, 1.5),
        **OF_MANY_ROWS,
    },
    "W4A8": {64: (1.3, None, None)},
}
W4A8_SECONDS = {"8192x8192": 15.5e-6, "28672x4096": 25e-6}  # for one row
W4A8_FROM_INT8 = (128, 0.95)  # from so many rows on, the share of the speed of W8A8
COMPILE_FOR = 200  # seconds into the run: nothing is compiled after that


@dataclass(frozen=True)
class PeersPlan(Plan):
    """A plan over numbers of rows."""

    rows: list[int]

    def cases(self) -> list[int]:
        """Each number of rows."""
        return self.rows


def plan_of(options: argparse.Namespace) -> PeersPlan:
    """Layers of language models; a tiny one in a quick run."""
    is_cuda = options.device.type == "cuda"
    sizes, rows = list(SIZES if is_cuda else SIZES[:1]), list(ROWS if is_cuda else ROWS[:3])
    if options.quick:
        sizes, rows = ["256x256"], rows[:2]
    dtype = "bfloat16" if is_cuda else "float32"
    return PeersPlan(sizes, [dtype], [torch.get_num_threads()], rows)


def targets_of(kind: str | None, size: str, rows: int, baseline: str) -> list[AnyTarget]:
    """What our layer of a kind has to reach on a GPU."""
    found: list[AnyTarget] = []
    ratios = FROM_FLOAT.get(kind or "", {}).get(rows)
    if ratios and size in SIZES and (ratio := ratios[SIZES.index(size)]) is not None:
        found.append(Target(baseline, ratio))
    if kind == "W4A8" and rows == 1 and size in W4A8_SECONDS:
        found.append(AtMost(W4A8_SECONDS[size]))
    least, share = W4A8_FROM_INT8
    if kind == "W4A8" and rows >= least:
        found.append(Target("W8A8", share))
    return found


class Layers:
    """One weight under each scheme, as often as it takes to be beyond the caches.

    Attributes:
        found: The layers, or the text of the error that their making ended with, by scheme.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, size: tuple[int, int], chosen: list[Scheme]
    ) -> None:
        self.size, self.found = size, {}
        self.weight = torch.randn(size, device=device, dtype=dtype) * 0.02
        for scheme in chosen:
            count = rotation_for(self.weight_bytes(scheme))
            try:
                self.found[scheme.name] = scheme.layers([self.linear() for _ in range(count)])
            except Exception as error:  # recorded in the row
                self.found[scheme.name] = describe(error)

    def linear(self) -> nn.Linear:
        """A floating layer with memory of its own."""
        n, k = self.size
        linear = nn.Linear(k, n, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight.clone(), requires_grad=False)
        return linear

    def weight_bytes(self, scheme: Scheme) -> int:
        """Bytes of a weight, without its scales."""
        if scheme.kind is None:
            return self.weight.nbytes
        return self.weight.numel() * int(scheme.kind[1]) // 8

    def call(self, scheme: Scheme, x: Tensor, compiler: Compiler) -> Call:
        """The call of a scheme; raises RuntimeError with the error of its layers."""
        layers = self.found[scheme.name]
        if isinstance(layers, str):
            raise RuntimeError(layers)
        if not scheme.compiled:
            return lambda i: layers[i % len(layers)](x)
        # One graph for all weights. A lambda, as F.linear itself is no function of Python.
        linear = compiler(lambda rows, weight: F.linear(rows, weight))
        if linear is None:
            raise TimeoutError("not compiled: the time was used up")
        return lambda i: linear(x, layers[i % len(layers)].weight)


def results_of(
    layers: Layers, chosen: list[Scheme], x: Tensor, timer: Timer, compiler: Compiler, copy: Call
) -> dict[str, float | str]:
    """Seconds of each scheme, in turns, or the text of its error."""
    calls, results = {"copy": copy}, {}
    for scheme in chosen:
        try:
            calls[scheme.name] = layers.call(scheme, x, compiler)
        except (RuntimeError, TimeoutError) as error:
            results[scheme.name] = str(error)
    served = {name: torch.inference_mode()(call) for name, call in calls.items()}
    return results | timer.compare(served)


def filled(
    row: Row,
    scheme: Scheme,
    chosen: list[Scheme],
    results: dict[str, float | str],
    baseline: str,
    **figures: Any,
) -> Row:
    """The row with its own time, and of ours with the times of what it is compared with."""
    compared = {name: results[name] for name in ("copy", scheme.name, baseline)}
    if scheme.package is None and scheme.kind is not None:
        same = [peer for peer in chosen if peer.package and peer.kind == scheme.kind]
        compared |= {peer.package: results[peer.name] for peer in same}
        if scheme.kind == "W4A8" and "W8A8" in results:
            compared["W8A8"] = results["W8A8"]
    return row.fill(compared, scheme.name, **figures)


def measure(
    timer: Timer,
    compiler: Compiler,
    copy: Case,
    only: list[str] | None,
    plan: PeersPlan,
    size: str,
    dtype: torch.dtype,
    cases: list[int],
) -> Iterator[Row]:
    """The rows of one size; a layer that fails hinders no other."""
    device, (n, k), baseline = copy.device, parse_weight(size), FLOAT.format(name_of(dtype))
    chosen = chosen_of(baseline, only)
    layers = Layers(device, dtype, (n, k), chosen)
    for rows in cases:
        x = torch.randn(rows, k, device=device, dtype=dtype)
        results = results_of(layers, chosen, x, timer, compiler, copy.copy)
        for scheme in chosen:
            targets: list[AnyTarget] = []
            if device.type == "cuda" and scheme.package is None:
                targets = targets_of(scheme.kind, size, rows, baseline)
            case = "compiled layer" if scheme.compiled else "layer"
            row = empty_row(device, dtype, [rows, n, k], "whole", scheme.name, case, *targets)
            yield filled(
                *(row, scheme, chosen, results, baseline),
                moved=layers.weight_bytes(scheme) + rows * (n + k) * dtype.itemsize,
                copied=copy.copied,
                operations=2 * rows * n * k,
                peak=int8_peak(device) / (1 if str(scheme.kind).endswith("A8") else 2),
            )
    del layers
    free_memory(device)


def chosen_of(baseline: str, only: list[str] | None) -> list[Scheme]:
    """The schemes that take part: what is installed, and the floating layer in any case."""
    return [
        scheme
        for scheme in schemes(baseline)
        if scheme.kind is None
        or (not missing(scheme.package) and (not only or scheme.name in only))
    ]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, one for each size, with its parts: functions that yield rows."""
    copy = Case(options.device, torch.bfloat16, COPIED[options.device.type])
    timer, compiler = timer_of(options), Compiler(COMPILE_FOR)
    timer.graphs = True
    rows = functools.partial(measure, timer, compiler, copy, options.schemes)
    plan = plan_of(options)
    for size in options.sizes or plan.sizes:
        one = argparse.Namespace(**{**vars(options), "sizes": [size]})
        yield size, list(parts_of([plan], one, rows))


def plot(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Draws a panel for each of our schemes and each weight, with the peers as lines."""
    own = [scheme.name for scheme in schemes("") if scheme.package is None]
    plot_products([row for row in rows if row.op in own], about, path, most=4 * len(SIZES))


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("peers", __doc__, [], sizes="4096x4096, N x K")
    known = [scheme.name for scheme in schemes("") if scheme.kind]
    parser.add_argument("--rows", nargs="+", type=int, help="how many tokens, M")
    parser.add_argument("--schemes", nargs="+", choices=known, help="beside the floating layer")
    options = parse(parser, argv, parse_weight)
    return run(sections(options), options, plot, about=versions())


if __name__ == "__main__":
    main()
