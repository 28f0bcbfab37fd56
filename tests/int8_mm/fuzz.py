# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the integer matrix family, often wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.affine.fuzz import NUMBERS
from tests.support import cases
from tests.support.bad_arguments.int8_mm import INTEGER_INPUT, OF_ALL, OF_ROWS, STATIC
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import OPS
from tests.support.family_cases.int8_mm import (
    DEEPEST,
    DEEPEST_SHIFTED,
    INPUT_RANGE,
    OTHER_RANGES,
    POINT_DTYPES,
    SYMMETRIC_RANGES,
    WEIGHT_RANGE,
    integers,
)
from tests.support.family_cases.random_calls import Call, choose, run, tensor
from tests.support.oracle import int8_mm as int8_oracle

LEADS = ((), (0,), (1,), (7,), (2, 3), (1, 1), (3, 1, 2))
SIZES = (0, 1, 2, 3, 5, 17, 33)
DEPTHS = (*SIZES, 64, 100)
SHAPES = ((), (0,), (1,), (3,), (7,), (2, 3), (3, 2), (1, 1), (5, 1), (2, 3, 1), (2, 3, 4))
DTYPES = (*cases.QUANTIZED_DTYPES, torch.int16, torch.int32, torch.int64, torch.complex64)
ENDS = (-(2**31), -129, -128, -100, -8, -7, -2, -1, 0, 1, 2, 6, 7, 8, 100, 127, 128, 2**31)
ENDS += (cases.INT64_MIN, cases.INT64_MAX)
POINTS = (0, 3, -7, 127, -128, 255, 256, -129, 2**31, cases.INT64_MAX, cases.INT64_MIN)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Whole-range integers where they are eight bits, else anything."""
    if dtype in cases.INTEGER_DTYPES:
        return integers(shape, dtype, "random", seed)
    return tensor(shape, dtype, seed)


@st.composite
def ends(
    draw: st.DrawFn, names: tuple[str, str], right: tuple[tuple[int, int], ...]
) -> dict[str, int]:
    """Both ends of a range, or none of them."""
    if not draw(st.booleans()):
        return {}
    values = draw(st.sampled_from(right))
    return {n: choose(draw, v, ENDS) for n, v in zip(names, values, strict=True)}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Most arguments are right, and each is wrong now and then."""
    name, seed = draw(st.sampled_from(OPS)), draw(st.integers(0, 99))
    lead, n = draw(st.sampled_from(LEADS)), draw(st.sampled_from(SIZES))
    k = choose(draw, draw(st.sampled_from(DEPTHS)), (DEEPEST, DEEPEST + 1, DEEPEST_SHIFTED + 1))
    output = draw(st.sampled_from(cases.FLOAT_DTYPES))
    compute = cases.compute_dtype(output)
    right = output if name not in INTEGER_INPUT else draw(st.sampled_from(cases.INTEGER_DTYPES))
    x = values(choose(draw, (*lead, k), SHAPES), choose(draw, right, DTYPES), seed)
    if x.dtype.is_floating_point and draw(st.booleans()):
        x = x.nan_to_num(1, 2, -3)  # or few rows would have a finite scale
    arguments: dict[str, Any] = {"input": x}
    right = output if name == "qat_linear" else torch.int8
    weight = values(choose(draw, (n, k), SHAPES), choose(draw, right, DTYPES), seed + 1)
    if choose(draw, False, (True,)) and weight.dim() == 2:
        weight = weight.t().contiguous().t()
    arguments["weight"] = weight

    def vector(key: str, right: torch.dtype, always: bool = False) -> None:
        if always or draw(st.booleans()):
            shape, dtype = choose(draw, (n,), SHAPES), choose(draw, right, DTYPES)
            arguments[key] = values(shape, dtype, seed + len(arguments))

    vector("bias", draw(st.sampled_from((output, compute))))
    if name in ("quantized_linear", "qat_linear"):
        arguments["symmetric"] = draw(st.booleans())
    if name not in INTEGER_INPUT:
        symmetric = arguments.get("symmetric", False)
        right_ends = SYMMETRIC_RANGES + (() if symmetric else OTHER_RANGES)
        arguments |= draw(ends(INPUT_RANGE, right_ends))
    if name == "qat_linear":
        arguments |= draw(ends(WEIGHT_RANGE, SYMMETRIC_RANGES))
        return Call(name, arguments)
    vector("weight_scale", compute, always=True)
    vector("weight_sum", torch.int32)
    if name in INTEGER_INPUT or draw(st.booleans()):
        arguments["dtype"] = choose(draw, output, DTYPES)
    if name == "quantized_linear":
        return Call(name, arguments)
    scale, point = OF_ALL if name in STATIC else OF_ROWS
    if name == "static_quantized_linear" and draw(st.booleans()):
        made = tensor(choose(draw, (k,), SHAPES), choose(draw, compute, DTYPES), seed + 9)
        arguments["smooth_scale"] = made
    if name == "smoothquant_linear" and draw(st.booleans()):
        arguments[scale] = choose(draw, 0.1, NUMBERS)
        arguments[point] = draw(st.sampled_from((None, choose(draw, 3, POINTS))))
        return Call(name, arguments)
    all_shapes = ((), (1,), lead, (*lead, 1))
    shapes = all_shapes[:2] if name in STATIC else all_shapes
    shape = choose(draw, draw(st.sampled_from(shapes)), SHAPES)
    arguments[scale] = tensor(shape, choose(draw, compute, DTYPES), seed + 7)
    if draw(st.booleans()):
        dtype = choose(draw, draw(st.sampled_from(POINT_DTYPES)), (torch.float32, torch.complex64))
        shapes = all_shapes[:2] if name == "static_quantized_linear" else all_shapes
        shape = choose(draw, draw(st.sampled_from(shapes)), SHAPES)
        arguments[point] = tensor(shape, dtype, seed + 8)
    return Call(name, arguments)


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, found = call.arguments, set[type[Exception]]()
    x, weight = a["input"], a["weight"]
    rightful = cases.INTEGER_DTYPES if call.name in INTEGER_INPUT else cases.FLOAT_DTYPES
    output = a.get("dtype", x.dtype)
    if x.dtype not in rightful or output not in cases.FLOAT_DTYPES:
        found.add(TypeError)
    if weight.dtype != (x.dtype if call.name == "qat_linear" else torch.int8):
        found.add(TypeError)
    found |= wrong_sizes(call)
    compute = cases.compute_dtype(output)
    if call.name not in INTEGER_INPUT and compute != cases.compute_dtype(x.dtype):
        found.add(TypeError)
    allowed = {
        "weight_scale": (compute,),
        "input_scale": (compute,),
        "act_scale": (compute,),
        "smooth_scale": (compute,),
        "bias": (compute, output),
        "weight_sum": (torch.int32,),
        "input_zero_point": POINT_DTYPES,
        "act_zero_point": POINT_DTYPES,
    }
    for key, dtypes in allowed.items():
        if isinstance(a.get(key), Tensor) and a[key].dtype not in dtypes:
            found.add(TypeError)
    return found | wrong_numbers(call, compute)


def wrong_sizes(call: Call) -> set[type[Exception]]:
    a = call.arguments
    x, weight = a["input"], a["weight"]
    if x.dim() == 0:
        return {ValueError, IndexError}
    if weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        return {ValueError}
    points = [k for k in ("input_zero_point", "act_zero_point") if a.get(k) is not None]
    shifted = bool(points) or x.dtype == torch.uint8 or not a.get("symmetric", True)
    right = weight.shape[1] <= (DEEPEST_SHIFTED if shifted else DEEPEST)
    right &= weight.is_contiguous() or call.name == "qat_linear"
    for key in ("weight_scale", "bias", "weight_sum"):
        right &= key not in a or tuple(a[key].shape) == (weight.shape[0],)
    if "smooth_scale" in a:
        right &= tuple(a["smooth_scale"].shape) == (weight.shape[1],)
    lead = tuple(x.shape[:-1])
    of_rows = ((), (1,), lead, (*lead, 1))
    if call.name == "static_quantized_linear":
        of_rows = ((), (1,))
    for key in ("input_scale", *points):
        if isinstance(a.get(key), Tensor):
            right &= tuple(a[key].shape) in of_rows
    if isinstance(a.get("act_scale"), Tensor):
        right &= tuple(a["act_scale"].shape) in ((), (1,))
    return set() if right else {ValueError}


def wrong_numbers(call: Call, compute: torch.dtype) -> set[type[Exception]]:
    """A scale that is no positive finite number in C; a zero point outside the input's range; a
    range that int8 does not hold, or whose middle is not 0 where it has to be.
    """
    a = call.arguments
    for names, symmetric in ((INPUT_RANGE, a.get("symmetric")), (WEIGHT_RANGE, True)):
        low, high = (a.get(n, default) for n, default in zip(names, (-128, 127), strict=True))
        right = -128 <= low < high <= 127
        if symmetric:
            right &= high >= 1 and low in (-high, -high - 1)
        if not right:
            return {ValueError}
    if not isinstance(a.get("act_scale"), float):
        return set()
    scale = torch.tensor(a["act_scale"], dtype=compute).item()
    right = math.isfinite(scale) and scale > 0
    if a["act_zero_point"] is not None and a["input"].dtype in cases.INTEGER_DTYPES:
        ends = torch.iinfo(a["input"].dtype)
        right &= ends.min <= a["act_zero_point"] <= ends.max
    return set() if right else {ValueError}


def check_values(call: Call, got: Tensor) -> None:
    assert_same_bits(got, getattr(int8_oracle, call.name)(**call.arguments), str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 1000)
