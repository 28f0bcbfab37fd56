# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the convolution of integers, often wrong.

Right ones have the same bits by the copy of patches that CUDA makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.int8_mm import fuzz as products
from tests.int8_mm.fuzz import DTYPES, values
from tests.support import cases
from tests.support.bad_arguments.int8_conv import ONES, VECTORS
from tests.support.bits import assert_same_bits
from tests.support.cases import INT32_MAX, INT64_MAX, INT64_MIN
from tests.support.family_cases.int8_conv import FORMATS
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED, Case
from tests.support.family_cases.int8_mm import POINT_DTYPES as SOME_POINT_DTYPES
from tests.support.family_cases.random_calls import Call, choose, outcome, run, tensor
from tests.support.oracle.int8_conv import for_each, int8_conv

BATCHES: tuple[tuple[int, ...], ...] = ((), (), (0,), (1,), (1,), (2,), (3,))
WIDTHS = {1: (3, 7, 17, 40, 65), 2: (2, 3, 5, 8, 19), 3: (2, 3, 4, 6)}
GROUPS = (1, 1, 1, 2, 3, 8, 33)
DEPTHS = (DEEPEST, DEEPEST_SHIFTED, DEEPEST + 1, DEEPEST_SHIFTED + 1)
OF_GROUP = (0, 1, 1, 2, 3, 4, 5, 17)  # channels in and channels out
SHAPES = (*products.SHAPES, (1, 2, 3, 4), (4, 3, 2, 2), (1, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1))
POINT_DTYPES = (*SOME_POINT_DTYPES, torch.uint16, torch.uint32, torch.uint64)
BAD_POINT_DTYPES = (*cases.FLOAT_DTYPES, torch.bool, torch.complex64)
# The least number, and ordinary ones.
STEPS = {
    "stride": (1, (1, 1, 1, 2, 2, 3, INT32_MAX)),
    "padding": (0, (0, 1, 2, 5)),
    "dilation": (1, (1, 1, 1, 2, 3)),
}
BAD_STEPS = (0, -1, -3, 2**31, 2**62, INT64_MAX, INT64_MIN)
BAD_GROUPS = (0, -1, -2, 2, 3, 4, 7, 2**31, 2**40, 2**62, INT64_MAX, INT64_MIN)


def channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=FORMATS[t.dim()])


LAYOUTS_OF_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": channels_last,
    "every_other_channel": lambda t: channels_last(t.repeat_interleave(2, 1))[:, ::2],
}
LAYOUTS = {**cases.LAYOUTS, **LAYOUTS_OF_IMAGES}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Most arguments are right, and each is wrong now and then."""
    space, seed = draw(st.integers(1, 3)), draw(st.integers(0, 99))
    batch, groups = draw(st.sampled_from(BATCHES)), draw(st.sampled_from(GROUPS))
    inputs, outputs = (draw(st.sampled_from(OF_GROUP)) for _ in range(2))
    if draw(st.integers(0, 3)) == 0:
        inputs = 1  # depthwise
    sizes = [choose(draw, draw(st.sampled_from(WIDTHS[space])), (0, 1)) for _ in range(space)]
    kernel = [choose(draw, draw(st.integers(1, 3)), (0, 5)) for _ in range(space)]
    if draw(st.integers(0, 9)) == 0:
        deep = draw(st.sampled_from(DEPTHS))
        inputs, groups, sizes, kernel = deep, 1, [2] * space, [1] * space
    outputs = outputs * groups + choose(draw, 0, (1,))
    output = draw(st.sampled_from(cases.FLOAT_DTYPES))
    compute = cases.compute_dtype(output)
    dtype = choose(draw, draw(st.sampled_from(cases.INTEGER_DTYPES)), DTYPES)
    x = draw(tensors((*batch, inputs * groups, *sizes), dtype, seed))
    dtype = choose(draw, torch.int8, DTYPES)
    weight = draw(tensors((outputs, inputs, *kernel), dtype, seed + 1))
    arguments: dict[str, Any] = {"input": x, "weight": weight}
    ones = st.sampled_from(((), (1,)))
    arguments["input_scale"] = draw(vectors(draw(ones), compute, seed + 2))
    arguments["weight_scale"] = draw(vectors((outputs,), compute, seed + 3))
    if draw(st.booleans()):
        of_bias = draw(st.sampled_from((output, compute)))
        arguments["bias"] = draw(vectors((outputs,), of_bias, seed + 4))
    if draw(st.booleans()):
        sums = draw(vectors((outputs,), torch.int32, seed + 5))
        if (sums.dtype, weight.dtype) == (torch.int32, torch.int8) and weight.dim() > 1:
            right = weight.flatten(1).sum(1, dtype=torch.int32)
            sums = right if sums.shape == right.shape else sums
        arguments["weight_sum"] = sums
    if draw(st.booleans()):
        arguments["input_zero_point"] = draw(zero_points(draw(ones), x.dtype, seed))
    for name in STEPS:
        if draw(st.booleans()):
            arguments[name] = draw(steps(name, space))
    if groups != 1 or draw(st.booleans()):
        arguments["groups"] = choose(draw, groups, BAD_GROUPS)
    if output != compute or draw(st.booleans()):
        arguments["dtype"] = choose(draw, output, (*DTYPES, torch.float8_e4m3fn, torch.bool))
    return Call("int8_conv", arguments)


@st.composite
def wrong_shapes(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Shapes to choose from, of which most differ in one size alone."""
    at = draw(st.integers(0, len(shape) - 1))
    size = draw(st.sampled_from((0, max(shape[at] - 1, 0), shape[at] + 1)))
    other = (*shape[:at], size, *shape[at + 1 :])
    return (other, other, draw(st.sampled_from(SHAPES)))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """An image or a weight of any layout."""
    made = values(choose(draw, shape, draw(wrong_shapes(shape))), dtype, seed)
    layouts = ["contiguous"]
    if made.dim() > 1:
        layouts += LAYOUTS_OF_IMAGES if made.dim() in FORMATS else []
        layouts += draw(st.sampled_from(([], [], [*cases.LAYOUTS])))
    return LAYOUTS[draw(st.sampled_from(layouts))](made)


def not_contiguous(made: Tensor) -> tuple[Tensor, ...]:
    """In layouts of other strides, where the sizes allow them."""
    if made.dim() < 2:
        return (made,)
    return tuple(cases.LAYOUTS[name](made) for name in ("transposed", "stepped", "padded"))


@st.composite
def vectors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers for each channel, or one; not always side by side in memory."""
    made = tensor(choose(draw, shape, SHAPES), choose(draw, dtype, DTYPES), seed)
    layouts = ("contiguous", "stepped", "expanded") if made.dim() > 0 else ("contiguous",)
    return LAYOUTS[draw(st.sampled_from(layouts))](made)


@st.composite
def zero_points(
    draw: st.DrawFn, shape: tuple[int, ...], input_dtype: torch.dtype, seed: int
) -> Tensor:
    """One that the input's dtype holds."""
    dtype = choose(draw, draw(st.sampled_from(POINT_DTYPES)), BAD_POINT_DTYPES)
    shape = choose(draw, shape, SHAPES)
    if dtype in BAD_POINT_DTYPES:
        return torch.ones(shape, dtype=dtype)
    of_input = input_dtype if input_dtype in cases.INTEGER_DTYPES else torch.int8
    case = Case((), 0, 0, of_input, zero_point="one", point_dtype=dtype)
    return case.zero_points(seed).expand(shape)


@st.composite
def steps(draw: st.DrawFn, name: str, space: int) -> Any:
    """One number, or one for each dimension of space."""
    count = choose(draw, draw(st.sampled_from((1, space))), (0, space - 1, space + 1, 5))
    numbers = [draw(st.sampled_from(STEPS[name][1])) for _ in range(count)]
    if count > 0:
        # So much padding would fill all memory.
        others = BAD_STEPS if name == "padding" else (INT32_MAX, *BAD_STEPS)
        at = draw(st.integers(0, count - 1))
        numbers[at] = choose(draw, numbers[at], others)
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
    """`channels_last` if a copy of the input is, else contiguous; either where it is both."""
    last = FORMATS.get(x.dim()) if x.dim() == weight.dim() else None
    copy = torch.empty_like(x, device="meta")
    is_last = last is not None and copy.is_contiguous(memory_format=last)
    right = got.is_contiguous() and (not is_last or copy.is_contiguous())
    right |= is_last and got.is_contiguous(memory_format=last)
    assert right, f"strides {got.stride()} for an input of {x.stride()}"


def check_values(call: Call, got: Tensor) -> None:
    a, ops = call.arguments, torch.ops.baraquant
    assert got.dtype == a.get("dtype", a["weight_scale"].dtype)
    check_strides(a["input"], a["weight"], got)
    assert_same_bits(got, int8_conv(**a), str(call))
    ops._force_patches(True)
    try:
        patched, error = outcome(call, "cpu", ops)
    finally:
        ops._force_patches(False)
    assert error is None, f"right, but of patches {type(error).__name__}: {error}"
    assert patched.stride() == got.stride()
    assert_same_bits(patched, got, str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 1500)
