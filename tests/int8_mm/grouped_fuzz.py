# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the products with a weight for each group of tokens, often wrong.

A right one gives the bits of the op for one weight, group by group, and 0 behind the last. Meta
does not know the values of offsets.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import baraquant.ops
from tests.int8_conv.fuzz import POINT_DTYPES, not_contiguous, tensors, vectors, zero_points
from tests.int8_mm import fuzz as products
from tests.int8_mm.fuzz import DEPTHS, DTYPES, ends
from tests.support import cases
from tests.support.bad_arguments.grouped import INTEGERS, OF_ROWS, TRAINED, VECTORS
from tests.support.bits import assert_same_bits
from tests.support.family_cases.grouped import one_weight
from tests.support.family_cases.int8_mm import (
    DEEPEST,
    DEEPEST_SHIFTED,
    INPUT_RANGE,
    OTHER_RANGES,
    SYMMETRIC_RANGES,
    WEIGHT_RANGE,
)
from tests.support.family_cases.random_calls import (
    Call,
    assert_refused,
    choose,
    judged,
    misplaced,
    outcome,
    run,
)

OPS = (INTEGERS, "quantized_grouped_linear", TRAINED)
GROUPS, ROWS, OUTPUTS = (0, 1, 1, 2, 3, 8), (0, 1, 2, 7, 33, 70), (0, 1, 2, 3, 5, 17)
BAD_OFFSETS = (-1, -(2**31), 2**31 - 1)
NO_BACKWARD_YET = ("int8_input", "int8")
WORDS = {
    "backward": ("float", (*NO_BACKWARD_YET, "", "Float", "none")),
    "rounding": ("nearest", ("stochastic", "", "Nearest")),
}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Most arguments are right, and each is wrong now and then."""
    name, seed = draw(st.sampled_from(OPS)), draw(st.integers(0, 99))
    e, t = draw(st.sampled_from(GROUPS)), draw(st.sampled_from(ROWS))
    n, k = draw(st.sampled_from(OUTPUTS)), draw(st.sampled_from(DEPTHS))
    if draw(st.integers(0, 14)) == 0:
        e, t, n = min(e, 2), min(t, 2), min(n, 1)
        k = draw(st.sampled_from((DEEPEST, DEEPEST + 1, DEEPEST_SHIFTED + 1)))
    output = draw(st.sampled_from(cases.FLOAT_DTYPES))
    compute = cases.compute_dtype(output)
    right = draw(st.sampled_from(cases.INTEGER_DTYPES)) if name == INTEGERS else output
    x = draw(tensors((t, k), choose(draw, right, DTYPES), seed))
    if x.is_floating_point() and draw(st.booleans()):
        x = x.nan_to_num(1, 2, -3)
    right = output if name == TRAINED else torch.int8
    weight = draw(tensors((e, n, k), choose(draw, right, DTYPES), seed + 1))
    if name != TRAINED:
        weight = choose(draw, weight.contiguous(), not_contiguous(weight))
    arguments: dict[str, Any] = {"input": x, "weight": weight}
    arguments["offsets"] = draw(offsets(e, t))
    if draw(st.booleans()):
        of_bias = draw(st.sampled_from((output, compute)))
        arguments["bias"] = draw(vectors((e, n), of_bias, seed + 2))
    if name != INTEGERS:
        arguments["symmetric"] = draw(st.booleans())
        of_ends = SYMMETRIC_RANGES + (() if arguments["symmetric"] else OTHER_RANGES)
        arguments |= draw(ends(INPUT_RANGE, of_ends))
    if name == TRAINED:
        arguments |= draw(ends(WEIGHT_RANGE, SYMMETRIC_RANGES))
        for key, (word, others) in WORDS.items():
            if draw(st.booleans()):
                of_others = draw(st.sampled_from(others))
                arguments[key] = draw(st.sampled_from((word, word, word, of_others)))
        return draw(misplaced(Call(name, arguments)))
    arguments["weight_scale"] = draw(vectors((e, n), compute, seed + 3))
    if draw(st.booleans()):
        arguments["weight_sum"] = draw(vectors((e, n), torch.int32, seed + 4))
    if name == INTEGERS or draw(st.booleans()):
        arguments["dtype"] = choose(draw, output, (*DTYPES, torch.float8_e4m3fn, torch.bool))
    if name == INTEGERS:
        shapes = st.sampled_from(((), (1,), (t,), (t, 1)))
        arguments["input_scale"] = draw(vectors(draw(shapes), compute, seed + 5))
        if draw(st.booleans()):
            made = draw(zero_points(draw(shapes), x.dtype, seed + 6))
            arguments["input_zero_point"] = made
    return draw(misplaced(Call(name, arguments)))


@st.composite
def offsets(draw: st.DrawFn, groups: int, rows: int) -> Tensor:
    """Of groups of any sizes; a wrong value now and then."""
    size = st.integers(0, rows)
    numbers = sorted(draw(st.lists(size, min_size=groups, max_size=groups)))
    if groups > 0:
        at, bad = draw(st.integers(0, groups - 1)), (*BAD_OFFSETS, rows + 1)
        numbers[at] = choose(draw, numbers[at], bad)
    numbers = choose(draw, numbers, (numbers[::-1], numbers[1:], [*numbers, rows]))
    made = torch.tensor(numbers, dtype=torch.int64)
    made = choose(draw, made, (made.unsqueeze(0), made.unsqueeze(1), torch.tensor(rows)))
    dtype = choose(draw, torch.int32, (torch.int64, torch.uint8, torch.int16, torch.float32))
    made = made.to(dtype)
    return choose(draw, made, (made.repeat_interleave(2, -1)[::2] if made.dim() == 1 else made,))


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows, whatever offsets are; none for a right call."""
    a, found = call.arguments, set[type[Exception]]()
    x, weight = a["input"], a["weight"]
    if a["offsets"].dtype != torch.int32:
        found.add(TypeError)
    if not has_right_sizes(call):
        found.add(ValueError)
    backward, rounding = a.get("backward", "float"), a.get("rounding", "nearest")
    if backward in NO_BACKWARD_YET:
        found.add(NotImplementedError)
    elif backward != "float" or rounding != "nearest":
        found.add(ValueError)
    if rounding not in ("nearest", "stochastic"):
        found.add(ValueError)
    # The rest is as for one weight.
    of_one = {k: v for k, v in a.items() if k != "offsets"}
    n, k = weight.shape[1] if weight.dim() == 3 else 0, x.shape[-1] if x.dim() > 0 else 0
    for key in ("weight", *VECTORS):
        if key in a:
            shape = (n, k) if key == "weight" else (n,)
            of_one[key] = torch.empty(shape, dtype=a[key].dtype, device="meta")
    point = a.get("input_zero_point")
    if point is not None and point.dtype in POINT_DTYPES:
        of_one["input_zero_point"] = point.to(torch.int64)
    name = call.name.replace("_grouped", "")
    return found | products.broken_rules(Call(name, of_one)) - {IndexError}


def has_right_sizes(call: Call) -> bool:
    a = call.arguments
    x, weight = a["input"], a["weight"]
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[2]:
        return False
    e, n, _ = weight.shape
    right = tuple(a["offsets"].shape) == (e,)
    right &= weight.is_contiguous() or call.name == TRAINED
    right &= all(tuple(a[key].shape) == (e, n) for key in VECTORS if key in a)
    of_rows = ((), (1,), (x.shape[0],), (x.shape[0], 1))
    return right and all(tuple(a[key].shape) in of_rows for key in OF_ROWS if key in a)


def has_right_offsets(call: Call) -> bool:
    """Their values; what is no list of integers breaks another rule."""
    x, offsets = call.arguments["input"], call.arguments["offsets"]
    if offsets.dim() != 1 or x.dim() == 0:
        return True
    numbers = [0, *offsets.tolist(), x.shape[0]]
    return numbers == sorted(numbers)


def judged_by_values(
    call: Call, allowed: set[type[Exception]], statistics: dict[str, int]
) -> Tensor | None:
    """As `judged`, and wrong offsets, which Meta cannot know to be wrong."""
    if type(call) is not Call or has_right_offsets(call):
        result: Tensor | None = judged(call, allowed, statistics)
        return result
    statistics["wrong"] += 1
    ops = torch.ops.baraquant
    _, error = outcome(call, "meta", ops)
    assert type(error) in allowed if allowed else error is None, f"on Meta {error!r}"
    for namespace in (ops, baraquant.ops):
        assert_refused(call, outcome(call, "cpu", namespace)[1], allowed | {ValueError})
    return None


def check_values(call: Call, got: Tensor) -> None:
    assert got.is_contiguous()
    assert_same_bits(got, one_weight(call.name, call.arguments), str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 1500, judged_by_values)
