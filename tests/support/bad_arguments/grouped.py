# SPDX-License-Identifier: BSD-3-Clause
"""The grouped ops of the integer matrix family with calls that are right, and ways to be wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from tests.support.family_cases.int8_mm import INPUT_RANGE, WEIGHT_RANGE

E, T, N, K = 3, 7, 5, 8
VECTORS = ("weight_scale", "bias", "weight_sum")  # [E, N]
OF_ROWS = ("input_scale", "input_zero_point")
INTEGERS, TRAINED = "int8_grouped_linear", "qat_grouped_linear"


@dataclass(frozen=True)
class Op:
    """One way to call a schema.

    Attributes:
        output: The output's dtype, and the floating input's.
        full: Whether all optional arguments are given: bias, zero point, weight_sum.
    """

    name: str
    output: torch.dtype = torch.float32
    full: bool = True

    number = False

    def __str__(self) -> str:
        return "-".join([self.name, cases.name_of(self.output), *(["full"] * self.full)])

    @property
    def compute(self) -> torch.dtype:
        return cases.compute_dtype(self.output)

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""

        def ones(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        found: dict[str, Any] = {
            "input": ones((T, K), torch.uint8 if self.name == INTEGERS else self.output),
            "weight": ones((E, N, K), self.output if self.name == TRAINED else torch.int8),
            "offsets": ones((E,), torch.int32),
        }
        if self.name == INTEGERS:
            found["input_scale"] = ones((T, 1), self.compute)
            if self.full:
                found["input_zero_point"] = ones((T, 1), torch.int32)
        else:
            found |= {"symmetric": not self.full, **dict(zip(INPUT_RANGE, (-8, 7), strict=True))}
        if self.name == TRAINED:
            found |= dict(zip(WEIGHT_RANGE, (-2, 1), strict=True))
            found |= {"backward": "float", "rounding": "nearest"}
        else:
            found |= {"weight_scale": ones((E, N), self.compute), "dtype": self.output}
        if self.full:
            found["bias"] = ones((E, N), self.output)
            if self.name != TRAINED:
                found["weight_sum"] = ones((E, N), torch.int32)
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = (
    Op(INTEGERS),
    Op(INTEGERS, torch.float16),
    Op(INTEGERS, torch.float64, full=False),
    Op("quantized_grouped_linear"),
    Op("quantized_grouped_linear", torch.bfloat16, full=False),
    Op("quantized_grouped_linear", torch.float64),
    Op(TRAINED),
    Op(TRAINED, torch.float16, full=False),
    Op(TRAINED, torch.float64),
)


def integer_weight(op: Op) -> bool:
    return op.name != TRAINED


def wrong_dtypes() -> Iterator[Bad]:
    never = (torch.int16, torch.int64, torch.bool, torch.complex64)
    for dtype in never:
        for argument in ("input", "weight", "weight_scale", "bias", "input_scale"):
            change = to_dtype(argument, dtype)
            yield Bad(argument, cases.name_of(dtype), change, TypeError, got(dtype))
    for dtype in (torch.int64, torch.uint8, torch.float32):
        for argument in ("offsets", "weight_sum"):
            change, words = to_dtype(argument, dtype), "int32.* " + got(dtype)
            yield Bad(argument, cases.name_of(dtype), change, TypeError, words)
    for dtype in (torch.float32, torch.bool):
        change = to_dtype("input_zero_point", dtype)
        yield Bad("input_zero_point", cases.name_of(dtype), change, TypeError, "integer")
    yield Bad("dtype", "int8", constant(torch.int8), TypeError, got(torch.int8))


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", "weight", "offsets", *VECTORS, *OF_ROWS):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        if name != "input":
            words = "device.* got (cpu|meta)"
            yield Bad(name, DEVICE, elsewhere(name), ValueError, words)
    for label, change in {
        "transposed": lambda a: a["weight"].transpose(0, 1).contiguous().transpose(0, 1),
        "expanded": lambda a: a["weight"].new_ones(1, N, K).expand(E, N, K),
    }.items():
        words = r"\[E, N, K\].*contiguous\(\)"
        yield Bad("weight", label, change, ValueError, words, integer_weight)


def wrong_shapes() -> Iterator[Bad]:
    wrong: dict[str, list[tuple[int, ...]]] = {
        "input": [(T, K - 1), (T, 1, K), (K,), (), (T, 0)],
        "weight": [(N, K), (1, E, N, K), (K,), ()],
        "offsets": [(E - 1,), (E + 1,), (E, 1), (), (0,)],
        **{key: [(N,), (E,), (N, E), (E, N, 1), (E * N,), (), (E, 0)] for key in VECTORS},
        **{key: [(T - 1,), (E,), (T, 2), (1, 1), (T, 1, 1), (0,)] for key in OF_ROWS},
    }
    for name, shapes in wrong.items():
        for shape in shapes:
            last = shape[-1] if shape else 0
            words = rf"expected.* got .*({re.escape(str(list(shape)))}|{last})"
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)


def wrong_ranges() -> Iterator[Bad]:
    for low, high in (INPUT_RANGE, WEIGHT_RANGE):
        for ends in ((7, 7), (-129, 0), (0, 128)):
            words = rf"but got {ends[0]} and {ends[1]}$"
            also = {high: ends[1]}
            yield Bad(low, f"{ends}", constant(ends[0]), ValueError, words, also=also)


def wrong_options() -> Iterator[Bad]:
    for word in ("", "int4", "INT8"):
        words = rf"'float', 'int8_input' or 'int8', but got '{word}'$"
        yield Bad("backward", repr(word), constant(word), ValueError, words)
    for word in ("int8_input", "int8"):
        words = rf"'float' for groups of tokens, but got '{word}'.*use qat_linear for each group"
        yield Bad("backward", word, constant(word), NotImplementedError, words)
    for word in ("", "random"):
        words = rf"'nearest' or 'stochastic', but got '{word}'$"
        yield Bad("rounding", repr(word), constant(word), ValueError, words)
    words = "'nearest' with backward='float'.*but got 'stochastic'"
    yield Bad("rounding", "stochastic", constant("stochastic"), ValueError, words)


BAD = [
    *wrong_dtypes(),
    *wrong_layouts_and_devices(),
    *wrong_shapes(),
    *wrong_ranges(),
    *wrong_options(),
]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
