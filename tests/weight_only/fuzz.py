# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of weight_only_linear, often wrong.

The sums of a right one are the oracle's within their bound; a packed weight gives the bits of the
integers as int8; and where the CPU has a kernel of its own, each token those that it has alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.int4.fuzz import HUGE, count
from tests.int4.fuzz import zero_points as far_zero_points
from tests.int8_conv.fuzz import BAD_POINT_DTYPES, POINT_DTYPES, not_contiguous, tensors, vectors
from tests.int8_mm import fuzz as products
from tests.int8_mm.fuzz import DTYPES, SIZES
from tests.support import cases
from tests.support.bad_arguments.weight_only import NAME
from tests.support.bits import assert_same_bits
from tests.support.cases import INT64_MAX, INT64_MIN
from tests.support.family_cases.random_calls import Call, choose, misplaced, outcome, run
from tests.support.oracle import weight_only as oracle
from tests.weight_only.test_values import OWN_ROWS, but_for_pytorch

LEADS = (*products.LEADS, (4,), (5,), (2, 2, 1), (48,), (7, 7), (60,))
DEPTHS = (*products.DEPTHS, 31, 32, 130, 1000)
GROUP_SIZES = (None, None, 1, 2, 3, 5, 32, 33, 64, 100, 1000, 2**31, 2**62, INT64_MAX)
BAD_GROUP_SIZES = (0, -1, -32, -(2**31), INT64_MIN)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Most arguments are right, and each is wrong now and then."""
    seed, packed = draw(st.integers(0, 99)), draw(st.booleans())
    if draw(st.integers(0, 29)) == 0:
        return draw(calls_of_no_rows(packed))
    lead, n = draw(st.sampled_from(LEADS)), draw(st.sampled_from(SIZES))
    k, output = draw(st.sampled_from(DEPTHS)), draw(st.sampled_from(cases.FLOAT_DTYPES))
    x = draw(tensors((*lead, k), choose(draw, output, DTYPES), seed))
    finite = draw(st.booleans())
    if finite and x.is_floating_point():
        x = x.nan_to_num(1, 2, -3)
    arguments: dict[str, Any] = {"input": x}
    stored, right = ((n, count(k, 2)), torch.uint8) if packed else ((n, k), torch.int8)
    weight = draw(tensors(stored, choose(draw, right, DTYPES), seed + 1))
    arguments["weight"] = choose(draw, weight.contiguous(), not_contiguous(weight))
    size = draw(st.sampled_from(GROUP_SIZES))
    groups = (n,) if size is None else (n, count(k, size))
    size = choose(draw, size, BAD_GROUP_SIZES)
    if size is not None or draw(st.booleans()):
        arguments["group_size"] = size
    scale = draw(vectors(groups, cases.compute_dtype(output), seed + 2))
    if finite and scale.is_floating_point():
        scale = scale.nan_to_num(1, 2, -3)
    arguments["weight_scale"] = scale
    if draw(st.booleans()):
        arguments["weight_zero_point"] = draw(zero_points(groups, seed + 3))
    if draw(st.booleans()):
        arguments["bias"] = draw(vectors((n,), output, seed + 4))
    return draw(misplaced(Call(NAME, arguments)))


@st.composite
def calls_of_no_rows(draw: st.DrawFn, packed: bool) -> Call:
    """Right ones, of rows that are too long for memory."""
    k, size = draw(st.sampled_from(HUGE)), draw(st.sampled_from(GROUP_SIZES))
    stored = torch.empty(0, k, dtype=torch.int8)
    if packed:
        stored = torch.empty(0, count(k, 2), dtype=torch.uint8)
    scale = torch.empty(0) if size is None else torch.empty(0, count(k, size))
    arguments = {"input": torch.empty(0, k), "weight": stored, "weight_scale": scale}
    return Call(NAME, arguments | {"group_size": size})


@st.composite
def zero_points(draw: st.DrawFn, shape: tuple[int, ...], seed: int) -> Tensor:
    """Small ones, or one for all that is as far away as its dtype holds."""
    if draw(st.integers(0, 3)) == 0:
        return draw(far_zero_points(shape, torch.int8, seed))
    dtype = choose(draw, draw(st.sampled_from(POINT_DTYPES)), BAD_POINT_DTYPES)
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    return draw(vectors(shape, dtype, seed))


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a = call.arguments
    output = a["input"].dtype
    allowed = {
        "input": cases.FLOAT_DTYPES,
        "weight": (torch.int8, torch.uint8),
        "weight_scale": (cases.compute_dtype(output),),
        "weight_zero_point": POINT_DTYPES,
        "bias": (output,),
    }
    right = all(a[key].dtype in dtypes for key, dtypes in allowed.items() if key in a)
    found: set[type[Exception]] = set() if right else {TypeError}
    return found if has_right_sizes(a) else found | {ValueError}


def has_right_sizes(a: dict[str, Any]) -> bool:
    x, weight, size = a["input"], a["weight"], a.get("group_size")
    if x.dim() == 0 or weight.dim() != 2 or (size is not None and size <= 0):
        return False
    k, n = x.shape[-1], weight.shape[0]
    right = weight.is_contiguous()
    if weight.dtype == torch.uint8:
        right &= weight.shape[1] == count(k, 2)
    elif weight.dtype == torch.int8:
        right &= weight.shape[1] == k
    groups = (n,) if size is None else (n, count(k, size))
    for key, shape in (("weight_scale", groups), ("weight_zero_point", groups), ("bias", (n,))):
        right &= key not in a or tuple(a[key].shape) == shape
    return right


def check_values(call: Call, got: Tensor) -> None:
    a, ops = call.arguments, torch.ops.baraquant
    x, weight, bias = a["input"], a["weight"], a.get("bias")
    assert got.is_contiguous() and got.dtype == x.dtype
    assert got.shape == (*x.shape[:-1], len(weight))
    if got.numel() == 0:
        return
    if weight.dtype == torch.uint8:
        weight = oracle.unpacked(weight, x.shape[-1])
        as_int8, error = outcome(Call(NAME, a | {"weight": weight}), "cpu", ops)
        assert error is None, f"right, but as int8 {type(error).__name__}: {error}"
        assert_same_bits(got, as_int8, str(call))
    point, size = a.get("weight_zero_point"), a.get("group_size")
    exact = oracle.dequantized(weight, a["weight_scale"], point, size, x.dtype)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    expected, y = oracle.linear(rows, exact, bias), got.reshape(len(rows), len(weight))
    if len(rows) > OWN_ROWS.get(x.dtype, 0):
        y = but_for_pytorch(y, rows, exact, bias, expected)
    else:
        alone = Call(NAME, a | {"input": rows[-1]})
        assert_same_bits(y[-1], alone("cpu", ops), f"the last token alone: {call}")
    oracle.assert_close(y, expected, str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 1000)
