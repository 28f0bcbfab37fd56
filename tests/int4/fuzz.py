# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the ops of four-bit weights, often wrong.

A tensor on another device breaks a rule of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.int4.test_values import SIBLINGS
from tests.int8_conv.fuzz import POINT_DTYPES, not_contiguous, tensors, vectors, wrong_shapes
from tests.int8_conv.fuzz import zero_points as of_input_range
from tests.int8_mm import fuzz as products
from tests.int8_mm.fuzz import DEPTHS, DTYPES, LEADS, POINTS, SIZES, ends, values
from tests.support import cases
from tests.support.bad_arguments.int4 import CHOOSE, EXPAND, PACK, QUANTIZE
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.calls.int4 import DYNAMIC, INTEGERS, LINEARS, STATIC
from tests.support.cases import INT64_MAX, INT64_MIN
from tests.support.family_cases.int8_mm import (
    DEEPEST,
    DEEPEST_SHIFTED,
    INPUT_RANGE,
    OTHER_RANGES,
    SYMMETRIC_RANGES,
)
from tests.support.family_cases.random_calls import Call, choose, misplaced, run
from tests.support.oracle import int4 as oracle
from tests.support.oracle import int8_mm as int8_oracle
from tests.support.oracle import weight_only as weight_only_oracle

OPS = (CHOOSE, QUANTIZE, EXPAND, PACK, *LINEARS, *LINEARS)
LARGEST_GROUP = 2**31 - 2
GROUP_SIZES = (2, 4, 6, 16, 32, 34, 64, 100, 1000, LARGEST_GROUP)
BAD_GROUP_SIZES = (0, -2, 1, 3, 33, -1, 2**31 - 1, 2**31, 2**40, INT64_MAX, INT64_MIN)
FEATURES = (0, -1, -2, 2**31, 2**62, INT64_MAX, INT64_MIN)
# Too many to lie in memory, but for none of them.
HUGE = (2**40, 2**62, INT64_MAX)
POINT_NAMES = ("input_zero_point", "act_zero_point")


def count(k: int, size: int) -> int:
    """How many parts of a size, rounded up; in integers, as a huge k is no exact float."""
    return -(-k // size)


@st.composite
def laid(draw: st.DrawFn, made: Tensor) -> Tensor:
    """In any layout that its dimensions allow, half of the time."""
    layouts = ["contiguous"]
    if made.dim() > 0 and draw(st.booleans()):
        layouts = [*cases.LAYOUTS] if made.dim() > 1 else ["stepped", "expanded", "misaligned"]
    return cases.LAYOUTS[draw(st.sampled_from(layouts))](made)


@st.composite
def of_groups(draw: st.DrawFn, shape: tuple[int, ...], ends: tuple[int, int], seed: int) -> Tensor:
    """Bytes between both ends."""
    dtype = choose(draw, torch.uint8, DTYPES)
    shape = choose(draw, shape, draw(wrong_shapes(shape)))
    made = values(shape, dtype, seed)
    if dtype == torch.uint8:
        low, high = ends
        made = made.int().remainder(high + 1 - low).add(low).to(torch.uint8)
    return draw(laid(made))


@st.composite
def zero_points(
    draw: st.DrawFn, shape: tuple[int, ...], input_dtype: torch.dtype, seed: int
) -> Tensor:
    """Of the input's range, or one for all that is as far away as its dtype holds."""
    if draw(st.booleans()):
        return draw(of_input_range(shape, input_dtype, seed))
    dtype = draw(st.sampled_from(POINT_DTYPES))
    info = torch.iinfo(dtype)
    value = draw(st.sampled_from((*POINTS, info.max)))
    point = torch.tensor(min(max(value, info.min), info.max), dtype=dtype)
    return point.expand(choose(draw, shape, products.SHAPES))


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Most arguments are right, and each is wrong now and then."""
    name, seed = draw(st.sampled_from(OPS)), draw(st.integers(0, 99))
    n, k = draw(st.sampled_from(SIZES)), draw(st.sampled_from(DEPTHS))
    if draw(st.integers(0, 14)) == 0:
        if name not in LINEARS:
            return draw(calls_of_no_rows(name))
        n, k = n % 2, draw(st.sampled_from((DEEPEST, DEEPEST + 1, DEEPEST_SHIFTED + 1)))
    arguments: dict[str, Any] = {}
    if name == PACK:
        arguments["integers"] = draw(tensors((n, k), choose(draw, torch.int8, DTYPES), seed))
        return Call(name, arguments)
    size = choose(draw, draw(st.sampled_from(GROUP_SIZES)), BAD_GROUP_SIZES)
    arguments["group_size"] = size
    if name in (CHOOSE, QUANTIZE):
        right = draw(st.sampled_from(cases.FLOAT_DTYPES))
        weight = draw(tensors((n, k), choose(draw, right, DTYPES), seed + 1))
        if draw(st.booleans()) and weight.is_floating_point():
            weight = weight.nan_to_num(1, 2, -3)  # or few rows would have a finite scale
        arguments["weight"] = weight
    if name == CHOOSE:
        arguments["symmetric"] = draw(st.booleans())
        return Call(name, arguments)
    groups = (n, count(k, max(size, 1)))
    every_byte = name != QUANTIZE and draw(st.integers(0, 4)) == 0
    of_factor, of_point = ((0, 255), (0, 255)) if every_byte else ((1, 16), (0, 15))
    arguments["group_factor"] = draw(of_groups(groups, of_factor, seed + 2))
    if draw(st.booleans()):
        arguments["group_zero_point"] = draw(of_groups(groups, of_point, seed + 3))
    if name == QUANTIZE:
        arguments["scale"] = draw(vectors((n,), cases.compute_dtype(right), seed + 4))
    else:
        packed = draw(tensors((n, count(k, 2)), choose(draw, torch.uint8, DTYPES), seed + 1))
        if name in LINEARS:
            packed = choose(draw, packed.contiguous(), not_contiguous(packed))
        arguments["packed"] = packed
    if name == EXPAND:
        arguments["in_features"] = choose(draw, k, (*FEATURES, k + k % 2, k - 1, k + 1))
    if name in LINEARS:
        arguments |= draw(of_products(name, n, k, seed + 4))
    return draw(misplaced(Call(name, arguments)))


@st.composite
def calls_of_no_rows(draw: st.DrawFn, name: str) -> Call:
    """Right ones, of rows that are too long for memory."""
    k, size = draw(st.sampled_from(HUGE)), draw(st.sampled_from(GROUP_SIZES))

    def rows(length: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(0, length, dtype=dtype)

    if name == PACK:
        return Call(name, {"integers": rows(k, torch.int8)})
    arguments: dict[str, Any] = {"group_size": size}
    if name == EXPAND:
        arguments |= {"packed": rows(count(k, 2)), "in_features": k}
    else:
        arguments["weight"] = rows(k, torch.float32)
    if name == CHOOSE:
        return Call(name, arguments | {"symmetric": draw(st.booleans())})
    if name == QUANTIZE:
        arguments["scale"] = torch.empty(0)
    groups = rows(count(k, size))
    return Call(name, arguments | {"group_factor": groups, "group_zero_point": groups})


@st.composite
def of_products(draw: st.DrawFn, name: str, n: int, k: int, seed: int) -> dict[str, Any]:
    """What a product takes besides its weight."""
    lead, output = draw(st.sampled_from(LEADS)), draw(st.sampled_from(cases.FLOAT_DTYPES))
    compute = cases.compute_dtype(output)
    right = draw(st.sampled_from(cases.INTEGER_DTYPES)) if name == INTEGERS else output
    x = draw(tensors((*lead, k), choose(draw, right, DTYPES), seed))
    if x.is_floating_point() and draw(st.booleans()):
        x = x.nan_to_num(1, 2, -3)
    found: dict[str, Any] = {"input": x}
    found["weight_scale"] = draw(vectors((n,), compute, seed + 1))
    if draw(st.booleans()):
        of_bias = draw(st.sampled_from((output, compute)))
        found["bias"] = draw(vectors((n,), of_bias, seed + 2))
    if draw(st.booleans()):
        found["weight_sum"] = draw(vectors((n,), torch.int32, seed + 3))
    if name == INTEGERS or draw(st.booleans()):
        kinds = (*DTYPES, torch.float8_e4m3fn, torch.bool)
        found["dtype"] = choose(draw, output, kinds)
    if name == INTEGERS and output == torch.float32 and draw(st.booleans()):
        del found["dtype"]
    if name == DYNAMIC:
        found["symmetric"] = draw(st.booleans())
    if name != INTEGERS:
        of_ends = SYMMETRIC_RANGES + (() if found.get("symmetric", False) else OTHER_RANGES)
        found |= draw(ends(INPUT_RANGE, of_ends))
    if name == DYNAMIC:
        return found
    shapes = st.sampled_from(((), (1,)) if name == STATIC else ((), (1,), lead, (*lead, 1)))
    scale, point = ("act_scale" if name == STATIC else "input_scale"), POINT_NAMES[name == STATIC]
    found[scale] = draw(vectors(draw(shapes), compute, seed + 4))
    if draw(st.booleans()):
        found[point] = draw(zero_points(draw(shapes), x.dtype, seed + 5))
    if name == STATIC and draw(st.booleans()):
        found["smooth_scale"] = draw(vectors((k,), compute, seed + 6))
    return found


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, name = call.arguments, call.name
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
    if not has_right_sizes(call):
        found.add(ValueError)
    if name in LINEARS:
        found |= products.broken_rules(of_int8(call)) - {IndexError}
    return found


def has_right_sizes(call: Call) -> bool:
    """Of the weight and its groups."""
    a = call.arguments
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


def of_int8(call: Call, weight: Tensor | None = None) -> Call:
    """The call of the op for int8 that a product is equal to; the weight may be a mere shape."""
    own = ("packed", "group_factor", "group_zero_point", "group_size")
    a = {k: v for k, v in call.arguments.items() if k not in own}
    if weight is None:
        packed, x = call.arguments["packed"], a["input"]
        shape = (*packed.shape[:-1], x.shape[-1] if x.dim() > 0 else 0)
        weight = torch.empty(shape, dtype=torch.int8, device="meta")
    if call.name == INTEGERS:
        a.setdefault("dtype", torch.float32)
    for key in POINT_NAMES:
        if key in a and a[key].dtype in POINT_DTYPES:  # one of those that the op for int8 knows
            a[key] = torch.from_numpy(weight_only_oracle.saturated(a[key]))
    return Call(SIBLINGS[call.name].__name__, {"weight": weight, **a})


def is_huge(call: Call) -> bool:
    """Whether NumPy has no array of such sizes, even if one of them is 0."""
    tensors = (v for v in call.arguments.values() if isinstance(v, Tensor))
    return any(size > 2**31 for tensor in tensors for size in tensor.shape)


def groups_of(call: Call) -> oracle.Qparams:
    a = call.arguments
    factor = to_numpy(a["group_factor"])
    point = a.get("group_zero_point")
    z = np.full_like(factor, 8) if point is None else to_numpy(point)
    scale = to_numpy(a["scale"]) if "scale" in a else np.ones(len(factor))
    return oracle.Qparams(scale, factor, z)


def check_values(call: Call, got: Any) -> None:
    """The oracle's bits."""
    if is_huge(call):
        return
    a, name = call.arguments, call.name
    size = a.get("group_size", 2)
    if name == CHOOSE:
        expected = oracle.choose(a["weight"], size, a["symmetric"])
        for mine, right in zip(got, expected, strict=True):
            assert_same_bits(mine, right, str(call))
        return
    if name != QUANTIZE:
        assert got.is_contiguous()
    if name == PACK:
        u = (to_numpy(a["integers"]).astype(np.int64) + 8) & 15
        assert_same_bits(got, oracle.packed(u.astype(np.uint8)), str(call))
        return
    groups = groups_of(call)
    if name == QUANTIZE:
        u = oracle.quantize(a["weight"], groups, size)
        assert_same_bits(got, oracle.packed(u), str(call))
        return
    k = a["in_features"] if name == EXPAND else a["input"].shape[-1]
    u = to_numpy(weight_only_oracle.unpacked(a["packed"], k)) + np.int8(8)
    w8 = oracle.expanded(u, groups, size).astype(np.int8)  # modulo 256
    if name == EXPAND:
        assert_same_bits(got, w8, str(call))
        return
    sibling = of_int8(call, torch.from_numpy(w8))
    expected = getattr(int8_oracle, sibling.name)(**sibling.arguments)
    assert_same_bits(got, expected, str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 2000)
