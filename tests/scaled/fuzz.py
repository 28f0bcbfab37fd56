# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the scaled family, often wrong, and gradients of integers.

The gradients are those of `qat_linear` with a backward of integers.
"""

from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.scaled.test_gradients import expected, gradients, state_of
from tests.support import cases
from tests.support.bad_arguments.scaled import TRANSPOSED
from tests.support.bits import assert_same_bits
from tests.support.calls.scaled import SCALED_CALLS
from tests.support.cases import INT32_MAX, INT64_MAX, INT64_MIN
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.fused import rows
from tests.support.family_cases.int8_mm import INPUT_RANGE, SYMMETRIC_RANGES, WEIGHT_RANGE
from tests.support.oracle import int8_mm as int8_oracle
from tests.support.oracle import scaled as oracle

LEADS = ((), (0,), (1,), (7,), (2, 3), (1, 1), (3, 1, 2))
LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 257)
MAKERS = (calls.tensor, rows)
BACKWARDS, ROUNDINGS = ("int8_input", "int8"), ("nearest", "stochastic")
BAD_RANGES = ((7, -8), (0, 0), (-129, 127), (-128, 128), (INT64_MIN, INT64_MAX))
BAD_WORDS = ("", "INT8", "int8 ", "int4", "floor", "none")


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, found = call.all, set[type[Exception]]()
    if call.name == "draw_random":
        return found if 1 <= a["count"] <= INT32_MAX else {ValueError}
    x = a["input"]
    if call.name == "transpose_int8":
        if x.dtype != torch.int8:
            found.add(TypeError)
        return found if x.dim() == 2 else found | {ValueError}
    lead = x.shape[:-1]
    shapes = (lead, (*lead, 1)) if call.name == TRANSPOSED else (x.shape[-1:],)
    if x.dim() == 0 or a["factor"].shape not in shapes:
        found.add(ValueError)
    if x.dtype not in cases.FLOAT_DTYPES or a["factor"].dtype != cases.compute_dtype(x.dtype):
        found.add(TypeError)
    if "random" in a:
        if a["random"].dtype != torch.int64:
            found.add(TypeError)
        if a["random"].shape != (2,):
            found.add(ValueError)
    return found


def check_values(call: calls.Call, got: Any) -> None:
    """The oracle's bits, contiguous."""
    a = call.all
    if call.name == "draw_random":
        assert (got.dtype, got.shape) == (torch.int64, (2,)) and got[1] == 0
    elif call.name == "transpose_int8":
        assert got.is_contiguous()
        assert_same_bits(got, a["input"].t())
    else:
        random = tuple(a["random"].tolist()) if "random" in a else None
        wanted = getattr(oracle, call.name)(a["input"], a["factor"], random)
        assert all(t.is_contiguous() for t in got)
        assert_same_bits(got[1], wanted.scale, "scale")
        assert_same_bits(got[0], wanted.values)


# --- gradients -----------------------------------------------------------------------------------


def layer(rng: Random) -> tuple[calls.Call, Tensor]:
    """A call of `qat_linear`, right but for words and ranges, and a gradient of its result."""

    def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
        made = rng.choice(MAKERS)(shape, dtype, seed)
        layouts = [*cases.LAYOUTS] if made.dim() > 1 else ["contiguous"]
        return cases.LAYOUTS[rng.choice(layouts)](made)

    lead, seed = rng.choice(LEADS), rng.randrange(100)
    n, k, dtype = rng.choice(LENGTHS), rng.choice(LENGTHS), rng.choice(cases.FLOAT_DTYPES)
    arguments: dict[str, Any] = {
        "input": numbers((*lead, k), dtype, seed),
        "weight": numbers((n, k), dtype, seed + 1),
        "symmetric": calls.one_in(rng, 2),
        "backward": calls.choose(rng, rng.choice(BACKWARDS), BAD_WORDS),
        "rounding": calls.choose(rng, rng.choice(ROUNDINGS), BAD_WORDS),
    }
    if calls.one_in(rng, 2):
        of_bias = rng.choice((dtype, cases.compute_dtype(dtype)))
        arguments["bias"] = numbers((n,), of_bias, seed + 2)
    of_input = SYMMETRIC_RANGES + (() if arguments["symmetric"] else int8_cases.OTHER_RANGES)
    for names, ranges in ((INPUT_RANGE, of_input), (WEIGHT_RANGE, SYMMETRIC_RANGES)):
        if calls.one_in(rng, 2):
            ends = calls.choose(rng, rng.choice(ranges), BAD_RANGES)
            arguments.update(zip(names, ends, strict=True))
    return calls.Call("qat_linear", arguments), numbers((*lead, n), dtype, seed + 3)


def wrong_words(layer: tuple[calls.Call, Tensor]) -> set[type[Exception]]:
    a = layer[0].arguments
    right = a["backward"] in BACKWARDS and a["rounding"] in ROUNDINGS
    for names in (INPUT_RANGE, WEIGHT_RANGE):
        right &= tuple(a.get(name) for name in names) not in BAD_RANGES
    return set() if right else {ValueError}


def check_gradients(layer: tuple[calls.Call, Tensor], got: Tensor) -> None:
    a, dy = dict(layer[0].arguments), layer[1]
    backward, rounding = a.pop("backward"), a.pop("rounding")
    assert_same_bits(got, int8_oracle.qat_linear(**a))
    symmetric, ends = a["symmetric"], {n: a[n] for n in INPUT_RANGE + WEIGHT_RANGE if n in a}
    names = [name for name in ("input", "weight", "bias") if name in a]
    leaves = [a[name].detach().requires_grad_() for name in names]
    x, w, b = (*leaves, None)[:3]
    options = {"symmetric": symmetric, **ends}
    torch.manual_seed(dy.numel())
    random = state_of(dy) if rounding == "stochastic" else None
    found = gradients(x, w, b, dy, backward=backward, rounding=rounding, **options)
    dx, dw = expected(x, w, dy, symmetric, random, ends)
    wanted = [dx, dw if backward == "int8" else gradients(x, w, b, dy, **options)[1]]
    if b is not None:
        wanted.append(oracle.bias_gradient(dy, b.dtype))
    for name, actual, value in zip(names, found, wanted, strict=True):
        assert_same_bits(actual, value, f"gradient of {name}")


SHAPES = (*calls.SHAPES_OF_ROWS, *((3, length) for length in LENGTHS))


def make(rng: Random) -> calls.Call:
    right = calls.right_call(rng, SCALED_CALLS, SHAPES)
    if calls.one_in(rng, 5):
        count = rng.choice((1, 2, 7, INT32_MAX))
        right = calls.Call("draw_random", {"like": torch.ones(2, 3), "count": count})
    return calls.changed(rng, right, {}, MAKERS)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1000)
    judge = lambda layer, *rest: calls.judged(layer[0], *rest)  # noqa: E731
    calls.run(layer, wrong_words, check_gradients, 1000, judge)
