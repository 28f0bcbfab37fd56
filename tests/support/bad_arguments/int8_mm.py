# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the integer matrix family with calls that are right, and the ways to get it wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support import cases
from tests.support.bad_arguments.affine import (
    DEVICE,
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
from tests.support.family_cases.int8_mm import INPUT_RANGE, WEIGHT_RANGE

LEAD, N, K = (4, 6), 5, 8
INTEGER_INPUT = ("int8_linear", "smoothquant_linear")
VECTORS = ("weight_scale", "bias", "weight_sum")  # one entry for each output channel
OF_ROWS = ("input_scale", "input_zero_point")
OF_ALL = ("act_scale", "act_zero_point")
OF_INPUTS = ("smooth_scale",)  # one entry for each input channel
STATIC = ("smoothquant_linear", "static_quantized_linear")


@dataclass(frozen=True)
class Op:
    """One way to call a schema.

    Attributes:
        output: The output's dtype, and the floating input's.
        input: The integer input's dtype.
        full: Whether all optional arguments are given: bias, zero point, weight_sum.
        number: Whether scale and zero point are numbers.
    """

    name: str
    output: torch.dtype = torch.float32
    input: torch.dtype = torch.int8
    full: bool = True
    number: bool = False

    def __str__(self) -> str:
        words = [self.name, cases.name_of(self.output)]
        words += [cases.name_of(self.input)] if self.name in INTEGER_INPUT else []
        words += ["full"] if self.full else []
        return "-".join(words + (["number"] if self.number else []))

    @property
    def compute(self) -> torch.dtype:
        return cases.compute_dtype(self.output)

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""

        def ones(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        integers = self.name in INTEGER_INPUT
        found: dict[str, Any] = {
            "input": ones((*LEAD, K), self.input if integers else self.output),
            "weight": ones((N, K), self.output if self.name == "qat_linear" else torch.int8),
        }
        if self.name != "qat_linear":
            found["weight_scale"] = ones((N,), self.compute)
        if self.name in (*INTEGER_INPUT, *STATIC):
            names = OF_ALL if self.name in STATIC else OF_ROWS
            shape = () if self.name in STATIC else (*LEAD, 1)
            found[names[0]] = 0.5 if self.number else ones(shape, self.compute)
            if self.full:
                found[names[1]] = 1 if self.number else ones(shape, torch.int32)
        else:
            found["symmetric"] = not self.full
        if not integers:
            found |= dict(zip(INPUT_RANGE, (-8, 7), strict=True))
        if self.name == "qat_linear":
            found |= dict(zip(WEIGHT_RANGE, (-2, 1), strict=True))
            found |= {"backward": "int8", "rounding": "stochastic"}
        else:
            found["dtype"] = self.output
        if self.name == "static_quantized_linear" and self.full:
            found["smooth_scale"] = ones((K,), self.compute)
        if self.full:
            found["bias"] = ones((N,), self.output)
            if self.name != "qat_linear":
                found["weight_sum"] = ones((N,), torch.int32)
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = (
    Op("int8_linear"),
    Op("int8_linear", torch.float16, torch.uint8),
    Op("int8_linear", torch.float64, full=False),
    Op("smoothquant_linear", torch.bfloat16),
    Op("smoothquant_linear", torch.float64, torch.uint8),
    Op("smoothquant_linear", number=True),
    Op("smoothquant_linear", torch.float16, torch.uint8, number=True),
    Op("quantized_linear"),
    Op("quantized_linear", torch.bfloat16, full=False),
    Op("quantized_linear", torch.float64),
    Op("static_quantized_linear"),
    Op("static_quantized_linear", torch.bfloat16, full=False),
    Op("static_quantized_linear", torch.float64),
    Op("qat_linear"),
    Op("qat_linear", torch.float16, full=False),
    Op("qat_linear", torch.float64),
)


def integer_input(op: Op) -> bool:
    return op.name in INTEGER_INPUT


def floating_input(op: Op) -> bool:
    return op.name not in INTEGER_INPUT


def integer_weight(op: Op) -> bool:
    return op.name != "qat_linear"


def takes_tensors(op: Op) -> bool:
    return not op.number


# --- the cases -----------------------------------------------------------------------------------


def wrong_dtypes() -> Iterator[Bad]:
    def bad(argument: str, dtype: torch.dtype, when: Callable[[Op], bool], words: str = "") -> Bad:
        change = to_dtype(argument, dtype)
        return Bad(argument, cases.name_of(dtype), change, TypeError, words + got(dtype), when)

    never = (torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64)
    never += (torch.float8_e4m3fn,)
    for dtype in (*never, *cases.FLOAT_DTYPES):
        yield bad("input", dtype, integer_input)
        yield bad("weight", dtype, integer_weight, "int8.* ")
    yield bad("weight", torch.uint8, integer_weight, "int8.* ")
    for dtype in (*never, torch.int8, torch.uint8):
        yield bad("input", dtype, floating_input)
        yield bad("weight", dtype, lambda op: op.name == "qat_linear")
    for argument in ("weight_scale", "input_scale", "act_scale", "smooth_scale"):
        for dtype in (*never, torch.float16, torch.bfloat16):
            yield bad(argument, dtype, takes_tensors if argument == "act_scale" else any_op)
        for right, wrong in (cases.SCALE_DTYPES, cases.SCALE_DTYPES[::-1]):
            words = cases.name_of(right) + ".* "
            when = lambda op, right=right, argument=argument: (  # noqa: E731
                op.compute == right and not (op.number and argument == "act_scale")
            )
            yield bad(argument, wrong, when, words)
    for dtype in (*never, torch.int8, *cases.FLOAT_DTYPES):
        neither = lambda op, dtype=dtype: dtype not in (op.compute, op.output)  # noqa: E731
        yield bad("bias", dtype, neither)
    for argument in ("input_zero_point", "act_zero_point"):
        for dtype in (*cases.FLOAT_DTYPES, torch.complex64, torch.bool):
            yield bad(argument, dtype, takes_tensors, "integer.* ")
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool, torch.float32):
        yield bad("weight_sum", dtype, any_op, "int32.* ")
    for dtype in (*never, torch.int8, torch.uint8, torch.qint8):
        yield Bad("dtype", cases.name_of(dtype), constant(dtype), TypeError, got(dtype))
    for dtype in cases.FLOAT_DTYPES:  # the scales are in the compute type of input and output
        change = constant(dtype)
        yield Bad("dtype", cases.name_of(dtype), change, TypeError, got(dtype), computed(dtype))


def any_op(op: Op) -> bool:
    return True


def other_than(dtype: torch.dtype) -> Callable[[Op], bool]:
    return lambda op: op.name == "qat_linear" and op.compute != cases.compute_dtype(dtype)


def computed(dtype: torch.dtype) -> Callable[[Op], bool]:
    return lambda op: floating_input(op) and op.compute != cases.compute_dtype(dtype)


def wrong_together() -> Iterator[Bad]:
    """qat_linear's weight has the compute type of its input."""
    for dtype in cases.FLOAT_DTYPES:
        change, words = to_dtype("weight", dtype), "input.* " + got(dtype)
        yield Bad("weight", cases.name_of(dtype), change, TypeError, words, other_than(dtype))


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", "weight", *VECTORS, *OF_ROWS, *OF_ALL, *OF_INPUTS):
        when = takes_tensors if name in OF_ALL else any_op
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse", when)
        if name != "input":
            words = "device.* got (cpu|meta)"
            yield Bad(name, DEVICE, elsewhere(name), ValueError, words, when)
    for name in ("input", "weight"):
        yield Bad(name, "sparse_csr", sparse_csr(name), TypeError, "got .*[Ss]parse")
    for label, change in {
        "transposed": lambda a: a["weight"].t().contiguous().t(),
        "stepped": lambda a: a["weight"].new_ones(2 * N, K)[::2],
        "padded": lambda a: a["weight"].new_ones(N, K + 1)[:, :K],
        "expanded": lambda a: a["weight"].new_ones(1, K).expand(N, K),
    }.items():
        words = r"contiguous\(\)"
        yield Bad("weight", label, change, ValueError, words, integer_weight)


def wrong_shapes() -> Iterator[Bad]:
    def bad(name: str, shape: tuple[int, ...], when: Callable[[Op], bool] = any_op) -> Bad:
        """A count or the list of sizes or the last one: each says what was given."""
        count, last = math.prod(shape), shape[-1] if shape else 0
        words = rf"expected.* got .*({re.escape(str(list(shape)))}|{count}|{last}|{len(shape)})"
        return Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, when)

    for shape in ((*LEAD, K - 1), (*LEAD, K + 1), (K, 4, 6), (*LEAD, 1), (*LEAD, 0), (K, 1)):
        yield bad("input", shape)
    for shape in ((N,), (K,), (N, K, 1), (1, N, K), (N * K,), ()):
        yield bad("weight", shape)
    for shape in ((N, K - 1), (N, K + 1), (K, N), (N, 1), (N, 0)):  # either of the two is wrong
        words = "expected input.*" + str(shape[1]) + ".*got .*" + str(K)
        yield Bad("weight", f"{shape}", of_shape("weight", shape), ValueError, words)
    for name in VECTORS:
        for shape in ((N - 1,), (N + 1,), (), (1,), (N, 1), (1, N), (K,), (0,)):
            yield bad(name, shape)
    for name in OF_ROWS:
        for shape in (
            (5,),
            (4,),
            (6,),
            (24,),
            (1, 1),
            (4, 1),
            (4, 6, 8),
            (4, 6, 1, 1),
            (0,),
            (6, 4),
        ):
            yield bad(name, shape)
    for name in OF_ALL:
        for shape in ((2,), (1, 1), (0,), (4,), (N,)):
            yield bad(name, shape, takes_tensors)
    for shape in (LEAD, (*LEAD, 1)):  # static scales are one for all; zero points need not be
        yield bad("act_scale", shape, takes_tensors)
        yield bad("act_zero_point", shape, lambda op: op.name == "static_quantized_linear")
    for shape in ((K - 1,), (K + 1,), (), (1,), (K, 1), (1, K), (N,), (0,)):
        yield bad("smooth_scale", shape)


def wrong_numbers() -> Iterator[Bad]:
    def number(op: Op) -> bool:
        return op.number

    for scale in (math.nan, math.inf, -math.inf, 0.0, -0.0, -0.1, 1e300, 1e-60):
        words = "got " + re.escape(f"{scale:g}"[:3])
        yield Bad("act_scale", f"{scale}", constant(scale), ValueError, words, number)
    for point in (256, -129, 2**31, INT64_MAX, INT64_MIN):
        words = f"got {point}"
        yield Bad("act_zero_point", f"{point}", constant(point), ValueError, words, number)
    for dtype, point in ((torch.int8, 128), (torch.int8, 255), (torch.uint8, -1)):
        when = lambda op, dtype=dtype: op.number and op.input == dtype  # noqa: E731
        words = f"got {point}"
        yield Bad("act_zero_point", f"{point}", constant(point), ValueError, words, when)


def wrong_ranges() -> Iterator[Bad]:
    """Of the integers that the input and the weight become; the latter's are symmetric always."""

    def bad(names: tuple[str, str], ends: tuple[int, int], words: str, **also: Any) -> Bad:
        low, high = names
        label = "_".join([f"{ends[0]}_to_{ends[1]}", *map(str, also.values())])
        words = rf"expected {words}.* but got {ends[0]} and {ends[1]}$"
        return Bad(low, label, constant(ends[0]), ValueError, words, also={high: ends[1]} | also)

    for names in (INPUT_RANGE, WEIGHT_RANGE):
        low, high = names
        for ends in ((7, 7), (7, -8), (0, -1), (INT64_MAX, INT64_MIN)):
            yield bad(names, ends, f"{low} to be less than {high}")
        for ends in ((-129, 0), (0, 128), (-129, 128), (0, 255), (INT64_MIN, 7), (-8, INT64_MAX)):
            yield bad(names, ends, rf"{low} and {high} to lie in \[-128, 127\]")
        symmetric = {} if names == WEIGHT_RANGE else {"symmetric": True}
        for ends in ((0, 1), (-1, 0), (-8, -7), (126, 127)):
            yield bad(names, ends, f"{high} - {low} to be at least 2", **symmetric)
        # A symmetric zero point would be in the middle: no 0.
        for ends in ((-8, 3), (-8, 6), (-8, 9), (0, 15), (-16, -1), (-7, 8), (0, 127), (-128, 0)):
            yield bad(names, ends, f"{low} and {high} to have 0 in the middle", **symmetric)


WORDS = ("", "Float", "INT8", "int8 ", " int8", "int4", "fp8", "bfloat16", "none", "true", "8")


def wrong_options() -> Iterator[Bad]:
    for word in (*WORDS, "stochastic", "int8-input", "int8_weight"):
        words = rf"'float', 'int8_input' or 'int8', but got '{word}'$"
        yield Bad("backward", repr(word), constant(word), ValueError, words)
    for word in (*WORDS, "random", "Nearest", "up"):
        words = rf"'nearest' or 'stochastic', but got '{word}'$"
        yield Bad("rounding", repr(word), constant(word), ValueError, words)
    words = r"'nearest' with backward='float'.*but got 'stochastic'; choose backward='int8_input'"
    yield Bad("rounding", "of float", constant("stochastic"), ValueError, words,
              also={"backward": "float"})  # fmt: skip


BAD = [*wrong_dtypes(), *wrong_together(), *wrong_layouts_and_devices(), *wrong_shapes()]
BAD += [*wrong_numbers(), *wrong_ranges(), *wrong_options()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
