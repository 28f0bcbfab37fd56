# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the affine family, often wrong: see `random_calls.py`."""

import math
from random import Random
from typing import Any

import torch

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import ALL_CALLS
from tests.support.calls.affine import Call as AffineCall
from tests.support.cases import Granularity
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.int8_mm import POINT_DTYPES
from tests.support.oracle import affine as oracle

OPTIONS = {
    ("quant_min", "quant_max"): ((-128, 127), (-8, 7), (0, 127), (-1, 300)),
    ("dtype",): [(dtype,) for dtype in (*cases.QUANTIZED_DTYPES, torch.int8)],
}


def of_integers(rng: Random, call: calls.Call) -> None:
    """What is to be dequantized is of any dtype; so is a zero point."""
    a = call.arguments
    if call.verb == "dequantize" and calls.one_in(rng, 2):
        dtype = rng.choice((*cases.INTEGER_DTYPES, *calls.DTYPES))
        a["input"] = calls.tensor(tuple(a["input"].shape), dtype, 7)
    point = rng.choice((*POINT_DTYPES, None))
    if "zero_point" in a and not is_number(call) and calls.one_in(rng, 2):
        a["zero_point"] = None if point is None else a["zero_point"].to(point)


def is_number(call: calls.Call) -> bool:
    return isinstance(call.arguments["scale"], float)


# --- what the contract says of a call ------------------------------------------------------------


def wrong_granularity(granularity: Granularity, shape: tuple[int, ...]) -> set[type[Exception]]:
    found: set[type[Exception]] = set()
    if granularity.kind == "per_tensor":
        return found
    axis = -1 if granularity.kind == "per_token" else granularity.axis
    if not -len(shape) <= axis < len(shape):
        found.add(IndexError)
    if granularity.kind == "per_group" and granularity.group_size <= 0:
        found.add(ValueError)
    return found


def right_shapes(granularity: Granularity, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if granularity.kind == "per_tensor":
        return [(), (1,)]
    if granularity.kind == "per_token":
        return [shape[:-1], (*shape[:-1], 1)]
    return [granularity.param_shape(shape)]


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, verb = call.all, call.verb
    found: set[type[Exception]] = set()
    like = a["input"] if "input" in a else a["grad"]
    shape, dtype = tuple(like.shape), like.dtype
    floating = cases.FLOAT_DTYPES
    if dtype not in floating + (cases.INTEGER_DTYPES if verb == "dequantize" else ()):
        found.add(TypeError)
    if "grad" in a:
        of_input = verb.startswith("fake_quantize")  # that of the others has a dtype of its own
        if a["grad"].dtype not in ((dtype,) if of_input else floating):
            found.add(TypeError)
        if a["grad"].shape != like.shape:
            found.add(ValueError)
    found |= wrong_granularity(call.granularity, shape)
    if is_number(call):
        found |= wrong_numbers(call, dtype)
    else:
        compute = cases.SCALE_DTYPES
        if not verb.startswith("dequantize"):
            compute = (cases.compute_dtype(dtype),)
        if a["scale"].dtype not in compute:
            found.add(TypeError)
        point = a.get("zero_point")
        allowed = (*POINT_DTYPES, torch.uint32) + (
            floating if verb.startswith("fake_quantize") else ()
        )
        if point is not None and point.dtype not in allowed:
            found.add(TypeError)
        if not wrong_granularity(call.granularity, shape):
            right = right_shapes(call.granularity, shape)
            for param in (a["scale"], point):
                if param is not None and tuple(param.shape) not in right:
                    found.add(ValueError)
    return found | wrong_range(call, dtype)


def wrong_numbers(call: calls.Call, dtype: torch.dtype) -> set[type[Exception]]:
    """A scale that is no positive finite number in C; a zero point outside the range."""
    a = call.all
    compute = cases.compute_dtype(dtype)
    if call.verb == "dequantize":
        compute = torch.float64 if torch.float64 in (dtype, a.get("dtype")) else torch.float32
    scale = torch.tensor(a["scale"], dtype=compute).item()
    found: set[type[Exception]] = set()
    if not (math.isfinite(scale) and scale > 0):
        found.add(ValueError)
    if "quant_min" in a and not a["quant_min"] <= a.get("zero_point", 0) <= a["quant_max"]:
        found.add(ValueError)
    return found


def wrong_range(call: calls.Call, dtype: torch.dtype) -> set[type[Exception]]:
    a, found = call.all, set[type[Exception]]()
    output = a.get("dtype")
    rightful = cases.QUANTIZED_DTYPES if call.verb == "quantize" else cases.FLOAT_DTYPES
    if output is not None and output not in rightful:
        found.add(TypeError)
        output = None
    if "quant_min" in a:
        ends = a["quant_min"], a["quant_max"]
        holder = output or (dtype if dtype == torch.float64 else torch.float32)
        if ends[0] >= ends[1] or not cases.fits(ends, holder):
            found.add(ValueError)
    return found


def check_values(call: calls.Call, got: Any) -> None:
    """The oracle's bits."""
    a, verb = call.all, call.verb
    like = a["input"] if "input" in a else a["grad"]
    scale, point = a["scale"], a.get("zero_point")
    if is_number(call):
        compute = cases.compute_dtype(like.dtype)
        if verb == "dequantize" and a.get("dtype") == torch.float64:
            compute = torch.float64
        scale, point = torch.tensor(scale, dtype=compute), torch.tensor(point or 0)
    elif scale.numel() > 0 or like.numel() > 0:
        params = call.granularity.param_shape(tuple(like.shape))
        scale = scale.reshape(params)
        point = None if point is None else point.reshape(params)
    if verb == "dequantize":
        expected = oracle.dequantize(like, scale, point, call.granularity, a.get("dtype"))
    elif verb == "dequantize_backward":
        expected = oracle.dequantize_backward(like, scale, call.granularity, a.get("dtype"))
    else:
        ends = a["quant_min"], a["quant_max"]
        rule = oracle.Affine(like, scale, point, call.granularity, *ends)
        if verb.endswith("_qparams"):
            got, expected = got[0], rule.fake_quantize_backward(a["grad"])
        elif "grad" in a:
            expected = getattr(rule, verb)(a["grad"])
        else:
            expected = rule.quantize(a["dtype"]) if verb == "quantize" else rule.fake_quantize()
    assert_same_bits(got, expected)


CALLS = [call for call in ALL_CALLS if isinstance(call, AffineCall)]


def make(rng: Random) -> calls.Call:
    right = calls.right_call(rng, CALLS, calls.SHAPES)
    return calls.changed(rng, right, OPTIONS, also=of_integers)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1500)
