# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the fused family with a call that is right, and the ways to get it wrong."""

from __future__ import annotations

import math
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
from tests.support.calls.fused import NORMS, QUANTIZE, VERBS
from tests.support.cases import INT64_MAX, INT64_MIN

ROWS = ("input", "gate", "up", "residual")
VECTORS = ("weight", "bias")


@dataclass(frozen=True)
class Op:
    """One schema."""

    base: str
    quantize: bool
    residual: bool = False
    number = False  # no overload takes numbers for tensors

    def __str__(self) -> str:
        return self.name + (".residual" if self.residual else "")

    @property
    def name(self) -> str:
        return self.base + (QUANTIZE if self.quantize else "")

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""
        rows = torch.ones(SHAPE, device=device)
        if self.base == "silu_mul":
            found: dict[str, Any] = {"gate": rows, "up": rows.clone()}
        else:
            found = {"input": rows}
        if self.base in NORMS:
            names = VECTORS if self.base == "layer_norm" else VECTORS[:1]
            found |= {name: torch.ones(SHAPE[-1], device=device) for name in names}
            found["eps"] = 1e-5
        if self.residual:
            found["residual"] = rows.clone()
        if self.base == "gelu":
            found["approximate"] = "tanh"
        if self.base == "hadamard":
            found["block"] = 4
        if self.quantize:
            found |= {"quant_min": -8, "quant_max": 7, "symmetric": True, "dtype": torch.int8}
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(base, quantize) for base in VERBS for quantize in (False, True)]
OPS += [Op(base, quantize, residual=True) for base in NORMS for quantize in (False, True)]


# --- the cases -----------------------------------------------------------------------------------


def first_of(op: Op) -> str:
    return "gate" if op.base == "silu_mul" else "input"


def wrong_dtypes() -> Iterator[Bad]:
    never = (torch.int16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
    for dtype in (*never, torch.int8, torch.uint8, torch.int32):
        for name in ("input", "gate"):
            yield Bad(name, cases.name_of(dtype), to_dtype(name, dtype), TypeError, got(dtype))
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32):
        for name in ("up", "residual", *VECTORS):
            words = "float32.* " + got(dtype)
            yield Bad(name, cases.name_of(dtype), to_dtype(name, dtype), TypeError, words)
    for name in ("input", "gate"):
        only = lambda op: op.base in ("silu_mul", "gelu")  # noqa: E731
        change = to_dtype(name, torch.float64)
        yield Bad(name, "float64", change, TypeError, r"got torch\.float64.*\.float\(\)", only)
    for dtype in (*cases.FLOAT_DTYPES, torch.int16, torch.int32, torch.bool, torch.qint8):
        words = "int8 or .*uint8.* " + got(dtype)
        yield Bad("dtype", cases.name_of(dtype), constant(dtype), TypeError, words)


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in (*ROWS, *VECTORS):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        if name not in ("input", "gate"):
            yield Bad(name, DEVICE, elsewhere(name), ValueError, "got (cpu|meta)")
    for name in ROWS:
        yield Bad(name, "sparse_csr", sparse_csr(name), TypeError, "got .*[Ss]parse")


def wrong_shapes() -> Iterator[Bad]:
    for name in VECTORS:
        for shape in ((), (1,), (7,), (9,), (8, 1), (1, 8), (0,), SHAPE):
            words = r"expected.* \[8\].* got .*" + re.escape(str(list(shape)))
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)
    for name in ("up", "residual"):
        for shape in ((), (8,), (6, 8), (1, 6, 8), (4, 6, 1), (4, 6, 7), (4, 48), (0, 6, 8)):
            words = r"expected.* \[4, 6, 8\].* got .*" + re.escape(str(list(shape)))
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)
    for name in ("input", "gate"):
        yield Bad(name, "()", of_shape(name, ()), ValueError, "1 dimension, but got 0")


def wrong_ranges() -> Iterator[Bad]:
    def bad(low: int, high: int, **also: Any) -> Bad:
        words = rf"quant_max.* got .*{low}.*{high}"
        label = "_".join([f"{low}_to_{high}", *map(str, also.values())])
        also = also | {"quant_max": high}
        return Bad("quant_min", label, constant(low), ValueError, words, also=also)

    inverted = ((7, 7), (7, -8), (0, -1), (INT64_MAX, INT64_MIN))
    huge = ((INT64_MIN, 7), (-8, INT64_MAX), (INT64_MIN, INT64_MAX))
    yield from (bad(*ends) for ends in inverted + huge)
    too_wide = {torch.int8: ((-129, 0), (0, 128), (0, 255)), torch.uint8: ((-1, 9), (0, 256))}
    for dtype, ranges in too_wide.items():
        yield from (bad(*ends, dtype=dtype) for ends in ranges)
    for ends in ((0, 1), (-8, -7), (126, 127)):  # one step: no symmetric scale
        yield bad(*ends, symmetric=True)


def wrong_numbers() -> Iterator[Bad]:
    for eps in (math.nan, math.inf, -math.inf, -1e-5, -1e-300):
        words = "got " + re.escape(f"{eps:g}")[:3]
        yield Bad("eps", f"{eps}", constant(eps), ValueError, words)
    for eps in (1e39, 1.7e308):  # the arguments are float32
        words = "finite in float32, .* got 1"
        yield Bad("eps", f"{eps}", constant(eps), ValueError, words)
    for block in (0, -1, -4, 3, 6, 12, 65536, 2**40, INT64_MAX, INT64_MIN):
        yield Bad("block", f"{block}", constant(block), ValueError, f"power of two.* got {block}")
    for block in (16, 32, 32768):
        yield Bad("block", f"{block}", constant(block), ValueError, f"divide .*8, but got {block}")
    for text in ("", "erf", "Tanh", "none "):
        words = f'"none" or "tanh", but got "{text}"'
        yield Bad("approximate", repr(text), constant(text), ValueError, words)


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes(), *wrong_ranges()]
BAD += wrong_numbers()
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
