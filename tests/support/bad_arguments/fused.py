# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the fused family with a call that is right, and the ways to get it wrong."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, SHAPE, Bad, PublicOp
from tests.support.calls.fused import NORMS, QUANTIZE, VERBS
from tests.support.cases import INT64_MAX, INT64_MIN

ROWS = ("input", "gate", "up", "residual")
VECTORS = ("weight", "bias")


@dataclass(frozen=True)
class Op(PublicOp):
    """One schema."""

    given: ClassVar = {
        **dict.fromkeys(ROWS, SHAPE), **dict.fromkeys(VECTORS, SHAPE[-1:]),
        "eps": 1e-5, "approximate": "tanh", "block": 4, "dtype": torch.int8,
    }  # fmt: skip

    base: str
    quantize: bool
    residual: bool = False

    def __str__(self) -> str:
        return self.name + (".residual" if self.residual else "")

    @property
    def name(self) -> str:
        return self.base + (QUANTIZE if self.quantize else "")


OPS = [Op(base, quantize) for base in VERBS for quantize in (False, True)]
OPS += [Op(base, quantize, residual=True) for base in NORMS for quantize in (False, True)]


def bad_cases() -> wrong.Bads:
    whole = (*NEVER, torch.int8, torch.uint8, torch.int32)
    yield from wrong.wrong_dtypes(("input", "gate"), whole)
    other = (torch.float64, torch.float16, torch.bfloat16, torch.int32)
    yield from wrong.wrong_dtypes(("up", "residual", *VECTORS), other, "float32")
    for name in ("input", "gate"):
        only = lambda op: op.base in ("silu_mul", "gelu")  # noqa: E731
        change = wrong.to_dtype(name, torch.float64)
        yield Bad(name, "float64", change, TypeError, r"got torch\.float64.*\.float\(\)", only)
        change = wrong.of_shape(name, ())
        yield Bad(name, "()", change, ValueError, "1 dimension, but got 0")
    not_integers = (*cases.FLOAT_DTYPES, torch.int16, torch.int32, torch.bool, torch.qint8)
    yield from wrong.wrong_outputs(not_integers, "int8 or .*uint8")
    shapes = ((), (1,), (7,), (9,), (8, 1), (1, 8), (0,), SHAPE)
    yield from wrong.wrong_shapes(VECTORS, shapes, r"expected.* \[8\]")
    shapes = ((), (8,), (6, 8), (1, 6, 8), (4, 6, 1), (4, 6, 7), (4, 48), (0, 6, 8))
    yield from wrong.wrong_shapes(("up", "residual"), shapes, r"expected.* \[4, 6, 8\]")
    yield from wrong.wrong_integer_ranges()
    yield from wrong.wrong_values("eps", (math.nan, math.inf, -math.inf, -1e-5, -1e-300))
    yield from wrong.wrong_values("eps", (1e39, 1.7e308), "finite in float32, ")  # the input's
    blocks = (0, -1, -4, 3, 6, 12, 65536, 2**40, INT64_MAX, INT64_MIN)
    yield from wrong.wrong_values("block", blocks, "power of two")
    yield from wrong.wrong_values("block", (16, 32, 32768), "divide .*8, but ")
    for text in ("", "erf", "Tanh", "none "):
        words = f'"none" or "tanh", but got "{text}"'
        yield Bad("approximate", repr(text), wrong.constant(text), ValueError, words)


PAIRS = wrong.pairs(OPS, bad_cases())
