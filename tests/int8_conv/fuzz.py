# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the convolution of integers, often wrong.

`python -m tests.int8_conv.fuzz [examples]`. As in `tests/affine/fuzz.py`, each call either breaks
rules of the contract, and then raises the exception of one of them, or breaks none, and then gives
the oracle's bits. The same on Meta, through `baraquant.ops`, and by the copy of patches that CUDA
makes. Run in a process of its own (`test_errors.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.affine.fuzz import run, tensor
from tests.int8_mm import fuzz as products
from tests.int8_mm.fuzz import DTYPES, Call, judged, outcome, values
from tests.support import cases
from tests.support.bad_arguments.int8_conv import ONES, VECTORS
from tests.support.bits import assert_same_bits
from tests.support.cases import INT32_MAX, INT64_MAX, INT64_MIN
from tests.support.family_cases.int8_conv import FORMATS
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED, Case
from tests.support.family_cases.int8_mm import POINT_DTYPES as SIGNED_AND_UINT8
from tests.support.oracle.int8_conv import for_each, int8_conv

BATCHES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (1,), (2,), (3,))
WIDTHS = {1: (0, 1, 2, 3, 7, 17, 40, 65), 2: (0, 1, 2, 3, 5, 8, 19), 3: (0, 1, 2, 3, 4, 6)}
KERNELS = (1, 1, 2, 3)
GROUPS = (1, 1, 1, 2, 3, 8, 33)
OF_GROUP = (0, 1, 1, 2, 3, 4, 5, 17)  # channels in and channels out
SHAPES = (*products.SHAPES, (1, 2, 3, 4), (4, 3, 2, 2), (1, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1))
POINT_DTYPES = (*SIGNED_AND_UINT8, torch.uint16, torch.uint32, torch.uint64)
BAD_POINT_DTYPES = (*cases.FLOAT_DTYPES, torch.bool, torch.complex64)
# The smallest number; the right ones; others that are wrong. Padding as large as the largest
# number would fill all memory.
STEPS = {
    "stride": (1, (1, 1, 2, 3, INT32_MAX)),
    "padding": (0, (0, 0, 1, 2, 5)),
    "dilation": (1, (1, 1, 1, 2, 3, INT32_MAX)),
}
BAD_STEPS = (0, -1, -3, 2**31, 2**62, INT64_MAX, INT64_MIN)
BAD_GROUPS = (0, -1, -2, 2, 3, 4, 7, 2**31, 2**40, 2**62, INT64_MAX, INT64_MIN)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    **cases.LAYOUTS,
    "channels_last": lambda t: t.contiguous(memory_format=FORMATS[t.dim()]),
}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Each argument is right about fourteen times out of fifteen."""

    def choose(right: Any, wrong: tuple) -> Any:
        return draw(st.sampled_from(wrong)) if draw(st.integers(0, 14)) > 13 else right

    space, seed = draw(st.integers(1, 3)), draw(st.integers(0, 99))
    batch, groups = draw(st.sampled_from(BATCHES)), draw(st.sampled_from(GROUPS))
    inputs, outputs = (draw(st.sampled_from(OF_GROUP)) for _ in range(2))
    if draw(st.integers(0, 3)) == 0:
        inputs = 1  # depthwise
    sizes = [draw(st.sampled_from(WIDTHS[space])) for _ in range(space)]
    kernel = [draw(st.sampled_from(KERNELS)) for _ in range(space)]
    deep = choose(0, (DEEPEST, DEEPEST_SHIFTED, DEEPEST + 1, DEEPEST_SHIFTED + 1))
    if deep:
        inputs, groups, sizes, kernel = deep, 1, [min(n, 2) for n in sizes], [1] * space
    outputs *= groups
    output = draw(st.sampled_from(cases.FLOAT_DTYPES))
    compute = cases.compute_dtype(output)

    def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Of any layout, often one that is read as it lies; often one size is wrong."""
        at = draw(st.integers(0, len(shape) - 1))
        other = (*shape[:at], max(shape[at] + draw(st.sampled_from((-1, 1))), 0), *shape[at + 1 :])
        made = values(choose(choose(shape, (other,)), SHAPES), choose(dtype, DTYPES), seed)
        layouts = ["contiguous"]
        if made.dim() > 1:
            layouts += ["channels_last"] * 5 * (made.dim() in FORMATS)
            layouts += [*LAYOUTS] * (draw(st.integers(0, 2)) == 0)
        return LAYOUTS[draw(st.sampled_from([n for n in layouts]))](made)

    right = draw(st.sampled_from(cases.INTEGER_DTYPES))
    x = tensors((*batch, inputs * groups, *sizes), right)
    weight = tensors((outputs, inputs, *kernel), torch.int8)
    arguments: dict[str, Any] = {"input": x, "weight": weight}

    def vector(key: str, shape: tuple[int, ...], right: torch.dtype, always: bool = False) -> None:
        if always or draw(st.booleans()):
            made = tensor(choose(shape, SHAPES), choose(right, DTYPES), seed + len(arguments))
            arguments[key] = made

    def one() -> tuple[int, ...]:
        return draw(st.sampled_from(((), (1,))))

    vector("input_scale", one(), compute, always=True)
    vector("weight_scale", (outputs,), compute, always=True)
    vector("bias", (outputs,), draw(st.sampled_from((output, compute))))
    vector("weight_sum", (outputs,), torch.int32)
    sums = arguments.get("weight_sum")
    if sums is not None and sums.dtype == torch.int32 and weight.dtype == torch.int8:
        if weight.dim() > 1 and sums.shape == weight.shape[:1]:
            arguments["weight_sum"] = weight.flatten(1).sum(1, dtype=torch.int32)
    if draw(st.booleans()):
        arguments["input_zero_point"] = draw(zero_points(x.dtype, one(), seed))
    for name, (_, right_steps) in STEPS.items():
        if draw(st.booleans()):
            arguments[name] = draw(steps(right_steps, space))
    if groups != 1 or draw(st.booleans()):
        arguments["groups"] = choose(groups, BAD_GROUPS)
    if output != compute or draw(st.booleans()):
        arguments["dtype"] = choose(output, (*DTYPES, torch.float8_e4m3fn, torch.bool))
    return Call("int8_conv", arguments)


@st.composite
def zero_points(
    draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...], seed: int
) -> Tensor:
    """A value that the input's dtype holds; wrong about once in eight."""
    wrong = draw(st.integers(0, 15))
    if wrong == 0:
        return tensor(shape, torch.float32, seed).to(draw(st.sampled_from(BAD_POINT_DTYPES)))
    of_input = dtype if dtype in cases.INTEGER_DTYPES else torch.int8
    point_dtype = draw(st.sampled_from(POINT_DTYPES))
    case = Case((), 0, 0, of_input, zero_point="one", point_dtype=point_dtype)
    return case.zero_points(seed).expand(draw(st.sampled_from(SHAPES)) if wrong == 1 else shape)


@st.composite
def steps(draw: st.DrawFn, right: tuple[int, ...], space: int) -> Any:
    """One number, or one for each dimension of space; wrong about once in fifteen."""
    wrong = draw(st.integers(0, 29))
    count = draw(st.sampled_from((0, space - 1, space + 1, 5))) if wrong == 0 else space
    count = 1 if draw(st.integers(0, 5)) == 0 else count
    numbers = [draw(st.sampled_from(right)) for _ in range(count)]
    if wrong == 1:
        numbers[draw(st.integers(0, count - 1))] = draw(st.sampled_from(BAD_STEPS))
    if count == 1 and draw(st.booleans()):
        return numbers[0]
    return tuple(numbers) if draw(st.booleans()) else numbers


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a = call.arguments
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
    options = {name: for_each(a.get(name, least), space) for name, (least, _) in STEPS.items()}
    for name, numbers in options.items():
        right &= len(numbers) == space
        right &= all(STEPS[name][0] <= number <= INT32_MAX for number in numbers)
    if not right:
        return False
    places = zip(x.shape[-space:], kernel, options["padding"], options["dilation"], strict=True)
    return all(k >= 1 and n + 2 * p >= (k - 1) * d + 1 for n, k, p, d in places)


def check_strides(x: Tensor, weight: Tensor, got: Tensor) -> None:
    """`channels_last` if the input is, else contiguous; either where it is both."""
    last = FORMATS.get(x.dim()) if x.dim() == weight.dim() else None
    found = [torch.contiguous_format]
    if last is not None and x.is_contiguous(memory_format=last):
        found = [last, *found] if x.is_contiguous() else [last]
    assert any(got.is_contiguous(memory_format=form) for form in found), (x.stride(), got.stride())


STATISTICS = {"right": 0, "wrong": 0}


@given(calls())
def check(call: Call) -> None:
    a, ops = call.arguments, torch.ops.baraquant
    got = judged(call, broken_rules(call), STATISTICS)
    if got is None:
        return
    assert got.dtype == a.get("dtype", a["weight_scale"].dtype)
    check_strides(a["input"], a["weight"], got)
    expected = int8_conv(**a)
    assert_same_bits(got, expected, str(call))
    ops._force_patches(True)
    try:
        patched, error = outcome(call, "cpu", ops)
    finally:
        ops._force_patches(False)
    assert error is None, f"right, but of patches {type(error).__name__}: {error}"
    assert patched.stride() == got.stride()
    assert_same_bits(patched, got, str(call))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(check, STATISTICS, int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
