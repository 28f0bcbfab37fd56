# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the integer matrix family with calls that are right, and the ways to get it wrong."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import HUGE, INVERTED, NEVER, Bad, ProductOp
from tests.support.bad_arguments.int8_product import LEAD, OF_ROWS, VECTORS, K, N, wrong_sizes
from tests.support.cases import INT64_MAX, INT64_MIN
from tests.support.family_cases.int8_mm import INPUT_RANGE, WEIGHT_RANGE

INTEGER_INPUT = ("int8_linear", "smoothquant_linear")
OF_ALL = ("act_scale", "act_zero_point")


@dataclass(frozen=True)
class Op(ProductOp):
    """One way to call a schema; `number`: with numbers for scale and zero point."""

    number: bool = False

    @property
    def given(self) -> dict[str, Any]:
        found = {"input": (*LEAD, K), "weight": (N, K), "smooth_scale": (K,)}
        found |= dict.fromkeys(VECTORS, (N,)) | dict.fromkeys(OF_ROWS, (*LEAD, 1))
        if self.name == "qat_linear":
            del found["weight_scale"]  # which has that of integers, if they are given
        found |= dict(zip(OF_ALL, (0.5, 1) if self.number else ((), ()), strict=True))
        found |= dict(zip(WEIGHT_RANGE, (-2, 1), strict=True))
        return super().given | found | {"backward": "int8", "rounding": "stochastic"}


OPS = [
    Op("int8_linear"), Op("int8_linear", torch.float16, torch.uint8),
    Op("int8_linear", torch.float64, full=False), Op("smoothquant_linear", torch.bfloat16),
    Op("smoothquant_linear", torch.float64, torch.uint8), Op("smoothquant_linear", number=True),
    Op("smoothquant_linear", torch.float16, torch.uint8, number=True),
]  # fmt: skip
for _name, _low in (
    *(("quantized_linear", torch.bfloat16), ("static_quantized_linear", torch.bfloat16)),
    ("qat_linear", torch.float16),
):
    OPS += [Op(_name), Op(_name, _low, full=False), Op(_name, torch.float64)]


integer_input, floating_input = wrong.of(*INTEGER_INPUT), wrong.but(*INTEGER_INPUT)
integer_weight, floating_weight = wrong.but("qat_linear"), wrong.of("qat_linear")


def bad_dtypes() -> wrong.Bads:
    never = (*NEVER, torch.int32)
    of_bytes = (*never, *cases.FLOAT_DTYPES)
    yield from wrong.wrong_dtypes(["input"], of_bytes, when=integer_input)
    yield from wrong.wrong_dtypes(["weight"], (*of_bytes, torch.uint8), "int8", integer_weight)
    whole = (*never, torch.int8, torch.uint8)
    yield from wrong.wrong_dtypes(["input"], whole, when=floating_input)
    yield from wrong.wrong_dtypes(["weight"], whole, when=floating_weight)
    scales = ("weight_scale", "input_scale", "act_scale", "smooth_scale")
    yield from wrong.wrong_dtypes(scales, (*never, torch.float16, torch.bfloat16))
    for right, other in (cases.SCALE_DTYPES, cases.SCALE_DTYPES[::-1]):
        when = wrong.having(compute=right)
        yield from wrong.wrong_dtypes(scales, [other], cases.name_of(right), when)
    for dtype in (*never, torch.int8, *cases.FLOAT_DTYPES):
        when = wrong.not_as(lambda op: (op.compute, op.output), dtype)
        yield from wrong.wrong_dtypes(["bias"], [dtype], when=when)
    floating = (*cases.FLOAT_DTYPES, torch.complex64, torch.bool)
    yield from wrong.wrong_dtypes(("input_zero_point", "act_zero_point"), floating, "integer")
    other = (torch.int64, torch.int8, torch.uint8, torch.bool, torch.float32)
    yield from wrong.wrong_dtypes(["weight_sum"], other, "int32")
    yield from wrong.wrong_outputs((*whole, torch.qint8))
    for dtype in cases.FLOAT_DTYPES:  # the compute type of input, weight and output is one
        differs = wrong.not_as(lambda op: (op.compute,), cases.compute_dtype(dtype))
        when = lambda op, differs=differs: floating_input(op) and differs(op)  # noqa: E731
        yield from wrong.wrong_outputs([dtype], when=when)
        when = lambda op, differs=differs: floating_weight(op) and differs(op)  # noqa: E731
        yield from wrong.wrong_dtypes(["weight"], [dtype], "input", when)


def bad_shapes() -> wrong.Bads:
    more = {
        "stepped": lambda a: a["weight"].new_ones(2 * N, K)[::2],
        "padded": lambda a: a["weight"].new_ones(N, K + 1)[:, :K],
    }
    yield from wrong.wrong_strides("weight", r"contiguous\(\)", integer_weight, **more)
    for bad in wrong_sizes():
        # A count, the list of sizes or the last one: each says what was given.
        yield Bad(bad.argument, bad.label, bad.change, ValueError, r"expected.* got .*[\d\[]")
    for shape in ((N, K - 1), (N, K + 1), (K, N), (N, 1), (N, 0)):  # either of the two is wrong
        words = f"expected input.*{shape[1]}.*got .*{K}"
        yield Bad("weight", f"{shape}", wrong.of_shape("weight", shape), ValueError, words)
    # Static scales are one for all; zero points need not be.
    one = ((2,), (1, 1), (0,), (4,), (N,))
    yield from wrong.wrong_shapes(["act_scale"], (*one, LEAD, (*LEAD, 1)))
    yield from wrong.wrong_shapes(["act_zero_point"], one)
    when = wrong.of("static_quantized_linear")
    yield from wrong.wrong_shapes(["act_zero_point"], (LEAD, (*LEAD, 1)), when=when)
    shapes = ((K - 1,), (K + 1,), (), (1,), (K, 1), (1, K), (N,), (0,))
    yield from wrong.wrong_shapes(["smooth_scale"], shapes)


def bad_numbers() -> wrong.Bads:
    number = wrong.having(number=True)
    scales = (math.nan, math.inf, -math.inf, 0.0, -0.0, -0.1, 1e300, 1e-60)
    yield from wrong.wrong_values("act_scale", scales, when=number)
    points = (256, -129, 2**31, INT64_MAX, INT64_MIN)
    for dtype, more in ((torch.int8, (128, 255)), (torch.uint8, (-1,))):
        ends, when = torch.iinfo(dtype), wrong.having(number=True, input=dtype)
        words = rf"to lie in \[{ends.min}, {ends.max}\]"
        yield from wrong.wrong_values("act_zero_point", (*points, *more), words, when=when)
    for names in (INPUT_RANGE, WEIGHT_RANGE):  # the weight's are symmetric always
        low, high = names
        yield from wrong.wrong_ranges(INVERTED, f"{low} to be less than", names=names)
        wide = ((-129, 0), (0, 128), (-129, 128), (0, 255), *HUGE)
        yield from wrong.wrong_ranges(wide, rf"{low} and {high} to lie in \[-128, ", names=names)
        also = {} if names == WEIGHT_RANGE else {"symmetric": True}
        ends: tuple[tuple[int, int], ...] = ((0, 1), (-1, 0), (-8, -7), (126, 127))
        words = f"expected {high} - {low} to be at least 2"
        yield from wrong.wrong_ranges(ends, words, names=names, **also)
        # A symmetric zero point would be in the middle: no 0.
        ends = ((-8, 3), (-8, 6), (-8, 9), (0, 15), (-16, -1), (-7, 8), (0, 127), (-128, 0))
        yield from wrong.wrong_ranges(ends, f"{low} and .* to have 0 in", names=names, **also)


def wrong_words(*more: str) -> wrong.Bads:
    """Of the two options of training."""
    for name, right in (
        ("backward", "'float', 'int8_input' or 'int8'"),
        ("rounding", "'nearest' or 'stochastic'"),
    ):
        for word in ("", "8", "none", *more):
            words = f"{right}, but got '{word}'$"
            yield Bad(name, repr(word), wrong.constant(word), ValueError, words)


def bad_options() -> wrong.Bads:
    yield from wrong_words("Float", "INT8", "int8 ", " int8", "int8-input", "Nearest", "up")
    words = r"'nearest' with backward='float'.*but got 'stochastic'; choose backward='int8_input'"
    change, also = wrong.constant("stochastic"), {"backward": "float"}
    yield Bad("rounding", "of float", change, ValueError, words, also=also)


BAD = [*bad_dtypes(), *bad_shapes(), *bad_numbers(), *bad_options()]
PAIRS = wrong.pairs(OPS, BAD)
