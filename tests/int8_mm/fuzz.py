# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the integer matrix family, often wrong."""

import math
from random import Random

import torch
from torch import Tensor

from tests.support import cases
from tests.support.bad_arguments.int8_mm import INTEGER_INPUT
from tests.support.bits import assert_same_bits
from tests.support.calls.int8_mm import INT8_CALLS, QAT_CALLS, SERVED_CALLS
from tests.support.checks.int8_mm import OPS
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.int8_mm import INPUT_RANGE, POINT_DTYPES, WEIGHT_RANGE
from tests.support.oracle import int8_mm as int8_oracle

RANGES = (*[*int8_cases.SYMMETRIC_RANGES] * 4, *int8_cases.OTHER_RANGES)
RANGES += ((-8, 128), (7, 7), (-129, 6))
OPTIONS = {
    INPUT_RANGE: RANGES,
    WEIGHT_RANGE: RANGES[: 4 * len(int8_cases.SYMMETRIC_RANGES) + 1],
    ("symmetric",): ((True,), (False,)),
}
POINTS = (0, 3, -7, 127, -128, 255, 256, -129, 2**31, cases.INT64_MAX, cases.INT64_MIN)
BEYOND = (int8_cases.DEEPEST, int8_cases.DEEPEST + 1, int8_cases.DEEPEST_SHIFTED + 1)


def of_rows(rng: Random, call: calls.Call) -> None:
    """A scale and a zero point may be one for all, or have no last 1; a zero point any dtype."""
    a = call.arguments
    for name in ("input_scale", "input_zero_point", "act_zero_point"):
        if isinstance(a.get(name), Tensor) and a[name].numel() > 0:
            shapes = ((), (1,), a[name].shape, a[name].shape[:-1])
            of_one = a[name].reshape(-1)[0]
            wanted = rng.choice(shapes)
            a[name] = a[name].reshape(wanted) if math.prod(wanted) > 1 else of_one.expand(wanted)
            if "point" in name:
                a[name] = a[name].to(rng.choice(POINT_DTYPES))
    if isinstance(a.get("act_zero_point"), int):
        a["act_zero_point"] = rng.choice((None, *POINTS))
    if "bias" in a and calls.one_in(rng, 2):
        a["bias"] = a["bias"].to(a.get("dtype", a["input"].dtype))
    if "dtype" in call.all and a["weight_scale"].dtype == torch.float32:
        a["dtype"] = rng.choice((torch.float32, torch.float16, torch.bfloat16))


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, found = call.all, set[type[Exception]]()
    x, weight = a["input"], a["weight"]
    rightful = cases.INTEGER_DTYPES if call.name in INTEGER_INPUT else cases.FLOAT_DTYPES
    output = a.get("dtype", x.dtype)
    if x.dtype not in rightful or output not in cases.FLOAT_DTYPES:
        found.add(TypeError)
    if call.name == "qat_linear":  # whose weight may be wider than the input, or narrower
        of_input = cases.compute_dtype(x.dtype)
        weights = [dtype for dtype in rightful if cases.compute_dtype(dtype) == of_input]
    else:
        weights = [torch.int8]
    if weight.dtype not in weights:
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


def wrong_sizes(call: calls.Call) -> set[type[Exception]]:
    a = call.all
    x, weight = a["input"], a["weight"]
    if x.dim() == 0:
        return {ValueError, IndexError}
    if weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        return {ValueError}
    points = [k for k in ("input_zero_point", "act_zero_point") if a.get(k) is not None]
    shifted = bool(points) or x.dtype == torch.uint8 or not a.get("symmetric", True)
    right = weight.shape[1] <= (int8_cases.DEEPEST_SHIFTED if shifted else int8_cases.DEEPEST)
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


def wrong_numbers(call: calls.Call, compute: torch.dtype) -> set[type[Exception]]:
    """A scale that is no positive finite number in C; a zero point outside the input's range; a
    range that int8 does not hold, or whose middle is not 0 where it has to be.
    """
    a = call.all
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
    if "act_zero_point" in a and a["input"].dtype in cases.INTEGER_DTYPES:
        ends = torch.iinfo(a["input"].dtype)
        right &= ends.min <= a["act_zero_point"] <= ends.max
    return set() if right else {ValueError}


def check_values(call: calls.Call, got: Tensor) -> None:
    assert_same_bits(got, getattr(int8_oracle, call.name)(**call.arguments))


CALLS = [c for c in (*INT8_CALLS, *QAT_CALLS, *SERVED_CALLS) if c.verb in OPS and not c.given]
OF_INTEGERS = [call for call in CALLS if call.integer_input]


def make(rng: Random) -> calls.Call:
    if calls.one_in(rng, 13):
        right = calls.right_call(rng, OF_INTEGERS, [(2, k) for k in BEYOND])
    else:
        right = calls.right_call(rng, CALLS, (*calls.SHAPES_OF_ROWS, (3, 0), (70, 33)))
    return calls.changed(rng, right, OPTIONS, also=of_rows)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1000)
