# SPDX-License-Identifier: BSD-3-Clause
"""The tables of layers with weights of few bits, and of the time of quantizing a model."""

from __future__ import annotations

from collections.abc import Callable

import results
from results import GPUS, Row, one, peers, span, table

CPU = "epyc"
INT4, WEIGHT_ONLY = "quantized_int4_linear", "weight_only_linear"
GROUPS = (32, 64, 128)


def places(machine: results.Machine, op: str) -> list[list[int]]:
    """The shapes ``[M, N, K]`` of an op, each once, in the order of the result."""
    return [list(shape) for shape in dict.fromkeys(tuple(r["shape"]) for r in rows(machine, op))]


def rows(machine: results.Machine, op: str) -> list[Row]:
    """The rows of an op without an error."""
    return results.rows(machine, "int4", op=op)


def row_of(machine: results.Machine, op: str, shape: list[int], group: int) -> Row:
    """The row of a shape with a size of groups."""
    return one(machine, "int4", op=op, shape=shape, case=f"groups of {group}")


def of_float(row: Row, form: str = ".2f") -> str:
    """How many times the speed of the float layer."""
    return format(row["speedups"][f"{row['dtype']} linear"], form)


def of_int8(row: Row) -> str:
    """How many times the speed of the layer of int8."""
    return f"{row['speedups']['quantized_linear']:.2f}"


def microseconds(row: Row) -> str:
    """A time, in brackets."""
    return f"({1e6 * row['seconds']:.1f} µs)"


def on_gpu() -> str:
    """Both ops with groups of 128, beside a bfloat16 layer and one of int8."""
    lines = []
    for m, n, k in places(GPUS, INT4):
        four, floating = (row_of(GPUS, op, [m, n, k], GROUPS[-1]) for op in (INT4, WEIGHT_ONLY))
        lines.append(
            [
                *(f"{n} × {k}", str(m)),
                f"{of_float(four)} / {of_int8(four)} {microseconds(four)}",
                f"{of_float(floating)} {microseconds(floating)}",
            ]
        )
    titles = ["four bits, of bfloat16 / of int8", "floating inputs, of bfloat16"]
    return table(["weight N × K", "rows M", *titles], lines)


def on_cpu(op: str, cell: Callable[[Row], str], title: str) -> str:
    """An op with each size of groups."""
    lines = [
        [f"{n} × {k}", str(m), *(cell(row_of(CPU, op, [m, n, k], group)) for group in GROUPS)]
        for m, n, k in places(CPU, op)
    ]
    first, *others = GROUPS
    groups = [f"groups of {first}{title}", *(f"of {group}" for group in others)]
    return table(["weight N × K", "rows M", *groups], lines)


def targets_met() -> str:
    """Of the rows on a GPU with groups of 128, those whose targets are all met."""
    found = results.rows(GPUS, "int4", case=f"groups of {GROUPS[-1]}")
    asked = [row for row in found if row["met"]]
    return f"{sum(all(row['met']) for row in asked)} of {len(asked)}"


def one_row(machine: results.Machine) -> str:
    """How many times the speed of the layer of int8 one row has, with groups of any size."""
    found = [row for row in rows(machine, INT4) if row["shape"][0] == 1]
    return span(peers(found, "quantized_linear"), ".1f")


TABLES = {
    "int4.one.cpu": lambda: one_row(CPU),
    "int4.one.gpu": lambda: one_row(GPUS),
    "int4.gpu.met": targets_met,
    "table.int4.gpu": on_gpu,
    "table.int4.cpu": lambda: on_cpu(
        INT4, lambda row: f"{of_float(row, '.1f')} / {of_int8(row)}", ": of float32 / of int8"
    ),
    "table.weight_only.cpu": lambda: on_cpu(WEIGHT_ONLY, lambda row: of_float(row, ".1f"), ""),
}
