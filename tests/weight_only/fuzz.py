# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of weight_only_linear, often wrong.

The sums of a right one are the oracle's within their bound; a packed weight gives the bits of the
integers as int8; and where the CPU has a kernel of its own, each token those that it has alone.
"""

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.int4.fuzz import HUGE, count
from tests.int8_conv.fuzz import POINT_DTYPES
from tests.support import cases
from tests.support.bad_arguments.weight_only import NAME
from tests.support.bits import assert_same_bits
from tests.support.calls.weight_only import WEIGHT_ONLY_CALLS
from tests.support.cases import INT64_MAX
from tests.support.family_cases import random_calls as calls
from tests.support.oracle import weight_only as oracle
from tests.weight_only.test_values import OWN_ROWS, but_for_pytorch

GROUP_SIZES = (None, None, 1, 2, 3, 5, 32, 33, 64, 100, 1000, 2**31, 2**62, INT64_MAX)
SHAPES = (
    *(*calls.SHAPES_OF_ROWS, (4, 31), (5, 32), (2, 2, 1, 130)),
    *((48, 33), (7, 7, 9), (60, 17), (2, 0)),
)


def of_any_groups(rng: Random, call: calls.Call) -> None:
    """Of any size, with zero points of any dtype."""
    a = call.arguments
    size = rng.choice(GROUP_SIZES)
    if "group_size" in a and size is not None:
        shape = (len(a["weight"]), count(a["input"].shape[-1], size))
        a |= {"group_size": size, "weight_scale": cases.scales(shape, a["weight_scale"].dtype, 3)}
        if "weight_zero_point" in a:
            a["weight_zero_point"] = cases.zero_points(shape, (-128, 127), 4)
    if "weight_zero_point" in a and calls.one_in(rng, 2):
        dtype = rng.choice((*POINT_DTYPES, torch.float32, torch.bool))
        a["weight_zero_point"] = a["weight_zero_point"].clamp(0, 100).to(dtype)


def call_of_no_rows(rng: Random) -> calls.Call:
    """A right one, of rows that are too long for memory."""
    packed, k, size = calls.one_in(rng, 2), rng.choice(HUGE), rng.choice(GROUP_SIZES)
    stored = torch.empty(0, k, dtype=torch.int8)
    if packed:
        stored = torch.empty(0, count(k, 2), dtype=torch.uint8)
    scale = torch.empty(0) if size is None else torch.empty(0, count(k, size))
    arguments = {"input": torch.empty(0, k), "weight": stored, "weight_scale": scale}
    return calls.Call(NAME, arguments | {"group_size": size})


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a = call.all
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


def check_values(call: calls.Call, got: Tensor) -> None:
    a, ops = call.all, torch.ops.baraquant
    x, weight, bias = a["input"], a["weight"], a.get("bias")
    assert got.is_contiguous() and got.dtype == x.dtype
    assert got.shape == (*x.shape[:-1], len(weight))
    if got.numel() == 0:
        return
    if weight.dtype == torch.uint8:
        weight = oracle.unpacked(weight, x.shape[-1])
        as_int8, error = calls.outcome(calls.Call(NAME, a | {"weight": weight}), "cpu", ops)
        assert error is None, f"right, but as int8 {type(error).__name__}: {error}"
        assert_same_bits(got, as_int8)
    point, size = a.get("weight_zero_point"), a.get("group_size")
    exact = oracle.dequantized(weight, a["weight_scale"], point, size, x.dtype)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    expected, y = oracle.linear(rows, exact, bias), got.reshape(len(rows), len(weight))
    if len(rows) > OWN_ROWS.get(x.dtype, 0):
        y = but_for_pytorch(y, rows, exact, bias, expected)
    else:
        alone = calls.Call(NAME, a | {"input": rows[-1]})
        assert_same_bits(y[-1], alone("cpu", ops), "the last token alone")
    oracle.assert_close(y, expected)


def make(rng: Random) -> calls.Call:
    is_huge = calls.one_in(rng, 21)
    right = call_of_no_rows(rng) if is_huge else calls.right_call(rng, WEIGHT_ONLY_CALLS, SHAPES)
    return calls.changed(rng, right, {}, also=of_any_groups)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1000)
