# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear with calls that are right, and the ways to get them wrong."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, Bad, PublicOp
from tests.support.cases import INT64_MIN

T, N, K, GROUP_SIZE = 6, 5, 10, 4
GROUPS, BYTES = 3, 5
NAME = "weight_only_linear"
PARAMETERS = ("weight_scale", "weight_zero_point")


@dataclass(frozen=True)
class Op(PublicOp):
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

    def __str__(self) -> str:
        suffix = "" if self.output == torch.float32 else f"-{cases.name_of(self.output)}"
        return self.name + "-packed" * self.packed + "-grouped" * self.grouped + suffix

    @property
    def given(self) -> dict[str, Any]:
        params, size = ((N, GROUPS), GROUP_SIZE) if self.grouped else ((N,), None)
        found = {"input": (T, K), "weight": (N, BYTES if self.packed else K), "bias": (N,)}
        return found | {"group_size": size} | dict.fromkeys(PARAMETERS, params)

    def dtype_of(self, name: str) -> torch.dtype:
        if name == "weight":
            return torch.uint8 if self.packed else torch.int8
        if name == "weight_scale":
            return cases.compute_dtype(self.output)
        return torch.int32 if name == "weight_zero_point" else self.output


OPS = [Op(), Op(grouped=False), Op(torch.float64, grouped=False), Op(torch.bfloat16)]
OPS += [Op(torch.float16, grouped=False), Op(packed=True), Op(torch.bfloat16, False, packed=True)]
grouped, of_channels = wrong.having(grouped=True), wrong.having(grouped=False)
of_bytes, of_int8 = wrong.having(packed=True), wrong.having(packed=False)


def bad_cases() -> wrong.Bads:
    never = (torch.int8, torch.uint8, *NEVER)
    yield from wrong.wrong_dtypes(("input", "weight_scale", "bias"), never)
    other = (torch.int32, torch.float32, *NEVER[:4])
    yield from wrong.wrong_dtypes(["weight"], other, "int8 .* or uint8 ")
    # The other of the two: another number of columns.
    to_bytes, to_int8 = (wrong.to_dtype("weight", d) for d in (torch.uint8, torch.int8))
    words = rf"weight to have shape \[N, {BYTES}\] for K = {K}.* got \[{N}, {K}\]"
    yield Bad("weight", "uint8", to_bytes, ValueError, words, of_int8)
    words = rf"input to have shape \[\.\.\., {BYTES}\].* got \[{T}, {K}\]"
    yield Bad("weight", "int8", to_int8, ValueError, words, of_bytes)
    other = (torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64)
    yield from wrong.wrong_dtypes(["weight_zero_point"], other, "integer")
    # Floating, but not of the dtype that belongs to the input's.
    for output in cases.FLOAT_DTYPES:
        of_output = wrong.having(output=output)
        for name, right in (("bias", output), ("weight_scale", cases.compute_dtype(output))):
            other = tuple(dtype for dtype in cases.FLOAT_DTYPES if dtype != right)
            yield from wrong.wrong_dtypes([name], other, cases.name_of(right), of_output)
    shapes: wrong.Shapes = ((), (N,), (1, N, K), (N, K, 1))
    words = r"to have 2 dimensions \[N, (K|ceil\(K / 2\))\]"
    yield from wrong.wrong_shapes(["weight"], shapes, words)
    shapes = ((N, BYTES - 1), (N, BYTES + 1), (BYTES, N + 1), (N, 0))
    words = rf"to have shape \[N, {BYTES}\] for K = {K} \(input.size\(-1\)\)"
    yield from wrong.wrong_shapes(["weight"], shapes, words, of_bytes)
    words = "to have at least 1 dimension.* got"
    yield Bad("input", "()", wrong.of_shape("input", ()), ValueError, words)
    shapes = ((T, K + 1), (K, T), (T, 1), (1,), (T, 0), (T, K, 1))
    words = rf"to have shape \[\.\.\., {K}\] \(weight\.size\(1\) last\)"
    yield from wrong.wrong_shapes(["input"], shapes, words, of_int8)
    for shape in shapes:
        words = rf"weight to have shape \[N, {(shape[-1] + 1) // 2}\] for K = {shape[-1]} .* got "
        change = wrong.of_shape("input", shape)
        yield Bad("input", f"{shape}", change, ValueError, words, of_bytes)
    of_groups = ((N,), (N, GROUPS - 1), (N, GROUPS + 1), (N + 1, GROUPS), (GROUPS, N), ())
    of_groups += ((N, GROUPS, 1), (1, GROUPS), (N, 1))
    of_rows = ((), (1,), (N - 1,), (K,), (N, 1), (1, N))
    for names, found, right, when in (
        (PARAMETERS, of_groups, rf"\[{N}, {GROUPS}\]", grouped),
        (PARAMETERS, (*of_rows, (N, GROUPS)), rf"\[{N}\]", of_channels),
        (["bias"], of_rows, rf"\[{N}\]", wrong.always),
    ):
        yield from wrong.wrong_shapes(names, found, f"to have shape {right}", when)
    yield from wrong.wrong_strides("weight", "to be contiguous")
    sizes = (0, -1, -(2**31), INT64_MIN)
    yield from wrong.wrong_values("group_size", sizes, "to be greater than 0, but ")


PAIRS = wrong.pairs(OPS, bad_cases())
