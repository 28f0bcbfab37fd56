# SPDX-License-Identifier: BSD-3-Clause
"""int8_product and rescale_product with calls that are right, and the ways to get them wrong."""

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

LEAD, N, K = (4, 6), 5, 8
OF_ROWS = ("input_scale", "input_zero_point")
VECTORS = ("weight_scale", "bias", "weight_sum")


@dataclass(frozen=True)
class Op:
    """One right call.

    Attributes:
        output: The dtype of the result.
        input: That of the integers of int8_product.
        full: With all optional arguments.
    """

    name: str
    output: torch.dtype = torch.int32
    input: torch.dtype = torch.int8
    full: bool = True

    number = False

    def __str__(self) -> str:
        words = [self.name, cases.name_of(self.output), cases.name_of(self.input)]
        return "-".join(words + (["full"] if self.full else []))

    @property
    def multiplies(self) -> bool:
        return self.name == "int8_product"

    @property
    def compute(self) -> torch.dtype:
        return cases.compute_dtype(self.output)

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""

        def ones(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        if self.multiplies:
            found = {"input": ones((*LEAD, K), self.input), "weight": ones((N, K), torch.int8)}
            if self.full:
                found["input_zero_point"] = ones((*LEAD, 1), torch.int32)
                found["weight_sum"] = ones((N,), torch.int32)
            return found
        found = {
            "input": ones((*LEAD, N), torch.int32),
            "input_scale": ones((*LEAD, 1), self.compute),
            "weight_scale": ones((N,), self.compute),
        }
        if self.full:
            found["bias"] = ones((N,), self.output)
        return found | {"dtype": self.output}

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op("int8_product"), Op("int8_product", input=torch.uint8), Op("int8_product", full=False)]
OPS += [Op("rescale_product", dtype, torch.int32) for dtype in cases.FLOAT_DTYPES]
OPS += [Op("rescale_product", torch.float32, torch.int32, full=False)]


def multiplies(op: Op) -> bool:
    return op.multiplies


def rescales(op: Op) -> bool:
    return not op.multiplies


def any_op(op: Op) -> bool:
    return True


# --- the cases -----------------------------------------------------------------------------------


def wrong_dtypes() -> Iterator[Bad]:
    def bad(name: str, dtype: torch.dtype, words: str, when: Callable[[Op], bool] = any_op) -> Bad:
        change = to_dtype(name, dtype)
        return Bad(name, cases.name_of(dtype), change, TypeError, words + got(dtype), when)

    other = (torch.int16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
    other += cases.FLOAT_DTYPES
    for dtype in (*other, torch.int32):
        yield bad("input", dtype, "int8 or .*uint8.* ", multiplies)
        yield bad("weight", dtype, "int8.* ")
    yield bad("weight", torch.uint8, "int8.* ")
    for dtype in (*other, torch.int8, torch.uint8):
        yield bad("input", dtype, "int32.* ", rescales)
        yield bad("weight_sum", dtype, "int32.* ")
        for name in ("input_scale", "weight_scale"):
            is_wrong = lambda op, dtype=dtype: dtype != op.compute  # noqa: E731
            yield bad(name, dtype, "float(32|64).* ", is_wrong)
        neither = lambda op, dtype=dtype: dtype not in (op.compute, op.output)  # noqa: E731
        yield bad("bias", dtype, "float.* ", neither)
    for dtype in (*cases.FLOAT_DTYPES, torch.complex64, torch.bool):
        yield bad("input_zero_point", dtype, "integer.* ")
    for dtype in (torch.int8, torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        yield Bad("dtype", cases.name_of(dtype), constant(dtype), TypeError, got(dtype))


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", "weight", *VECTORS, *OF_ROWS):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        if name != "input":
            yield Bad(name, DEVICE, elsewhere(name), ValueError, "device.* got (cpu|meta)")
    for name in ("input", "weight"):
        yield Bad(name, "sparse_csr", sparse_csr(name), TypeError, "got .*[Ss]parse")
    for label, change in {
        "transposed": lambda a: a["weight"].t().contiguous().t(),
        "stepped": lambda a: a["weight"].new_ones(2 * N, K)[::2],
        "expanded": lambda a: a["weight"].new_ones(1, K).expand(N, K),
    }.items():
        yield Bad("weight", label, change, ValueError, r"contiguous\(\)")


def wrong_shapes() -> Iterator[Bad]:
    def bad(name: str, shape: tuple[int, ...], when: Callable[[Op], bool] = any_op) -> Bad:
        words = rf"expected.* got .*{re.escape(str(list(shape)))}"
        return Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, when)

    for shape in ((*LEAD, K - 1), (*LEAD, K + 1), (K, 4, 6), (*LEAD, 1), (*LEAD, 0), (K, 1)):
        yield bad("input", shape, multiplies)
    words = "to have at least 1 dimension, but got 0"
    yield Bad("input", "()", of_shape("input", ()), ValueError, words)
    for shape in ((N,), (K,), (N, K, 1), (1, N, K), ()):
        yield bad("weight", shape)
    for name in VECTORS:
        for shape in ((N - 1,), (N + 1,), (), (1,), (N, 1), (1, N), (0,)):
            yield bad(name, shape)
    for name in OF_ROWS:
        for shape in ((5,), (24,), (1, 1), (4, 1), (4, 6, 8), (4, 6, 1, 1), (0,), (6, 4)):
            yield bad(name, shape)
    assert math.prod(LEAD) == 24


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
