# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the scaled family with a call that is right, and the ways to get it wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments.affine import (
    DEVICE,
    SHAPE,
    Bad,
    constant,
    elsewhere,
    got,
    of_shape,
    sparse_coo,
    sparse_csr,
    to_dtype,
)
from tests.support.cases import INT64_MAX, INT64_MIN

TRANSPOSED = "scaled_quantize_transposed"
NAMES = ("scaled_quantize_per_token", TRANSPOSED, "transpose_int8", "draw_random")
QUANTIZING = NAMES[:2]


@dataclass(frozen=True)
class Op:
    """One op; the attributes that are not fields are those of the other families' `Op`."""

    name: str
    number = False

    def __str__(self) -> str:
        return self.name

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""
        x = torch.ones(SHAPE, device=device)
        if self.name == "draw_random":
            return {"like": x, "count": 2}
        if self.name == "transpose_int8":
            return {"input": x.reshape(-1, SHAPE[-1]).to(torch.int8)}
        shape = SHAPE[:-1] if self.name == TRANSPOSED else SHAPE[-1:]
        random = torch.zeros(2, dtype=torch.int64, device=device)
        return {"input": x, "factor": torch.ones(shape, device=device), "random": random}

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(name) for name in NAMES]


# --- the cases -----------------------------------------------------------------------------------


def quantizes(op: Op) -> bool:
    return op.name in QUANTIZING


def transposes(op: Op) -> bool:
    return op.name == "transpose_int8"


def wrong_dtypes() -> Iterator[Bad]:
    for dtype in (torch.int16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
        yield Bad("input", cases.name_of(dtype), to_dtype("input", dtype), TypeError, got(dtype))
    yield Bad("input", "uint8", to_dtype("input", torch.uint8), TypeError, got(torch.uint8))
    for dtype in (*cases.FLOAT_DTYPES, torch.int32):
        name, change = cases.name_of(dtype), to_dtype("input", dtype)
        yield Bad("input", f"{name}_bytes", change, TypeError, "int8.* " + got(dtype), transposes)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64):
        words = "float32.*compute type.* " + got(dtype)
        yield Bad("factor", cases.name_of(dtype), to_dtype("factor", dtype), TypeError, words)
    for dtype in (torch.int32, torch.uint8, torch.float32, torch.bool):
        words = "int64.* " + got(dtype)
        yield Bad("random", cases.name_of(dtype), to_dtype("random", dtype), TypeError, words)


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", "factor", "random", "like"):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
    for name in ("factor", "random"):
        yield Bad(name, DEVICE, elsewhere(name), ValueError, "got (cpu|meta)")
    for name in ("input", "like"):
        yield Bad(name, "sparse_csr", sparse_csr(name), TypeError, "got .*[Ss]parse")


def wrong_shapes() -> Iterator[Bad]:
    def bad(name: str, shape: tuple[int, ...], words: str, when: Any = quantizes) -> Bad:
        words = rf"expected.*{words}.* got .*{re.escape(str(list(shape)))}"
        return Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, when)

    change = of_shape("input", ())
    yield Bad("input", "()", change, ValueError, "at least 1 dimension, but got 0", quantizes)
    for shape in ((), (3,), (2, 2, 2), (1, 2, 3, 4)):
        yield bad("input", shape, "2 dimensions", transposes)
    for shape in ((), (1,), (SHAPE[-1] + 1,), (1, SHAPE[-1]), (0,), (*SHAPE, 1), SHAPE):
        yield bad("factor", shape, "shape")
    for shape in ((), (1,), (3,), (2, 1), (0,)):
        yield bad("random", shape, r"shape \[2\]")


def wrong_counts() -> Iterator[Bad]:
    for count in (0, -1, -2, -7, 2**31, 2**32, 2**40, 2**62, INT64_MIN, INT64_MAX):
        words = rf"\[1, 2147483647\], but got {count}$"
        yield Bad("count", f"{count}", constant(count), ValueError, words)


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes(), *wrong_counts()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
