# SPDX-License-Identifier: BSD-3-Clause
"""Every op of four-bit weights with a call that is right, and the ways to get it wrong."""

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
from tests.support.calls.int4 import LINEARS
from tests.support.cases import INT64_MAX, INT64_MIN

T, N, K, GROUP_SIZE = 6, 5, 10, 4
GROUPS = 3
INTEGERS, DYNAMIC, STATIC = LINEARS
CHOOSE, QUANTIZE, EXPAND, PACK = (
    "choose_int4_qparams",
    "quantize_int4",
    "expand_int4",
    "pack_int4",
)


@dataclass(frozen=True)
class Op:
    """One op; `output`: the dtype of the result of a linear op, and of a floating input."""

    name: str
    output: torch.dtype = torch.float32

    number = False

    def __str__(self) -> str:
        suffix = "" if self.output == torch.float32 else f"-{cases.name_of(self.output)}"
        return self.name + suffix

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""

        def ones(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        compute = cases.compute_dtype(self.output)
        if self.name == PACK:
            return {"integers": ones(N, K, dtype=torch.int8)}
        found: dict[str, Any] = {"group_size": GROUP_SIZE}
        if self.name in (CHOOSE, QUANTIZE):
            found["weight"] = ones(N, K, dtype=self.output)
        if self.name == CHOOSE:
            return found
        found["group_factor"] = ones(N, GROUPS, dtype=torch.uint8)
        found["group_zero_point"] = ones(N, GROUPS, dtype=torch.uint8)
        if self.name == QUANTIZE:
            return found | {"scale": ones(N, dtype=compute)}
        found["packed"] = ones(N, K // 2, dtype=torch.uint8)
        if self.name == EXPAND:
            return found | {"in_features": K}
        found["input"] = ones(T, K, dtype=torch.int8 if self.name == INTEGERS else self.output)
        found["weight_scale"] = ones(N, dtype=compute)
        found["bias"] = ones(N, dtype=self.output)
        found["weight_sum"] = ones(N, dtype=torch.int32)
        found["dtype"] = self.output
        if self.name == INTEGERS:
            found["input_scale"] = ones(T, 1, dtype=compute)
            found["input_zero_point"] = ones(T, 1, dtype=torch.int32)
        else:
            found |= {"quant_min": -8, "quant_max": 7}
        if self.name == DYNAMIC:
            found["symmetric"] = False
        if self.name == STATIC:
            found["act_scale"] = ones(dtype=compute)
            found["act_zero_point"] = ones(dtype=torch.int32)
            found["smooth_scale"] = ones(K, dtype=compute)
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(name) for name in (CHOOSE, QUANTIZE, EXPAND, PACK, *LINEARS)]
OPS += [Op(QUANTIZE, torch.float64), Op(INTEGERS, torch.float16), Op(DYNAMIC, torch.bfloat16)]


# --- the cases -----------------------------------------------------------------------------------


def of(*names: str) -> Callable[[Op], bool]:
    return lambda op: op.name in names


def wrong_dtypes() -> Iterator[Bad]:
    for dtype in (torch.int16, torch.int64, torch.bool, torch.complex64):
        for name in ("weight", "input", "weight_scale", "scale", "bias", "input_scale"):
            change = to_dtype(name, dtype)
            yield Bad(name, cases.name_of(dtype), change, TypeError, got(dtype))
    for dtype in (torch.int8, torch.int32, torch.float32, torch.bool):
        for name in ("packed", "group_factor", "group_zero_point"):
            words = "uint8.* " + got(dtype)
            yield Bad(name, cases.name_of(dtype), to_dtype(name, dtype), TypeError, words)
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32):
        words = "int8.* " + got(dtype)
        change = to_dtype("integers", dtype)
        yield Bad("integers", cases.name_of(dtype), change, TypeError, words)
    for dtype in (torch.int64, torch.uint8):
        words = "int32.* " + got(dtype)
        yield Bad(
            "weight_sum", cases.name_of(dtype), to_dtype("weight_sum", dtype), TypeError, words
        )
    yield Bad("dtype", "int8", constant(torch.int8), TypeError, got(torch.int8))


def wrong_layouts_and_devices() -> Iterator[Bad]:
    tensors = ("weight", "input", "integers", "packed", "scale", "weight_scale", "group_factor")
    tensors += ("group_zero_point", "bias", "weight_sum", "input_scale", "act_scale")
    first = {"weight": of(QUANTIZE, CHOOSE), "packed": of(EXPAND)}
    for name in tensors:
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        if name in ("input", "integers", "weight"):
            continue
        others = of(*LINEARS) if name in first else of(QUANTIZE, EXPAND, *LINEARS)
        yield Bad(name, DEVICE, elsewhere(name), ValueError, "got (cpu|meta)", others)
    change: Any = lambda a: a["packed"].t().contiguous().t()  # noqa: E731
    yield Bad("packed", "transposed", change, ValueError, r"call \.contiguous\(\)", of(*LINEARS))


def wrong_shapes() -> Iterator[Bad]:
    for shape in ((), (N,), (1, N, K), (N, K, 1)):
        for name, ops in (("weight", of(CHOOSE, QUANTIZE)), ("integers", of(PACK))):
            words = r"2 dimensions \[N, K\].* got .*" + re.escape(str(list(shape)))
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, ops)
    for shape in ((N,), (), (N, K), (N, K // 2 + 1), (N, 0), (1, N, K // 2)):
        words = r"(2 dimensions|to have shape \[N, 5\]).* got .*" + re.escape(str(list(shape)))
        yield Bad("packed", f"{shape}", of_shape("packed", shape), ValueError, words)
    for name in ("group_factor", "group_zero_point"):
        for shape in ((N,), (N, GROUPS - 1), (N + 1, GROUPS), (GROUPS, N), (N, GROUPS, 1), ()):
            words = r"to have shape \[5, 3\].* got " + re.escape(str(list(shape)))
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)
    for name in ("scale", "weight_scale", "bias", "weight_sum"):
        for shape in ((), (N - 1,), (1, N)):
            words = r"to have shape \[5\].* got " + re.escape(str(list(shape)))
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)


def wrong_numbers() -> Iterator[Bad]:
    for size in (0, -2, 3, 31, 2**31, 2**40, INT64_MIN, INT64_MAX):
        words = rf"even .*but got {size}$"
        yield Bad("group_size", f"{size}", constant(size), ValueError, words)
    for size in (-1, -10, INT64_MIN):
        words = rf"at least 0, but got {size}$"
        yield Bad("in_features", f"{size}", constant(size), ValueError, words)


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes(), *wrong_numbers()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
