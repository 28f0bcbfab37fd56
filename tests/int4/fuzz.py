# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the ops of four-bit weights, often wrong.

A tensor on another device breaks a rule of its own.
"""

from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.int4.test_values import SIBLINGS
from tests.int8_conv.fuzz import POINT_DTYPES
from tests.int8_mm import fuzz as products
from tests.support import cases
from tests.support.bad_arguments.int4 import CHOOSE, EXPAND, PACK, QUANTIZE
from tests.support.bits import assert_all_same, assert_same_bits, to_numpy
from tests.support.calls.int4 import INT4_CALLS, INTEGERS, LINEARS
from tests.support.cases import INT64_MAX
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.int8_mm import DEEPEST, SYMMETRIC_RANGES
from tests.support.oracle import int4 as oracle
from tests.support.oracle import int8_mm as int8_oracle
from tests.support.oracle import weight_only as weight_only_oracle

LARGEST_GROUP = 2**31 - 2
GROUP_SIZES = (2, 4, 6, 16, 32, 34, 64, 100, 1000, LARGEST_GROUP)
RANGES = (*SYMMETRIC_RANGES, *SYMMETRIC_RANGES, *int8_cases.OTHER_RANGES)
# Too many to lie in memory, but for none of them.
HUGE = (2**40, 2**62, INT64_MAX)
POINT_NAMES = ("input_zero_point", "act_zero_point")


def count(k: int, size: int) -> int:
    """How many parts of a size, rounded up; in integers, as a huge k is no exact float."""
    return -(-k // size)


def of_any_numbers(rng: Random, call: calls.Call) -> None:
    """Groups of any size, and of any bytes where they are not made; another shape of a scale."""
    a = call.arguments
    if "group_size" in a and calls.one_in(rng, 2):
        size = a["group_size"] = rng.choice((*GROUP_SIZES, *GROUP_SIZES, 3, 2**31))
        rows = a.get("input", a.get("weight"))
        columns = a["in_features"] if rows is None else rows.shape[-1]
        for seed, name in enumerate(("group_zero_point", "group_factor")):
            if name in a:
                shape, random = (len(a[name]), count(columns, size)), cases.generator(seed)
                a[name] = torch.randint(seed, 16 + seed, shape, generator=random).to(torch.uint8)
    if call.name in (EXPAND, *LINEARS) and calls.one_in(rng, 5):
        for name in ("group_factor", "group_zero_point"):
            if name in a:
                a[name] = calls.tensor(tuple(a[name].shape), torch.uint8, 3)
    for name in POINT_NAMES:
        if name in a and calls.one_in(rng, 2):
            a[name] = a[name].to(rng.choice((torch.int64, torch.int16)))
    if "input_scale" in a and calls.one_in(rng, 2):
        a["input_scale"] = rng.choice((a["input_scale"].unsqueeze(-1), torch.ones(1)))
    if "in_features" in a:
        a["in_features"] -= rng.choice((0, 0, 1))


def call_of_no_rows(rng: Random) -> calls.Call:
    """A right one, of rows that are too long for memory."""
    name, k = rng.choice((CHOOSE, QUANTIZE, EXPAND, PACK)), rng.choice(HUGE)
    size = rng.choice(GROUP_SIZES)

    def rows(length: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(0, length, dtype=dtype)

    if name == PACK:
        return calls.Call(name, {"integers": rows(k, torch.int8)})
    arguments: dict[str, Any] = {"group_size": size}
    if name == EXPAND:
        arguments |= {"packed": rows(count(k, 2)), "in_features": k}
    else:
        arguments["weight"] = rows(k, torch.float32)
    if name == CHOOSE:
        return calls.Call(name, arguments | {"symmetric": calls.one_in(rng, 2)})
    if name == QUANTIZE:
        arguments["scale"] = torch.empty(0)
    groups = rows(count(k, size))
    return calls.Call(name, arguments | {"group_factor": groups, "group_zero_point": groups})


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, name = call.all, call.name
    allowed = {
        "integers": (torch.int8,),
        "weight": cases.FLOAT_DTYPES,
        "packed": (torch.uint8,),
        "group_factor": (torch.uint8,),
        "group_zero_point": (torch.uint8,),
    }
    if "scale" in a:
        allowed["scale"] = (cases.compute_dtype(a["weight"].dtype),)
    right = all(a[key].dtype in dtypes for key, dtypes in allowed.items() if key in a)
    found: set[type[Exception]] = set() if right else {TypeError}
    if not 2 <= a.get("bits", 4) <= 4:
        found.add(ValueError)
    if not has_right_sizes(call):
        found.add(ValueError)
    if name in LINEARS:
        found |= products.broken_rules(of_int8(call)) - {IndexError}
    return found


def has_right_sizes(call: calls.Call) -> bool:
    """Of the weight and its groups."""
    a = call.all
    stored = next(a[key] for key in ("integers", "weight", "packed") if key in a)
    right = stored.dim() == 2
    size = a.get("group_size", 2)
    right &= size % 2 == 0 and 2 <= size <= LARGEST_GROUP
    if not right:
        return False
    n, k = stored.shape
    if "packed" in a:
        if "input" in a and a["input"].dim() == 0:
            return False
        k = a["in_features"] if call.name == EXPAND else a["input"].shape[-1]
        right &= k >= 0 and stored.shape[1] == count(k, 2)
        right &= stored.is_contiguous() or call.name == EXPAND
    for key in ("group_factor", "group_zero_point"):
        right &= key not in a or tuple(a[key].shape) == (n, count(k, size))
    return right and ("scale" not in a or tuple(a["scale"].shape) == (n,))


def of_int8(call: calls.Call, weight: Tensor | None = None) -> calls.Call:
    """The call of the op for int8 that a product is equal to; the weight may be a mere shape."""
    own = ("packed", "group_factor", "group_zero_point", "group_size")
    a = {k: v for k, v in call.arguments.items() if k not in own and v is not None}
    if weight is None:
        packed, x = call.arguments["packed"], a["input"]
        shape = (*packed.shape[:-1], x.shape[-1] if x.dim() > 0 else 0)
        weight = torch.empty(shape, dtype=torch.int8, device="meta")
    if call.name == INTEGERS:
        a.setdefault("dtype", torch.float32)
    for key in POINT_NAMES:
        if key in a and a[key].dtype in POINT_DTYPES:  # one of those that the op for int8 knows
            a[key] = torch.from_numpy(weight_only_oracle.saturated(a[key]))
    return calls.Call(SIBLINGS[call.name].__name__, {"weight": weight, **a})


def is_huge(call: calls.Call) -> bool:
    """Whether NumPy has no array of such sizes, even if one of them is 0."""
    tensors = (v for v in call.arguments.values() if isinstance(v, Tensor))
    return any(size > 2**31 for t in tensors for size in t.shape)


def groups_of(call: calls.Call) -> oracle.Qparams:
    a = call.all
    factor = to_numpy(a["group_factor"])
    point = a.get("group_zero_point")
    z = np.full_like(factor, 8) if point is None else to_numpy(point)
    scale = to_numpy(a["scale"]) if "scale" in a else np.ones(len(factor))
    return oracle.Qparams(scale, factor, z)


def check_values(call: calls.Call, got: Any) -> None:
    """The oracle's bits."""
    if is_huge(call):
        return
    a, name = call.all, call.name
    size = a.get("group_size", 2)
    if name == CHOOSE:
        expected = oracle.choose(a["weight"], size, a["symmetric"], a["bits"])
        assert_all_same(got, expected)
        return
    if name != QUANTIZE:
        assert got.is_contiguous()
    if name == PACK:
        u = (to_numpy(a["integers"]).astype(np.int64) + 8) & 15
        assert_same_bits(got, oracle.packed(u.astype(np.uint8)))
        return
    groups = groups_of(call)
    if name == QUANTIZE and not oracle.has_numbers(groups, a["bits"]):
        return  # a zero point that is none of this width
    if name == QUANTIZE:
        u = oracle.quantize(a["weight"], groups, size, a["bits"])
        assert_same_bits(got, oracle.packed(u))
        return
    k = a["in_features"] if name == EXPAND else a["input"].shape[-1]
    u = to_numpy(weight_only_oracle.unpacked(a["packed"], k)) + np.int8(8)
    w8 = oracle.expanded(u, groups, size).astype(np.int8)  # modulo 256
    if name == EXPAND:
        assert_same_bits(got, w8)
        return
    sibling = of_int8(call, torch.from_numpy(w8))
    expected = getattr(int8_oracle, sibling.name)(**sibling.arguments)
    assert_same_bits(got, expected)


LINEAR_CALLS = [call for call in INT4_CALLS if call.verb in LINEARS]
SHAPES = (*calls.SHAPES_OF_ROWS, (5, 34), (3, 130), (2, 0))
DEEP = [(2, k) for k in (DEEPEST, DEEPEST + 1, int8_cases.DEEPEST_SHIFTED + 1)]


def make(rng: Random) -> calls.Call:
    kind = rng.randrange(14)
    if kind == 0:
        right = call_of_no_rows(rng)
    elif kind == 1:
        right = calls.right_call(rng, LINEAR_CALLS, DEEP)
    else:
        right = calls.right_call(rng, INT4_CALLS, SHAPES)
    return calls.changed(rng, right, {("quant_min", "quant_max"): RANGES}, also=of_any_numbers)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1000)
