# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear with calls that are right, and the ways to get them wrong."""

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
    sparse_csr,
    to_dtype,
)
from tests.support.cases import INT64_MIN

T, N, K, GROUP_SIZE = 6, 5, 10, 4
GROUPS, BYTES = 3, 5
NAME = "weight_only_linear"


@dataclass(frozen=True)
class Op:
    """One right call.

    Attributes:
        output: The dtype of the input and of the result.
        grouped: With a scale for each group.
        packed: With two numbers of four bits in a byte.
    """

    output: torch.dtype = torch.float32
    grouped: bool = True
    packed: bool = False

    name = NAME
    number = False

    def __str__(self) -> str:
        suffix = "" if self.output == torch.float32 else f"-{cases.name_of(self.output)}"
        return self.name + "-packed" * self.packed + "-grouped" * self.grouped + suffix

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""

        def ones(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        params = (N, GROUPS) if self.grouped else (N,)
        found: dict[str, Any] = {
            "input": ones(T, K, dtype=self.output),
            "weight": ones(N, BYTES, dtype=torch.uint8)
            if self.packed
            else ones(N, K, dtype=torch.int8),
            "weight_scale": ones(*params, dtype=cases.compute_dtype(self.output)),
            "bias": ones(N, dtype=self.output),
            "weight_zero_point": ones(*params, dtype=torch.int32),
        }
        return found | ({"group_size": GROUP_SIZE} if self.grouped else {})

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(), Op(grouped=False), Op(torch.float64, grouped=False), Op(torch.bfloat16)]
OPS += [Op(torch.float16, grouped=False), Op(packed=True), Op(torch.bfloat16, False, packed=True)]
TENSORS = ("input", "weight", "weight_scale", "weight_zero_point", "bias")


# --- the cases -----------------------------------------------------------------------------------


def grouped(op: Op) -> bool:
    return op.grouped


def of_channels(op: Op) -> bool:
    return not op.grouped


def of_bytes(op: Op) -> bool:
    return op.packed


def of_int8(op: Op) -> bool:
    return not op.packed


def of_output(dtype: torch.dtype) -> Callable[[Op], bool]:
    return lambda op: op.output == dtype


def wrong_dtypes() -> Iterator[Bad]:
    whole = (torch.int16, torch.int64, torch.bool, torch.complex64)
    for dtype in (torch.int8, torch.uint8, *whole, torch.float8_e4m3fn):
        for name in ("input", "weight_scale", "bias"):
            change = to_dtype(name, dtype)
            yield Bad(name, cases.name_of(dtype), change, TypeError, got(dtype))
    for dtype in (torch.int32, torch.float32, *whole):
        words = "int8 .* or uint8 .* " + got(dtype)
        yield Bad("weight", cases.name_of(dtype), to_dtype("weight", dtype), TypeError, words)
    # The other of the two: another number of columns.
    to_bytes, to_int8 = (to_dtype("weight", dtype) for dtype in (torch.uint8, torch.int8))
    words = rf"weight to have shape \[N, {BYTES}\] for K = {K}.* got \[{N}, {K}\]"
    yield Bad("weight", "uint8", to_bytes, ValueError, words, of_int8)
    words = rf"input to have shape \[\.\.\., {BYTES}\].* got \[{T}, {K}\]"
    yield Bad("weight", "int8", to_int8, ValueError, words, of_bytes)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64):
        change = to_dtype("weight_zero_point", dtype)
        words = "integer.* " + got(dtype)
        yield Bad("weight_zero_point", cases.name_of(dtype), change, TypeError, words)
    # Floating, but not of the dtype that belongs to the input's.
    for dtype in cases.FLOAT_DTYPES:
        for output in cases.FLOAT_DTYPES:
            compute = cases.compute_dtype(output)
            for name, right in (("bias", output), ("weight_scale", compute)):
                label = f"{cases.name_of(dtype)}_of_{cases.name_of(output)}"
                words, when = f"{cases.name_of(right)}.* {got(dtype)}", of_output(output)
                if dtype != right:
                    yield Bad(name, label, to_dtype(name, dtype), TypeError, words, when)


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in TENSORS:
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        yield Bad(name, "sparse_csr", sparse_csr(name), TypeError, "got .*[Ss]parse")
        if name != "input":
            words = "to be on (cpu|meta|cuda).* got (cpu|meta)"
            yield Bad(name, DEVICE, elsewhere(name), ValueError, words)
    for label, change in {
        "transposed": lambda a: a["weight"].t().contiguous().t(),
        "stepped": lambda a: a["weight"].repeat_interleave(2, 1)[:, ::2],
        "expanded": lambda a: a["weight"][:1].expand(N, -1),
    }.items():
        yield Bad("weight", label, change, ValueError, "to be contiguous")


def wrong_shapes() -> Iterator[Bad]:
    for shape in ((), (N,), (1, N, K), (N, K, 1)):
        words = r"to have 2 dimensions \[N, (K|ceil\(K / 2\))\].* got .*" + re.escape(
            str(list(shape))
        )
        yield Bad("weight", f"{shape}", of_shape("weight", shape), ValueError, words)
    for shape in ((N, BYTES - 1), (N, BYTES + 1), (BYTES, N + 1), (N, 0)):
        words = rf"to have shape \[N, {BYTES}\] for K = {K} \(input.size\(-1\)\).* got "
        words += re.escape(str(list(shape)))
        yield Bad("weight", f"{shape}", of_shape("weight", shape), ValueError, words, of_bytes)
    yield Bad(
        "input", "()", of_shape("input", ()), ValueError, "to have at least 1 dimension.* got"
    )
    for shape in ((T, K + 1), (K, T), (T, 1), (1,), (T, 0), (T, K, 1)):
        words = rf"to have shape \[\.\.\., {K}\] \(weight\.size\(1\) last\).* got "
        words += re.escape(str(list(shape)))
        yield Bad("input", f"{shape}", of_shape("input", shape), ValueError, words, of_int8)
        words = rf"weight to have shape \[N, {(shape[-1] + 1) // 2}\] for K = {shape[-1]} .* got "
        yield Bad("input", f"{shape}", of_shape("input", shape), ValueError, words, of_bytes)
    of_groups = ((N,), (N, GROUPS - 1), (N, GROUPS + 1), (N + 1, GROUPS), (GROUPS, N), ())
    of_groups += ((N, GROUPS, 1), (1, GROUPS), (N, 1))
    for name in ("weight_scale", "weight_zero_point"):
        for shapes, right, when in (
            (of_groups, rf"\[{N}, {GROUPS}\]", grouped),
            (((), (1,), (N - 1,), (K,), (N, 1), (1, N), (N, GROUPS)), rf"\[{N}\]", of_channels),
        ):
            for shape in shapes:
                words = rf"to have shape {right}.* got " + re.escape(str(list(shape)))
                yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, when)
    for shape in ((), (1,), (N - 1,), (K,), (1, N), (N, 1)):
        words = rf"to have shape \[{N}\].* got " + re.escape(str(list(shape)))
        yield Bad("bias", f"{shape}", of_shape("bias", shape), ValueError, words)


def wrong_numbers() -> Iterator[Bad]:
    for size in (0, -1, -(2**31), INT64_MIN):
        words = rf"to be greater than 0, but got {size}$"
        yield Bad("group_size", f"{size}", constant(size), ValueError, words)


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes(), *wrong_numbers()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
