# SPDX-License-Identifier: BSD-3-Clause
"""int8_product and rescale_product with calls that are right, and the ways to get them wrong."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, Bad, ProductOp

LEAD, N, K = (4, 6), 5, 8
OF_ROWS = ("input_scale", "input_zero_point")
VECTORS = ("weight_scale", "bias", "weight_sum")


@dataclass(frozen=True)
class Op(ProductOp):
    """One right call."""

    output: torch.dtype = torch.int32

    @property
    def given(self) -> dict[str, Any]:
        found = {"input": (*LEAD, K if multiplies(self) else N), "weight": (N, K)}
        found |= dict.fromkeys(VECTORS, (N,)) | dict.fromkeys(OF_ROWS, (*LEAD, 1))
        return super().given | found


multiplies, rescales = wrong.of("int8_product"), wrong.but("int8_product")
OPS = [Op("int8_product"), Op("int8_product", input=torch.uint8), Op("int8_product", full=False)]
OPS += [Op("rescale_product", dtype, torch.int32) for dtype in cases.FLOAT_DTYPES]
OPS += [Op("rescale_product", torch.float32, torch.int32, full=False)]


def bad_cases() -> wrong.Bads:
    other = (*NEVER, *cases.FLOAT_DTYPES)
    yield from wrong.wrong_dtypes(["input"], (*other, torch.int32), "int8 or .*uint8", multiplies)
    yield from wrong.wrong_dtypes(["weight"], (*other, torch.int32, torch.uint8), "int8")
    whole = (*other, torch.int8, torch.uint8)
    yield from wrong.wrong_dtypes(["input"], whole, "int32", rescales)
    yield from wrong.wrong_dtypes(["weight_sum"], whole, "int32")
    scales = ("input_scale", "weight_scale")
    yield from wrong.wrong_parameters(whole, scales, ["input_zero_point"])
    yield from wrong.wrong_outputs((torch.int8, torch.int32, *NEVER[2:]))
    yield from wrong.wrong_strides("weight", r"contiguous\(\)")
    yield from wrong_sizes(multiplies)
    words = "to have at least 1 dimension, but got 0"
    yield Bad("input", "()", wrong.of_shape("input", ()), ValueError, words)


def wrong_sizes(when: wrong.When = wrong.always) -> wrong.Bads:
    """Of a product of rows [*LEAD, K] and a weight [N, K]."""
    shapes: wrong.Shapes = ((*LEAD, K - 1), (*LEAD, K + 1), (K, *LEAD), (*LEAD, 1), (*LEAD, 0))
    yield from wrong.wrong_shapes(["input"], (*shapes, (K, 1)), when=when)
    shapes = ((N,), (K,), (N, K, 1), (1, N, K), (N * K,), ())
    yield from wrong.wrong_shapes(["weight"], shapes)
    shapes = ((N - 1,), (N + 1,), (), (1,), (N, 1), (1, N), (K,), (0,))
    yield from wrong.wrong_shapes(VECTORS, shapes)
    shapes = ((5,), (4,), (24,), (1, 1), (4, 1), (4, 6, 8), (4, 6, 1, 1), (0,), (6, 4))
    yield from wrong.wrong_shapes(OF_ROWS, shapes)


PAIRS = wrong.pairs(OPS, bad_cases())
