# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the scaled family with a call that is right, and the ways to get it wrong."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, SHAPE, Bad, PublicOp
from tests.support.cases import INT64_MAX, INT64_MIN

TRANSPOSED = "scaled_quantize_transposed"
NAMES = ("scaled_quantize_per_token", TRANSPOSED, "transpose_int8", "draw_random")


@dataclass(frozen=True)
class Op(PublicOp):
    """One op."""

    name: str

    @property
    def given(self) -> dict[str, Any]:
        factor = SHAPE[:-1] if self.name == TRANSPOSED else SHAPE[-1:]
        x = SHAPE[1:] if self.name == "transpose_int8" else SHAPE
        return {"input": x, "like": SHAPE, "factor": factor, "random": (2,), "count": 2}

    def dtype_of(self, name: str) -> torch.dtype:
        if name == "input" and self.name == "transpose_int8":
            return torch.int8
        return torch.int64 if name == "random" else torch.float32


OPS = [Op(name) for name in NAMES]
quantizes, transposes = wrong.of(*NAMES[:2]), wrong.of("transpose_int8")


def bad_cases() -> wrong.Bads:
    yield from wrong.wrong_dtypes(["input"], (*NEVER, torch.uint8))
    no_bytes = (*cases.FLOAT_DTYPES, torch.int32)
    yield from wrong.wrong_dtypes(["input"], no_bytes, "int8", transposes)
    other = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64)
    yield from wrong.wrong_dtypes(["factor"], other, "float32.*compute type")
    other = (torch.int32, torch.uint8, torch.float32, torch.bool)
    yield from wrong.wrong_dtypes(["random"], other, "int64")
    words = "at least 1 dimension, but got 0"
    yield Bad("input", "()", wrong.of_shape("input", ()), ValueError, words, quantizes)
    shapes = ((), (3,), (2, 2, 2), (1, 2, 3, 4))
    yield from wrong.wrong_shapes(["input"], shapes, "2 dimensions", transposes)
    shapes = ((), (1,), (SHAPE[-1] + 1,), (1, SHAPE[-1]), (0,), (*SHAPE, 1), SHAPE)
    yield from wrong.wrong_shapes(["factor"], shapes, "shape")
    yield from wrong.wrong_shapes(["random"], ((), (1,), (3,), (2, 1), (0,)), r"shape \[2\]")
    counts = (0, -1, -2, -7, 2**31, 2**32, 2**40, 2**62, INT64_MIN, INT64_MAX)
    yield from wrong.wrong_values("count", counts, r"\[1, 2147483647\], but ")


PAIRS = wrong.pairs(OPS, bad_cases())
