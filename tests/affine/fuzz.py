# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the affine family, mostly wrong: see `random_calls.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import INT64_MAX, INT64_MIN, Granularity
from tests.support.family_cases.random_calls import move, run, tensor
from tests.support.oracle import affine as oracle

RANGED = ("quantize", "fake_quantize", "quantize_backward", "fake_quantize_backward")
RANGED += ("fake_quantize_backward_qparams",)
VERBS = (*RANGED, "dequantize", "dequantize_backward")
KINDS = ("per_tensor", "per_channel", "per_token", "per_group")
SHAPES = ((), (0,), (1,), (7,), (2, 3), (3, 0), (1, 1), (4, 1, 5), (2, 3, 4), (2, 1, 3, 2))
INPUT_DTYPES = (*cases.FLOAT_DTYPES, torch.int8, torch.uint8, torch.int32, torch.complex64)
SCALE_DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32)
POINT_DTYPES = (torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16)
BAD_POINT_DTYPES = (torch.float32, torch.float64, torch.complex64)
OUTPUTS = (*cases.QUANTIZED_DTYPES, torch.int32, torch.bool)
AXES = (0, -1, 1, -2, 2, 3, -4, 17, 2**31, INT64_MAX, INT64_MIN)
GROUP_SIZES = (1, 2, 3, 4, 100, 2**31, INT64_MAX - 1, INT64_MAX, 0, -1, -3, INT64_MIN)
EDGES = (-128, 127, 0, 255, -8, 7, 15, -1, 1, 128, 256, -129, 2**31, INT64_MAX, INT64_MIN)
NUMBERS = (0.1, 0.5, 3.0, 1e-3, 0.0, -1.0, math.nan, math.inf, -math.inf, 1e-60, 1e300)


@dataclass
class Call:
    """An op and its arguments, and which of them were meant to be right."""

    verb: str
    granularity: Granularity
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return self.granularity.op(self.verb).__name__

    @property
    def number(self) -> bool:
        return isinstance(self.arguments["scale"], float)

    def __call__(self, device: str = "cpu", namespace: object = None) -> Any:
        moved = {k: move(v, device) for k, v in self.arguments.items()}
        return self.granularity.op(self.verb, namespace)(**moved)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Each argument is right four times out of five."""

    def choose(right: Any, wrong: tuple) -> Any:
        return draw(st.sampled_from(wrong)) if draw(st.integers(0, 9)) > 8 else right

    verb, kind = draw(st.sampled_from(VERBS)), draw(st.sampled_from(KINDS))
    shape = draw(st.sampled_from(SHAPES))
    seed = draw(st.integers(0, 99))
    ndim = len(shape)
    axis = choose(draw(st.integers(-ndim, max(ndim - 1, -ndim))), AXES)
    group_size = choose(draw(st.sampled_from((1, 2, 3, 100))), GROUP_SIZES)
    granularity = Granularity(kind, axis, group_size)
    rightful = cases.FLOAT_DTYPES + (cases.INTEGER_DTYPES if verb == "dequantize" else ())
    dtype = choose(draw(st.sampled_from(rightful)), INPUT_DTYPES)
    arguments: dict[str, Any] = {}
    if "_backward" in verb:
        free = verb in ("quantize_backward", "dequantize_backward")
        grad_dtype = draw(st.sampled_from(cases.FLOAT_DTYPES)) if free else dtype
        grad_dtype = choose(grad_dtype, (torch.int8, torch.complex64))
        arguments["grad"] = tensor(choose(shape, SHAPES), grad_dtype, seed)
    if verb != "dequantize_backward":
        arguments["input"] = tensor(shape, dtype, seed + 1, 20)
    else:
        shape = tuple(arguments["grad"].shape)
    params = choose(right_shape(granularity, shape), (*SHAPES, (2,), (0, 1), (2, 3, 1), (2, 3, 2)))
    compute = cases.compute_dtype(dtype)
    if verb.startswith("dequantize"):
        compute = draw(st.sampled_from(cases.SCALE_DTYPES))
    number = kind == "per_tensor" and not verb.endswith(("_backward", "_qparams"))
    if number and draw(st.booleans()):
        arguments["scale"] = choose(0.1, NUMBERS)
        arguments["zero_point"] = choose(0, EDGES)
    else:
        scale_dtype = choose(compute, SCALE_DTYPES)
        arguments["scale"] = tensor(params, scale_dtype, seed + 2)
        if verb != "dequantize_backward":
            arguments["zero_point"] = None
            if draw(st.booleans()):
                point_dtype = choose(draw(st.sampled_from(POINT_DTYPES)), BAD_POINT_DTYPES)
                point_shape = choose(params, SHAPES)
                arguments["zero_point"] = tensor(point_shape, point_dtype, seed + 3)
    if kind == "per_group":
        arguments["group_size"] = group_size
    if kind in ("per_channel", "per_group"):
        arguments["axis"] = axis
    if verb in RANGED:
        low, high = draw(st.sampled_from(((-128, 127), (-8, 7), (0, 127))))
        arguments |= {"quant_min": choose(low, EDGES), "quant_max": choose(high, EDGES)}
    if verb == "quantize":
        arguments["dtype"] = choose(torch.int8, OUTPUTS)
    if verb.startswith("dequantize"):
        arguments["dtype"] = choose(None, OUTPUTS)
    return Call(verb, granularity, arguments)


def right_shape(granularity: Granularity, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The parameters' shape, or any where the granularity itself is wrong."""
    problem = wrong_granularity(granularity, shape)
    return (1,) if problem else granularity.param_shape(shape)


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


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, verb = call.arguments, call.verb
    found: set[type[Exception]] = set()
    like = a["input"] if "input" in a else a["grad"]
    shape, dtype = tuple(like.shape), like.dtype
    floating = cases.FLOAT_DTYPES
    if dtype not in floating + (cases.INTEGER_DTYPES if verb == "dequantize" else ()):
        found.add(TypeError)
    if "grad" in a:
        if a["grad"].dtype not in floating:
            found.add(TypeError)
        if a["grad"].shape != like.shape:
            found.add(ValueError)
    found |= wrong_granularity(call.granularity, shape)
    if call.number:
        found |= wrong_numbers(call, dtype)
    else:
        compute = cases.SCALE_DTYPES
        if not verb.startswith("dequantize"):
            compute = (cases.compute_dtype(dtype),)
        if a["scale"].dtype not in compute:
            found.add(TypeError)
        point = a.get("zero_point")
        allowed = POINT_DTYPES + (floating if verb.startswith("fake_quantize") else ())
        if point is not None and point.dtype not in allowed:
            found.add(TypeError)
        if not wrong_granularity(call.granularity, shape):
            right = right_shapes(call.granularity, shape)
            for param in (a["scale"], point):
                if param is not None and tuple(param.shape) not in right:
                    found.add(ValueError)
    return found | wrong_range(call, dtype)


def wrong_numbers(call: Call, dtype: torch.dtype) -> set[type[Exception]]:
    """A scale that is no positive finite number in C; a zero point outside the range."""
    a = call.arguments
    compute = cases.compute_dtype(dtype)
    if call.verb == "dequantize":
        compute = torch.float64 if torch.float64 in (dtype, a["dtype"]) else torch.float32
    scale = torch.tensor(a["scale"], dtype=compute).item()
    found: set[type[Exception]] = set()
    if not (math.isfinite(scale) and scale > 0):
        found.add(ValueError)
    if "quant_min" in a and not a["quant_min"] <= a["zero_point"] <= a["quant_max"]:
        found.add(ValueError)
    return found


def wrong_range(call: Call, dtype: torch.dtype) -> set[type[Exception]]:
    a, found = call.arguments, set[type[Exception]]()
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


def check_values(call: Call, got: Any) -> None:
    """The oracle's bits."""
    a, verb = call.arguments, call.verb
    like = a["input"] if "input" in a else a["grad"]
    scale, point = a["scale"], a.get("zero_point")
    if call.number:
        compute = cases.compute_dtype(like.dtype)
        if verb == "dequantize" and a["dtype"] == torch.float64:
            compute = torch.float64
        scale, point = torch.tensor(scale, dtype=compute), torch.tensor(point)
    elif scale.numel() > 0 or like.numel() > 0:
        params = call.granularity.param_shape(tuple(like.shape))
        scale = scale.reshape(params)
        point = None if point is None else point.reshape(params)
    if verb == "dequantize":
        expected = oracle.dequantize(like, scale, point, call.granularity, a["dtype"])
    elif verb == "dequantize_backward":
        expected = oracle.dequantize_backward(like, scale, call.granularity, a["dtype"])
    else:
        ends = a["quant_min"], a["quant_max"]
        rule = oracle.Affine(like, scale, point, call.granularity, *ends)
        if verb.endswith("_qparams"):
            got, expected = got[0], rule.fake_quantize_backward(a["grad"])
        elif "grad" in a:
            expected = getattr(rule, verb)(a["grad"])
        else:
            expected = rule.quantize(a["dtype"]) if verb == "quantize" else rule.fake_quantize()
    assert_same_bits(got, expected, str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 1500)
