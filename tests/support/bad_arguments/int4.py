# SPDX-License-Identifier: BSD-3-Clause
"""Every op of four-bit weights with a call that is right, and the ways to get it wrong."""

from typing import Any

import torch

from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, ProductOp
from tests.support.calls.int4 import LINEARS
from tests.support.cases import INT64_MAX, INT64_MIN

T, N, K, GROUP_SIZE = 6, 5, 10, 4
GROUPS = 3
INTEGERS, DYNAMIC, STATIC = LINEARS
MAKERS = ("choose_int4_qparams", "quantize_int4", "expand_int4", "pack_int4")
CHOOSE, QUANTIZE, EXPAND, PACK = MAKERS


class Op(ProductOp):
    """One right call; `output` is also the dtype of a weight that is quantized."""

    @property
    def given(self) -> dict[str, Any]:
        found = {"packed": (N, K // 2), "input": (T, K), "smooth_scale": (K,), "in_features": K}
        found |= dict.fromkeys(("integers", "weight"), (N, K))
        found |= dict.fromkeys(("group_factor", "group_zero_point"), (N, GROUPS))
        found |= dict.fromkeys(("scale", "weight_scale", "bias", "weight_sum"), (N,))
        found |= dict.fromkeys(("input_scale", "input_zero_point"), (T, 1))
        return super().given | found | dict.fromkeys(("act_scale", "act_zero_point"), ())

    def dtype_of(self, name: str) -> torch.dtype:
        if name in ("packed", "group_factor", "group_zero_point"):
            return torch.uint8
        if name in ("integers", "weight"):
            return torch.int8 if name == "integers" else self.output
        return super().dtype_of(name)


OPS = [Op(name) for name in (*MAKERS, *LINEARS)]
OPS += [Op(QUANTIZE, torch.float64), Op(INTEGERS, torch.float16), Op(DYNAMIC, torch.bfloat16)]


def bad_cases() -> wrong.Bads:
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
    yield from wrong.wrong_values("bits", (0, 1, 5, INT64_MIN, INT64_MAX), r"in \[2, 4\], but ")
    yield from wrong.wrong_values("in_features", (-1, -10, INT64_MIN), "at least 0, but ")


PAIRS = wrong.pairs(OPS, bad_cases())
