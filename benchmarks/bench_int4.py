# SPDX-License-Identifier: BSD-3-Clause
"""Speed of layers with weights in groups, beside a float layer and one of int8.

``quantized_int4_linear`` quantizes a floating input for each token and multiplies it by packed
weights of four bits, as a served layer of ``W4A8(group_size)`` does.
``weight_only_linear`` leaves the input floating, as one of ``W4A16()`` does, with packed weights
too. Each figure is measured in turns with the float layer and with ``quantized_linear``, the
layer of int8. The weights rotate, so that none is in a cache; a size is N x K.

    python -m benchmarks.bench_int4                     # on a GPU if there is one
    python -m benchmarks.bench_int4 --sizes 8192x8192 --rows 1 16 --groups 128
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bench import Call, Timer, describe, free_memory, rotation_for
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_products
from benchmarks.bench_report import Part
from benchmarks.bench_row import OWN, AnyTarget, Case, Row, Target, empty_row

# isort: split
from baraquant import ops
from benchmarks.int8_mm_layer import COPIED, int8_peak
from tests.support.cases import compute_dtype, name_of

INT8 = "quantized_linear"
INT4, WEIGHT_ONLY = "quantized_int4_linear", "weight_only_linear"
GROUPS = (32, 64, 128)
# At least this many times the speed of the float layer, up to a number of rows; and of int4 from a
# number of rows on, a share of the speed of int8.
FROM_FLOAT = {
    INT4: {"cpu": {1: 6.0}, "cuda": {1: 2.9, 16: 2.5, 64: 2.0}},
    WEIGHT_ONLY: {
        "cpu": {1: 3.0, 32: 0.9},
        "cuda": {1: 2.9, 16: 2.5, 64: 1.5, 1024: 0.8, 1 << 31: 0.95},
    },
}
FROM_INT8 = {"cpu": (32, 0.9), "cuda": (256, 0.95)}
LARGE = 3.2  # instead of 2.9, where the weight is larger than 4096 x 4096


@dataclass(frozen=True)
class Int4Plan(Plan):
    """A plan over numbers of rows and sizes of groups."""

    rows: list[int]
    groups: list[int]

    def cases(self) -> list[tuple[int, int]]:
        """Each number of rows with each size of groups."""
        return [(rows, group) for rows in self.rows for group in self.groups]


def parse_weight(text: str) -> tuple[int, int]:
    """N and K of ``28672x4096``."""
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text):
        return int(match[1]), int(match[2])
    raise ValueError(f"expected the size of a weight, such as 28672x4096, but got {text!r}")


def plans_of(options: argparse.Namespace) -> list[Int4Plan]:
    """Layers of language models; one of them in a quick run."""
    is_cuda, groups = options.device.type == "cuda", list(GROUPS)
    dtype = "bfloat16" if is_cuda else "float32"
    sizes = ["4096x4096", "8192x8192", "28672x4096"] if is_cuda else ["4096x4096", "11008x4096"]
    rows = [1, 4, 16, 64, 256, 1024] if is_cuda else [1, 4, 16, 32, 128]
    if options.quick:
        sizes, rows, groups = sizes[:1], rows[:1], groups[-1:]
    return [Int4Plan(sizes, [dtype], [torch.get_num_threads()], rows, groups)]


class Layers:
    """One weight in all forms that are measured, each rotated.

    Attributes:
        floats: ``[N, K]``.
        integers: int8, with ``scale``.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, size: tuple[int, int]) -> None:
        self.device, self.dtype, self.size = device, dtype, size
        first = torch.randn(size, device=device, dtype=dtype)
        self.floats = self._rotated(first)
        integers, self.scale, _ = ops.dynamic_range_quantize_per_channel(first, 0)
        self.integers = self._rotated(integers)
        self._packed: dict[int, tuple[list[Tensor], Tensor, Tensor]] = {}
        self._grouped: dict[int, tuple[list[Tensor], Tensor]] = {}

    def _rotated(self, tensor: Tensor) -> list[Tensor]:
        return [tensor] + [tensor.clone() for _ in range(rotation_for(tensor.nbytes) - 1)]

    def packed(self, group: int) -> tuple[list[Tensor], Tensor, Tensor]:
        """The packed weights, their scale and their factors."""
        if group not in self._packed:
            scale, factor, _ = ops.choose_int4_qparams(self.floats[0], group)
            packed = ops.quantize_int4(self.floats[0], scale, factor, group)
            self._packed[group] = self._rotated(packed), scale, factor
        return self._packed[group]

    def grouped(self, group: int) -> tuple[list[Tensor], Tensor]:
        """The packed weights with floating scales of groups, and those."""
        if group not in self._grouped:
            integers, scale, _ = ops.dynamic_range_quantize_per_group(
                self.floats[0], group, quant_min=-8, quant_max=7
            )
            self._grouped[group] = self._rotated(ops.pack_int4(integers)), scale
        return self._grouped[group]

    def own(self, op: str, x: Tensor, group: int) -> Call:
        """The call that is measured."""
        if op == INT4:
            packed, scale, factor = self.packed(group)
            return lambda i: ops.quantized_int4_linear(
                x, packed[i % len(packed)], scale, factor, group
            )
        packed, scale = self.grouped(group)
        return lambda i: ops.weight_only_linear(x, packed[i % len(packed)], scale, group_size=group)

    def calls(self, op: str, rows: int, group: int) -> dict[str, Call]:
        """Ours, and those of the other layers."""
        x = torch.randn(rows, self.size[1], device=self.device, dtype=self.dtype)
        floats, integers = self.floats, self.integers
        return {
            OWN: self.own(op, x, group),
            f"{name_of(self.dtype)} linear": lambda i: torch.nn.functional.linear(
                x, floats[i % len(floats)]
            ),
            INT8: lambda i: ops.quantized_linear(x, integers[i % len(integers)], self.scale),
        }

    def moved(self, op: str, rows: int, group: int) -> int:
        """Bytes of input, weights, factors, scales and output."""
        n, k = self.size
        scale = compute_dtype(self.dtype).itemsize
        own = n * k // 2 + n * k // group + (rows + n) * scale
        if op == WEIGHT_ONLY:
            own = n * k // 2 + n * k // group * scale
        return rows * (k + n) * self.dtype.itemsize + own


def target_of(
    op: str, device: str, rows: int, size: tuple[int, int], dtype: torch.dtype
) -> AnyTarget | None:
    """What the speed should be; None where nothing was asked for."""
    least, share = FROM_INT8[device]
    if op == INT4 and rows >= least:
        return Target(INT8, share)
    known = FROM_FLOAT[op][device]
    ratio = next((known[most] for most in known if rows <= most), None)
    if ratio is None:
        return None
    if device == "cuda" and rows == 1 and size != (4096, 4096):
        ratio = LARGE
    return Target(f"{name_of(dtype)} linear", ratio)


def measure(
    timer: Timer,
    copy: Case,
    plan: Int4Plan,
    size: str,
    dtype: torch.dtype,
    cases: list[tuple[int, int]],
) -> Iterator[Row]:
    """The rows of one size; one that fails hinders no other."""
    device, sizes = copy.device, parse_weight(size)
    layers = Layers(device, dtype, sizes)
    for op, (rows, group) in itertools.product((INT4, WEIGHT_ONLY), cases):
        asked = target_of(op, device.type, rows, sizes, dtype)
        shape, case = [rows, *sizes], f"groups of {group}"
        row = empty_row(device, dtype, shape, "whole", op, case, asked)
        try:
            results = timer.compare({"copy": copy.copy, **layers.calls(op, rows, group)})
            operations, peak = 2 * rows * sizes[0] * sizes[1], int8_peak(device)
            row.fill(results, OWN, layers.moved(op, rows, group), copy.copied, operations, peak)
        except Exception as error:  # such as too little memory
            row.fail(describe(error))
        yield row
    free_memory(device)


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The title of the run with its parts: functions that yield rows."""
    copy = Case(options.device, torch.bfloat16, COPIED[options.device.type])
    rows = functools.partial(measure, timer_of(options), copy)
    yield "whole", list(parts_of(plans_of(options), options, rows))


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("int4", __doc__, [], sizes="4096x4096, N x K")
    parser.add_argument("--rows", nargs="+", type=int, help="how many tokens, M")
    parser.add_argument("--groups", nargs="+", type=int, help="sizes of groups")
    options = parse(parser, argv, parse_weight)
    return run(sections(options), options, plot_products)


if __name__ == "__main__":
    main()
