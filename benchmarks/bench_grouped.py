# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the grouped products (mixture of experts), beside ``torch._grouped_mm``.

Each figure is measured in turns with PyTorch's product of the same groups in floats, both as a user
calls them. Weights are larger than any cache. A size is E x N x K; the shapes of the table are
T x E x N x K. ``even`` shares the tokens out, ``half to one`` gives one expert half of them, and
``random`` draws an expert for each token.

    python -m benchmarks.bench_grouped                    # on a GPU if there is one
    python -m benchmarks.bench_grouped --sizes 8x14336x4096 --rows 4096 --what linear
"""

import argparse
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bench import Call, Timer, describe, free_memory
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_products
from benchmarks.bench_report import Part
from benchmarks.bench_row import OWN, Case, Row, Target, empty_row

# isort: split
from baraquant import ops
from benchmarks.int8_mm_layer import COPIED, int8_peak
from tests.support.cases import compute_dtype

GROUPED_MM = "torch._grouped_mm"
TARGET = Target(GROUPED_MM, 1.3)
TARGET_FROM = 4096  # tokens
SHARES = ("even", "half to one", "random")
WHAT = ("linear", "whole")  # integers given; quantized on the fly


@dataclass(frozen=True)
class GroupedPlan(Plan):
    """A plan over numbers of tokens and how the experts share them."""

    rows: list[int]

    def cases(self) -> list[tuple[int, str]]:
        """Each number of tokens in each way."""
        return [(rows, share) for rows in self.rows for share in SHARES]


def plans_of(options: argparse.Namespace) -> list[GroupedPlan]:
    """Experts of Mixtral 8x7B, and many small ones; a toy on the CPU."""
    threads = [torch.get_num_threads()]
    if options.device.type != "cuda":
        return [GroupedPlan(["4x256x512"], ["float32"], threads, [32])]
    sizes, rows = ["8x14336x4096", "8x4096x14336"], [64, 512, 4096, 16384]
    if options.quick:
        return [GroupedPlan(sizes[:1], ["bfloat16"], threads, rows[-2:-1])]
    return [
        GroupedPlan(sizes, ["bfloat16"], threads, rows),
        GroupedPlan(["64x2048x4096"], ["bfloat16"], threads, [4096]),
    ]


def parse_weights(text: str) -> tuple[int, int, int]:
    """E, N and K of ``8x14336x4096``."""
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text):
        return int(match[1]), int(match[2]), int(match[3])
    raise ValueError(f"expected the size of weights, such as 8x14336x4096, but got {text!r}")


def ends_of(rows: int, groups: int, share: str, device: torch.device) -> Tensor:
    """Where the rows of each group end."""
    if share == "random":
        chosen = torch.randint(groups, (rows,), generator=torch.Generator().manual_seed(0))
        counts = torch.bincount(chosen, minlength=groups)
    else:
        first = rows // 2 if share == "half to one" else 0
        counts = torch.full((groups,), (rows - first) // groups)
        counts[0] += rows - counts.sum()
    return counts.cumsum(0).to(device, torch.int32)


class Experts:
    """The weights ``[E, N, K]``, in integers and in floats."""

    def __init__(self, device: torch.device, dtype: torch.dtype, size: tuple[int, ...]) -> None:
        self.device, self.dtype, self.size = device, dtype, size
        self.integers = torch.randint(-128, 128, size, device=device, dtype=torch.int8)
        self.floats = torch.randn(size, device=device, dtype=dtype)
        scale = torch.rand(size[:2], device=device, dtype=compute_dtype(dtype))
        self.scale = 0.01 * scale + 0.015

    def calls(self, what: str, rows: int, ends: Tensor) -> dict[str, Call]:
        """Ours, and PyTorch's."""
        k, dtype = self.size[2], self.dtype
        x = torch.randn(rows, k, device=self.device, dtype=dtype)
        q = torch.randint(-128, 128, (rows, k), device=self.device, dtype=torch.int8)
        s = torch.rand(rows, 1, device=self.device, dtype=self.scale.dtype)
        peer = self.floats.transpose(1, 2)
        calls: dict[str, Call] = {
            "linear": lambda i: ops.int8_grouped_linear(
                q, self.integers, ends, s, self.scale, dtype=dtype
            ),
            "whole": lambda i: ops.quantized_grouped_linear(x, self.integers, ends, self.scale),
        }
        return {OWN: calls[what], GROUPED_MM: lambda i: torch._grouped_mm(x, peer, offs=ends)}

    def moved(self, what: str, rows: int) -> int:
        """Bytes of input, integers of the weights, output and scales."""
        groups, n, k = self.size
        item = self.dtype.itemsize
        read = rows * k * (1 if what == "linear" else item) + groups * n * k
        scales = (rows + groups * n) * self.scale.itemsize
        return read + rows * n * item + scales


def measure(
    what: str,
    timer: Timer,
    copy: Case,
    plan: GroupedPlan,
    size: str,
    dtype: torch.dtype,
    cases: list[tuple[int, str]],
) -> Iterator[Row]:
    """The rows of one size; one that fails hinders no other."""
    device, sizes = copy.device, parse_weights(size)
    experts = Experts(device, dtype, sizes)
    op = "int8_grouped_linear" if what == "linear" else "quantized_grouped_linear"
    for rows, share in cases:
        asked = device.type == "cuda" and what == "linear" and rows >= TARGET_FROM
        shape = [rows, *sizes]
        row = empty_row(device, dtype, shape, what, op, share, TARGET if asked else None)
        try:
            calls = experts.calls(what, rows, ends_of(rows, sizes[0], share, device))
            results = timer.compare({"copy": copy.copy, **calls})
            operations, peak = 2 * rows * sizes[1] * sizes[2], int8_peak(device)
            row.fill(results, OWN, experts.moved(what, rows), copy.copied, operations, peak)
        except Exception as error:  # such as too little memory
            row.fail(describe(error))
        yield row
        free_memory(device)


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    copy = Case(options.device, torch.bfloat16, COPIED[options.device.type])
    for what in (what for what in WHAT if what in options.what):
        rows = functools.partial(measure, what, timer_of(options), copy)
        yield what, list(parts_of(plans_of(options), options, rows))


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("grouped", __doc__, list(WHAT), sizes="8x14336x4096, E x N x K")
    parser.add_argument("--rows", nargs="+", type=int, help="how many tokens, T")
    options = parse(parser, argv, parse_weights)
    options.what = options.what or list(WHAT)
    return run(sections(options), options, plot_products)


if __name__ == "__main__":
    main()
