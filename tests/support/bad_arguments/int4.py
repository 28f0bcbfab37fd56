# SPDX-License-Identifier: BSD-3-Clause
"""Every op of four-bit weights with a call that is right, and the ways to get it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, Bad, PublicOp, ones_on
from tests.support.calls.int4 import LINEARS
from tests.support.cases import INT64_MAX, INT64_MIN

T, N, K, GROUP_SIZE = 6, 5, 10, 4
GROUPS = 3
INTEGERS, DYNAMIC, STATIC = LINEARS
MAKERS = ("choose_int4_qparams", "quantize_int4", "expand_int4", "pack_int4")
CHOOSE, QUANTIZE, EXPAND, PACK = MAKERS


@dataclass(frozen=True)
class Op(PublicOp):
    """One op; `output`: the dtype of the result of a linear op, and of a floating input."""

    name: str
    output: torch.dtype = torch.float32

    def __str__(self) -> str:
        suffix = "" if self.output == torch.float32 else f"-{cases.name_of(self.output)}"
        return self.name + suffix

    def arguments(self, device: str) -> dict[str, Any]:
        ones = ones_on(device)
        compute = cases.compute_dtype(self.output)
        if self.name == PACK:
            return {"integers": ones((N, K), torch.int8)}
        found: dict[str, Any] = {"group_size": GROUP_SIZE}
        if self.name in (CHOOSE, QUANTIZE):
            found["weight"] = ones((N, K), self.output)
        if self.name == CHOOSE:
            return found
        found["group_factor"] = ones((N, GROUPS), torch.uint8)
        found["group_zero_point"] = ones((N, GROUPS), torch.uint8)
        if self.name == QUANTIZE:
            return found | {"scale": ones((N,), compute)}
        found["packed"] = ones((N, K // 2), torch.uint8)
        if self.name == EXPAND:
            return found | {"in_features": K}
        found["input"] = ones((T, K), torch.int8 if self.name == INTEGERS else self.output)
        found["weight_scale"] = ones((N,), compute)
        found["bias"] = ones((N,), self.output)
        found["weight_sum"] = ones((N,), torch.int32)
        found["dtype"] = self.output
        if self.name == INTEGERS:
            found["input_scale"] = ones((T, 1), compute)
            found["input_zero_point"] = ones((T, 1), torch.int32)
        else:
            found |= {"quant_min": -8, "quant_max": 7}
        if self.name == DYNAMIC:
            found["symmetric"] = False
        if self.name == STATIC:
            found["act_scale"] = ones((), compute)
            found["act_zero_point"] = ones((), torch.int32)
            found["smooth_scale"] = ones((K,), compute)
        return found


OPS = [Op(name) for name in (*MAKERS, *LINEARS)]
OPS += [Op(QUANTIZE, torch.float64), Op(INTEGERS, torch.float16), Op(DYNAMIC, torch.bfloat16)]


def bad_cases() -> Iterator[Bad]:
    floating = ("weight", "input", "weight_scale", "scale", "bias", "input_scale")
    yield from wrong.wrong_dtypes(floating, NEVER[:4])
    of_bytes = ("packed", "group_factor", "group_zero_point")
    other = (torch.int8, torch.int32, torch.float32, torch.bool)
    yield from wrong.wrong_dtypes(of_bytes, other, "uint8")
    other = (torch.uint8, torch.int32, torch.int64, torch.float32)
    yield from wrong.wrong_dtypes(["integers"], other, "int8")
    yield from wrong.wrong_dtypes(["weight_sum"], (torch.int64, torch.uint8), "int32")
    yield from wrong.wrong_outputs([torch.int8])
    yield from wrong.wrong_strides("packed", r"call \.contiguous\(\)", wrong.of(*LINEARS))
    shapes: wrong.Shapes = ((), (N,), (1, N, K), (N, K, 1))
    words = r"2 dimensions \[N, K\]"
    yield from wrong.wrong_shapes(["weight"], shapes, words, wrong.of(CHOOSE, QUANTIZE))
    yield from wrong.wrong_shapes(["integers"], shapes, words)
    shapes = ((N,), (), (N, K), (N, K // 2 + 1), (N, 0), (1, N, K // 2))
    yield from wrong.wrong_shapes(["packed"], shapes, r"(2 dimensions|to have shape \[N, 5\])")
    shapes = ((N,), (N, GROUPS - 1), (N + 1, GROUPS), (GROUPS, N), (N, GROUPS, 1), ())
    yield from wrong.wrong_shapes(of_bytes[1:], shapes, r"to have shape \[5, 3\]")
    vectors = ("scale", "weight_scale", "bias", "weight_sum")
    yield from wrong.wrong_shapes(vectors, ((), (N - 1,), (1, N)), r"to have shape \[5\]")
    sizes = (0, -2, 3, 31, 2**31, 2**40, INT64_MIN, INT64_MAX)
    yield from wrong.wrong_values("group_size", sizes, "even .*but ")
    yield from wrong.wrong_values("in_features", (-1, -10, INT64_MIN), "at least 0, but ")


PAIRS = wrong.pairs(OPS, bad_cases())
