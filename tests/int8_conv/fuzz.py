# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the convolution of integers, often wrong.

Right ones have the same bits by the copy of patches that CUDA makes.
"""

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.int8_conv.test_values import check_strides
from tests.support import cases
from tests.support.bad_arguments.int8_conv import ONES, VECTORS
from tests.support.bits import assert_same_bits
from tests.support.cases import INT32_MAX
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.int8_conv import Case, options
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED
from tests.support.family_cases.int8_mm import POINT_DTYPES as SOME_POINT_DTYPES
from tests.support.oracle.int8_conv import for_each, int8_conv

POINT_DTYPES = (*SOME_POINT_DTYPES, torch.uint16, torch.uint32, torch.uint64)
# The least number of each.
STEPS = {"stride": 1, "padding": 0, "dilation": 1}
DEEP = [
    Case(k, 2, 1, (2,), (1,), input=kind, dtype=torch.float32, shift=shift)
    for k in (DEEPEST, DEEPEST_SHIFTED, DEEPEST + 1, DEEPEST_SHIFTED + 1)
    for kind, shift in ((torch.int8, False), (torch.int8, True), (torch.uint8, False))
]
FEW = [(1,), (2,), ((3,),), ([1],), ((1, 2),), ((2, 1),), ([1, 3, 2],)]
OPTIONS = {
    ("stride",): [*FEW * 3, ([INT32_MAX],), (0,), ([1, 2**62],), ([],)],
    ("padding",): [*FEW * 3, (0,), ((5, 2),), (-1,), (2**31,), ([],)],
    ("dilation",): [*FEW * 3, (0,), ([1, INT32_MAX],), (INT32_MAX,)],
}
CASES = [*options(), *DEEP * 2]


def of_any_dtype(rng: Random, call: calls.Call) -> None:
    """A zero point of any integer dtype that holds it; another number of groups."""
    a = call.arguments
    if "input_zero_point" in a:
        dtype = rng.choice((torch.int64, torch.int32, torch.int16))
        a["input_zero_point"] = a["input_zero_point"].to(dtype)
    if calls.one_in(rng, 10):
        a["groups"] = rng.choice((0, -1, 2, 3, 7, 2**31, 2**62))


def consistent(call: calls.Call) -> None:
    """Sums that are given are those of the weight; so much padding would fill all memory."""
    a = call.arguments
    sums, weight = a.get("weight_sum"), a["weight"]
    is_right = sums is not None and (sums.dtype, weight.dtype) == (torch.int32, torch.int8)
    if is_right and weight.dim() > 1 and sums.shape == weight.shape[:1]:
        a["weight_sum"] = weight.flatten(1).sum(1, dtype=torch.int32)
    padding = a.get("padding", 0)
    if max(for_each(padding, 1), default=0) in range(6, 2**31):
        a["padding"] = 5


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a = call.all
    output = a.get("dtype", a["weight_scale"].dtype)
    compute = cases.compute_dtype(output)
    allowed = {
        "input": cases.INTEGER_DTYPES,
        "weight": (torch.int8,),
        "input_scale": (compute,),
        "weight_scale": (compute,),
        "bias": (compute, output),
        "weight_sum": (torch.int32,),
        "input_zero_point": POINT_DTYPES,
    }
    right = output in cases.FLOAT_DTYPES
    right &= all(a[key].dtype in dtypes for key, dtypes in allowed.items() if key in a)
    found: set[type[Exception]] = set() if right else {TypeError}
    return found if has_right_sizes(a) else found | {ValueError}


def has_right_sizes(a: dict[str, Any]) -> bool:
    x, weight = a["input"], a["weight"]
    space = weight.dim() - 2
    if space not in (1, 2, 3) or x.dim() - space not in (1, 2):
        return False
    outputs, inputs, *kernel = weight.shape
    groups = a.get("groups", 1)
    right = groups >= 1 and outputs % groups == 0 and x.shape[-space - 1] == inputs * groups
    right &= all(tuple(a[key].shape) == (outputs,) for key in VECTORS if key in a)
    right &= all(tuple(a[key].shape) in ((), (1,)) for key in ONES if key in a)
    shifted = "input_zero_point" in a or x.dtype == torch.uint8
    right &= inputs * math.prod(kernel) <= (DEEPEST_SHIFTED if shifted else DEEPEST)
    options = {name: for_each(a.get(name, least), space) for name, least in STEPS.items()}
    for name, numbers in options.items():
        right &= len(numbers) == space
        right &= all(STEPS[name] <= number <= INT32_MAX for number in numbers)
    if not right:
        return False
    places = zip(x.shape[-space:], kernel, options["padding"], options["dilation"], strict=True)
    return all(k >= 1 and n + 2 * p >= (k - 1) * d + 1 for n, k, p, d in places)


def check_values(call: calls.Call, got: Tensor) -> None:
    a, ops = call.arguments, torch.ops.baraquant
    assert got.dtype == a.get("dtype", a["weight_scale"].dtype)
    check_strides(a["input"], a["weight"], got)
    assert_same_bits(got, int8_conv(**a))
    ops._force_patches(True)
    try:
        patched, error = calls.outcome(call, "cpu", ops)
    finally:
        ops._force_patches(False)
    assert error is None, f"right, but of patches {type(error).__name__}: {error}"
    assert patched.stride() == got.stride()
    assert_same_bits(patched, got)


def make(rng: Random) -> calls.Call:
    right = calls.Call("int8_conv", rng.choice(CASES).arguments(rng.randrange(100)))
    return calls.changed(rng, right, OPTIONS, also=of_any_dtype, last=consistent)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1500)
