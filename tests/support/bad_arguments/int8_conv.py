# SPDX-License-Identifier: BSD-3-Clause
"""int8_conv with calls that are right, and the ways to get them wrong."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, Bad, ProductOp

VECTORS = ("weight_scale", "bias", "weight_sum")
ONES = ("input_scale", "input_zero_point")


@dataclass(frozen=True)
class Op(ProductOp):
    """One right call."""

    name: str = "int8_conv"

    @property
    def given(self) -> dict[str, Any]:
        found = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 2}
        found |= {"input": (2, 6, 5, 7), "weight": (4, 3, 3, 2)}
        return super().given | found | dict.fromkeys(VECTORS, (4,)) | dict.fromkeys(ONES, (1,))


OPS = [Op(output=dtype) for dtype in cases.FLOAT_DTYPES]
OPS += [Op(input=torch.uint8), Op(full=False)]


def bad_cases() -> wrong.Bads:
    other = (*NEVER[:4], *cases.FLOAT_DTYPES)
    yield from wrong.wrong_dtypes(["input"], (*other, torch.int32), "int8 or .*uint8")
    yield from wrong.wrong_dtypes(["weight"], (*other, torch.int32, torch.uint8), "int8")
    yield from wrong.wrong_dtypes(["weight_sum"], (*other, torch.int8), "int32")
    scales = ("input_scale", "weight_scale")
    yield from wrong.wrong_parameters((*other, torch.int8), scales, ["input_zero_point"])
    yield from wrong.wrong_outputs((torch.int8, *NEVER[2:]))
    shapes: wrong.Shapes = ((2, 5, 5, 7), (2, 3, 5, 7), (6, 2, 5, 7), (5, 5, 7), (5, 7))
    yield from wrong.wrong_shapes(["input"], (*shapes, (1, 2, 6, 5, 7), ()))
    for shape in ((2, 6, 2, 7), (6, 2, 1)):
        words = "at least as large as the spread kernel, .* but got .*input.shape"
        when = wrong.having(full=False)
        yield Bad("input", f"{shape}", wrong.of_shape("input", shape), ValueError, words, when)
    shapes = ((4, 3), (4,), (), (4, 3, 1, 1, 1, 1), (4, 3, 0, 2))
    yield from wrong.wrong_shapes(["weight"], shapes)
    for shape, words in (
        ((4, 3, 3, 2, 2), "expected input to have 6 channels"),
        ((3, 3, 3, 2), ".*groups.* got 2"),
    ):
        change = wrong.of_shape("weight", shape)
        yield Bad("weight", f"{shape}", change, ValueError, words)
    yield from wrong.wrong_shapes(VECTORS, ((3,), (5,), (), (1,), (4, 1), (1, 4), (0,)))
    yield from wrong.wrong_shapes(ONES, ((4,), (2,), (1, 1), (0,), (2, 1, 1, 1)))

    def bad(name: str, value: Any, words: str) -> Bad:
        when = wrong.having(full=True, output=torch.float32)
        return Bad(name, f"{value}", wrong.constant(value), ValueError, f"(?:{words})", when)

    for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
        words = rf"to lie in \[{least}, 2147483647\], but got"
        for value in (least - 1, -3, 2**31, [1, least - 1], [2**62, 1]):
            yield bad(name, value, words)
        for value in ([], [1, 1, 1]):
            yield bad(name, value, "1 element or 2 .*one for each dimension of space.* but got")
    for value in (0, -1, 3, 2**40):
        yield bad("groups", value, rf"to divide weight.size\(0\) \(4\), but got {value}")


PAIRS = wrong.pairs(OPS, bad_cases())
