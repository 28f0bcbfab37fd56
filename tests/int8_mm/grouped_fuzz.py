# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the products with a weight for each group of tokens, often wrong.

A right one gives the bits of the op for one weight, group by group, and 0 behind the last. Meta
does not know the values of offsets.
"""

from random import Random

import torch
from torch import Tensor

import baraquant.ops
from tests.int8_conv.fuzz import POINT_DTYPES
from tests.int8_mm import fuzz as products
from tests.support import cases
from tests.support.bad_arguments.grouped import INTEGERS, OF_ROWS, TRAINED, VECTORS
from tests.support.bits import assert_same_bits
from tests.support.family_cases import grouped
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.grouped import Grouped, integer_weight, one_weight
from tests.support.family_cases.int8_mm import DEEPEST, INPUT_RANGE, SYMMETRIC_RANGES, WEIGHT_RANGE

BAD_OFFSETS = (-1, -(2**31), 2**31 - 1)
NO_BACKWARD_YET = ("int8_input", "int8")
OPTIONS = {
    INPUT_RANGE: (*SYMMETRIC_RANGES, *SYMMETRIC_RANGES, *int8_cases.OTHER_RANGES),
    WEIGHT_RANGE: SYMMETRIC_RANGES,
    ("backward",): [(word,) for word in ("float", "float", "float", *NO_BACKWARD_YET, "", "Float")],
    ("rounding",): [(word,) for word in ("nearest", "nearest", "nearest", "stochastic", "Nearest")],
    ("symmetric",): ((True,), (False,)),
}
DEEP = [
    Grouped("one", 1, k, kind, zero_point=point)
    for k in (DEEPEST, DEEPEST + 1, int8_cases.DEEPEST_SHIFTED + 1)
    for kind, point in ((torch.int8, None), (torch.int8, "token"), (torch.uint8, None))
]


def right(rng: Random) -> calls.Call:
    """One of the cases of the family, or the same of floating inputs."""
    if calls.one_in(rng, 2):
        return calls.Call(INTEGERS, rng.choice([*grouped.CASES, *grouped.CASES, *DEEP]).arguments())
    n, k = rng.choice((0, 1, 5, 17)), rng.choice((0, 1, 3, 33, 64))
    sizes, dtype = rng.choice([*grouped.SIZES]), rng.choice(cases.FLOAT_DTYPES)
    arguments = grouped.floating(sizes, dtype, n, k, rng.randrange(100))
    if calls.one_in(rng, 2):
        return calls.Call(TRAINED, arguments)
    return calls.Call("quantized_grouped_linear", integer_weight(arguments))


def of_any_offsets(rng: Random, call: calls.Call) -> None:
    """A wrong one now and then."""
    ends = call.arguments["offsets"].clone()
    if calls.one_in(rng, 10):
        bad = (*BAD_OFFSETS, call.arguments["input"].shape[0] + 1)
        ends[rng.randrange(len(ends))] = rng.choice(bad)
    call.arguments["offsets"] = calls.choose(rng, ends, (ends.flip(0),))


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows, whatever offsets are; none for a right call."""
    a, found = call.all, set[type[Exception]]()
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
    return found | products.broken_rules(calls.Call(name, of_one)) - {IndexError}


def has_right_sizes(call: calls.Call) -> bool:
    a = call.all
    x, weight = a["input"], a["weight"]
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[2]:
        return False
    e, n, _ = weight.shape
    right = tuple(a["offsets"].shape) == (e,)
    right &= weight.is_contiguous() or call.name == TRAINED
    right &= all(tuple(a[key].shape) == (e, n) for key in VECTORS if key in a)
    of_rows = ((), (1,), (x.shape[0],), (x.shape[0], 1))
    return right and all(tuple(a[key].shape) in of_rows for key in OF_ROWS if key in a)


def has_right_offsets(call: calls.Call) -> bool:
    """Their values; what is no list of integers breaks another rule."""
    x, offsets = call.arguments["input"], call.arguments["offsets"]
    if offsets.dim() != 1 or x.dim() == 0 or offsets.is_complex():
        return True
    numbers = [0, *offsets.tolist(), x.shape[0]]
    return numbers == sorted(numbers)


def judged_by_values(
    call: calls.Call, allowed: set[type[Exception]], statistics: dict[str, int]
) -> Tensor | None:
    """As `calls.judged`, and wrong offsets, which Meta cannot know to be wrong."""
    if type(call) is not calls.Call or has_right_offsets(call):
        result: Tensor | None = calls.judged(call, allowed, statistics)
        return result
    statistics["wrong"] += 1
    ops = torch.ops.baraquant
    _, error = calls.outcome(call, "meta", ops)
    assert type(error) in allowed if allowed else error is None, f"on Meta {error!r}"
    for namespace in (ops, baraquant.ops):
        calls.assert_refused(call, calls.outcome(call, "cpu", namespace)[1], allowed | {ValueError})
    return None


def check_values(call: calls.Call, got: Tensor) -> None:
    assert got.is_contiguous()
    assert_same_bits(got, one_weight(call.name, call.all))


if __name__ == "__main__":
    calls.run(
        lambda rng: calls.changed(rng, right(rng), OPTIONS, also=of_any_offsets),
        *(broken_rules, check_values, 1500, judged_by_values),
    )
