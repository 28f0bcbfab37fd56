# SPDX-License-Identifier: BSD-3-Clause
"""int8_conv with calls that are right, and the ways to get them wrong."""

from __future__ import annotations

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
    to_dtype,
)

IMAGES, CHANNELS, OUTPUTS, SPACE = 2, 6, 4, (5, 7)
VECTORS = ("weight_scale", "bias", "weight_sum")
ONES = ("input_scale", "input_zero_point")


@dataclass(frozen=True)
class Op:
    """One right call.

    Attributes:
        output: The dtype of the result.
        input: That of the integers.
        full: With all optional arguments.
    """

    output: torch.dtype = torch.float32
    input: torch.dtype = torch.int8
    full: bool = True

    name = "int8_conv"
    number = False

    def __str__(self) -> str:
        words = [self.name, cases.name_of(self.output), cases.name_of(self.input)]
        return "-".join(words + (["full"] if self.full else []))

    @property
    def compute(self) -> torch.dtype:
        return cases.compute_dtype(self.output)

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""

        def ones(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        found: dict[str, Any] = {
            "input": ones((IMAGES, CHANNELS, *SPACE), self.input),
            "weight": ones((OUTPUTS, CHANNELS // 2, 3, 2), torch.int8),
            "input_scale": ones((1,), self.compute),
            "weight_scale": ones((OUTPUTS,), self.compute),
            "groups": 2,
            "dtype": self.output,
        }
        if self.full:
            found |= {
                "bias": ones((OUTPUTS,), self.output),
                "input_zero_point": ones((), torch.int64),
                "weight_sum": ones((OUTPUTS,), torch.int32),
                "stride": [2, 1],
                "padding": [1, 0],
                "dilation": [1, 2],
            }
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(dtype) for dtype in cases.FLOAT_DTYPES]
OPS += [Op(input=torch.uint8), Op(full=False)]


def any_op(op: Op) -> bool:
    return True


def wrong_dtypes() -> Iterator[Bad]:
    def bad(name: str, dtype: torch.dtype, words: str, when: Callable[[Op], bool] = any_op) -> Bad:
        change = to_dtype(name, dtype)
        return Bad(name, cases.name_of(dtype), change, TypeError, words + got(dtype), when)

    other = (torch.int16, torch.int64, torch.bool, torch.complex64, *cases.FLOAT_DTYPES)
    for dtype in (*other, torch.int32):
        yield bad("input", dtype, "int8 or .*uint8.* ")
        yield bad("weight", dtype, "int8.* ")
    yield bad("weight", torch.uint8, "int8.* ")
    for dtype in (*other, torch.int8):
        yield bad("weight_sum", dtype, "int32.* ")
        for name in ("input_scale", "weight_scale"):
            is_wrong = lambda op, dtype=dtype: dtype != op.compute  # noqa: E731
            yield bad(name, dtype, "float(32|64).* ", is_wrong)
        neither = lambda op, dtype=dtype: dtype not in (op.compute, op.output)  # noqa: E731
        yield bad("bias", dtype, "float.* ", neither)
    for dtype in (*cases.FLOAT_DTYPES, torch.complex64, torch.bool):
        yield bad("input_zero_point", dtype, "integer.* ")
    for dtype in (torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn):
        yield Bad("dtype", cases.name_of(dtype), constant(dtype), TypeError, got(dtype))


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", "weight", *VECTORS, *ONES):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        if name != "input":
            yield Bad(name, DEVICE, elsewhere(name), ValueError, "device.* got (cpu|meta)")


def wrong_shapes() -> Iterator[Bad]:
    def bad(name: str, shape: tuple[int, ...], words: str = "") -> Bad:
        words = words or rf"expected.* got .*{re.escape(str(list(shape)))}"
        return Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)

    for shape in ((2, 5, 5, 7), (2, 3, 5, 7), (6, 2, 5, 7), (5, 5, 7), (5, 7), (1, 2, 6, 5, 7), ()):
        yield bad("input", shape)
    for shape in ((2, 6, 2, 7), (6, 2, 1)):
        words = "at least as large as the spread kernel, .* but got .*input.shape"
        when = lambda op: not op.full  # noqa: E731
        yield Bad("input", f"{shape}", of_shape("input", shape), ValueError, words, when)
    for shape in ((4, 3), (4,), (), (4, 3, 1, 1, 1, 1), (4, 3, 0, 2)):
        yield bad("weight", shape)
    yield bad("weight", (4, 3, 3, 2, 2), "expected input to have 6 channels")
    yield Bad("weight", "odd", of_shape("weight", (3, 3, 3, 2)), ValueError, ".*groups.* got 2")
    for name in VECTORS:
        for shape in ((3,), (5,), (), (1,), (4, 1), (1, 4), (0,)):
            yield bad(name, shape)
    for name in ONES:
        for shape in ((4,), (2,), (1, 1), (0,), (2, 1, 1, 1)):
            yield bad(name, shape)


def wrong_numbers() -> Iterator[Bad]:
    def bad(name: str, value: Any, words: str) -> Bad:
        return Bad(name, f"{value}", constant(value), ValueError, words)

    for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
        words = rf"to lie in \[{least}, 2147483647\], but got"
        for value in (least - 1, -3, 2**31, [1, least - 1], [2**62, 1]):
            yield bad(name, value, words)
        for value in ([], [1, 1, 1]):
            yield bad(name, value, "1 element or 2 .*one for each dimension of space.* but got")
    for value in (0, -1, 3, 2**40):
        yield bad("groups", value, rf"to divide weight.size\(0\) \(4\), but got {value}")
    words = "6 channels|as groups|channels"
    yield bad("groups", 4, words)
    yield bad("groups", 1, words)


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes()]
NUMBERS = [*wrong_numbers()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
