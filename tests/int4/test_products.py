# SPDX-License-Identifier: BSD-3-Clause
"""Products with weights of four bits: the bits of the op for int8 with the expanded weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.int4 import INT4_CALLS, LINEARS, Int4Call

# Inputs, outputs, tokens: rests of packs, of panels and of groups, and more than a block of depth.
SIZES = (
    *((64, 16, 1), (130, 33, 4), (7, 5, 3), (1, 1, 1), (4097, 17, 2), (300, 40, 17)),
    *((2500, 35, 5), (256, 200, 130), (96, 3, 600), (0, 4, 3), (8, 0, 3), (8, 4, 0)),
    *((160, 21, 3), (4096, 9, 2)),
)
GROUP_SIZES = (32, 64, 128, 2, 34)
SIBLINGS: dict[str, Callable[..., Tensor]] = {
    LINEARS[0]: ops.int8_linear,
    LINEARS[1]: ops.quantized_linear,
    LINEARS[2]: ops.static_quantized_linear,
}
by_size = pytest.mark.parametrize("size", SIZES, ids=str)


def bytes_of(low: int, high: int, *sizes: int, seed: int) -> Tensor:
    return torch.randint(low, high, sizes, dtype=torch.uint8, generator=cases.generator(seed))


def weight(
    n: int, k: int, group_size: int, extreme: bool, asymmetric: bool
) -> tuple[Tensor, dict[str, Any]]:
    """A packed weight, and its groups; `extreme`: of the largest factors and numbers alone."""
    groups = -(-k // group_size)
    packed = bytes_of(0, 256, n, (k + 1) // 2, seed=1)
    factor = bytes_of(1, 17, n, groups, seed=2)
    if extreme:
        packed, factor = packed % 2 * 255, torch.full_like(factor, 16)
    found: dict[str, Any] = {"group_factor": factor, "group_size": group_size}
    if asymmetric:
        zero_point = bytes_of(0, 16, n, groups, seed=3)
        found["group_zero_point"] = torch.full_like(zero_point, 8) if extreme else zero_point
    return packed, found


def calls(k: int, n: int, m: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each linear op with arguments that its sibling for int8 takes too."""
    x = torch.randn(m, k, generator=cases.generator(4))
    sw = torch.rand(n, generator=cases.generator(5)) + 0.1
    bias = torch.randn(n, generator=cases.generator(6))
    q = bytes_of(0, 256, m, k, seed=7)
    s = torch.rand(m, 1, generator=cases.generator(8)) + 0.1
    z = bytes_of(0, 99, m, 1, seed=9).int()
    s0, z0 = torch.tensor(0.03), torch.tensor(3)
    yield LINEARS[0], {"input": q.view(torch.int8), "input_scale": s, "weight_scale": sw}
    full = {"input_zero_point": z, "bias": bias, "dtype": torch.bfloat16}
    yield LINEARS[0], {"input": q, "input_scale": s, "weight_scale": sw, **full}
    yield LINEARS[1], {"input": x, "weight_scale": sw}
    full = {"symmetric": False, "bias": bias, "quant_min": -8, "quant_max": 7}
    yield LINEARS[1], {"input": x, "weight_scale": sw, **full}
    yield LINEARS[1], {"input": x.bfloat16(), "weight_scale": sw, "dtype": torch.float32}
    yield LINEARS[1], {"input": x.double(), "weight_scale": sw.double(), "bias": bias.double()}
    yield LINEARS[2], {"input": x, "weight_scale": sw, "act_scale": s0}
    full = {"act_zero_point": z0, "smooth_scale": torch.full((k,), 0.02), "bias": bias.half()}
    yield LINEARS[2], {"input": x.half(), "weight_scale": sw, "act_scale": s0, **full}


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}


def expanded(module: Any, packed: Tensor, groups: dict[str, Any], columns: int) -> Tensor:
    result: Tensor = module.expand_int4(packed, in_features=columns, **groups)
    return result


@pytest.mark.parametrize("extreme", (False, True), ids=("any", "extreme"))
@by_size
def test_the_bits_of_int8(size: tuple[int, int, int], extreme: bool, device: str) -> None:
    k, n, m = size
    for group_size in GROUP_SIZES:
        for asymmetric in (False, True):
            packed, groups = weight(n, k, group_size, extreme, asymmetric)
            packed, groups = packed.to(device), on(device, groups)
            w8 = expanded(ops, packed, groups, k)
            assert torch.equal(w8, expanded(reference, packed, groups, k))
            for name, arguments in calls(k, n, m):
                given = on(device, arguments)
                want = SIBLINGS[name](weight=w8, **given)
                got = getattr(ops, name)(packed=packed, **groups, **given)
                assert_same_bits(got, want, name)
                sums = w8.sum(1, dtype=torch.int32)
                got = getattr(ops, name)(packed=packed, weight_sum=sums, **groups, **given)
                assert_same_bits(got, want, f"{name}, with sums")


@pytest.mark.parametrize("m", range(1, 6))
@pytest.mark.parametrize("kind", (torch.int8, torch.uint8), ids=cases.name_of)
def test_few_rows(m: int, kind: torch.dtype, device: str) -> None:
    """Rows of the weight whose int8 cannot overflow, among others whose does."""
    n, k = 40, 288
    for group_size in (32, 64, 96, 128, 288, 320):
        packed, groups = weight(n, k, group_size, extreme=False, asymmetric=True)
        zero_point, factor = groups["group_zero_point"], groups["group_factor"]
        zero_point[::2] = 8
        factor[::6] = 17  # 7 * 17 is an int8, and -8 * 17 is none
        factor[1::6] %= 9  # with any zero point, 0 too
        factor[3, 0], factor[5, -1] = 255, 128
        packed, groups = packed.to(device), on(device, groups)
        for given in (groups, {**groups, "group_zero_point": None}):
            w8 = expanded(ops, packed, given, k)
            x = bytes_of(0, 256, m, k, seed=m).view(kind).to(device)
            s, sw = torch.ones(1, device=device), torch.ones(n, device=device)
            got = ops.int4_linear(x, packed, s, sw, **given)
            assert torch.equal(got, ops.int8_linear(x, w8, s, sw)), group_size


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.verb in LINEARS], ids=str)
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_the_reference(call: Int4Call, dtype: torch.dtype, device: str) -> None:
    for shape in ((3, 40), (2, 5, 33), (7,), (0, 8)):
        _, given = call.arguments(*call.tensors(shape, dtype, device))
        want = getattr(reference, call.verb)(**given)
        assert_same_bits(call.function(**given), want, str(shape))


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.differentiable], ids=str)
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_gradients(call: Int4Call, dtype: torch.dtype, device: str) -> None:
    """Those of the op for int8, bit for bit; the result is that of a call without them."""
    _, given = call.arguments(*call.tensors((4, 6, 34), dtype, device))
    keys = ("packed", "group_factor", "group_size", "group_zero_point")
    groups = {key: given[key] for key in keys[1:] if key in given}
    w8 = expanded(ops, given["packed"], groups, 34)
    sibling = SIBLINGS[call.verb]
    rest = {key: value for key, value in given.items() if key not in (*keys, "input")}
    results = []
    for run in (call.function, sibling):
        x = given["input"].clone().requires_grad_()
        own = {"packed": given["packed"], **groups} if run is call.function else {"weight": w8}
        y = run(input=x, **own, **rest)
        dy = torch.randn(y.shape, generator=cases.generator(3)).to(y)
        results.append((y, *torch.autograd.grad(y, x, dy)))
    for got, want in zip(*results, strict=True):
        assert_same_bits(got, want)
    assert_same_bits(call.function(**given), results[0][0])


def test_gradient_of_the_bias(device: str) -> None:
    for call in (c for c in INT4_CALLS if c.verb in LINEARS and c.full):
        _, given = call.arguments(*call.tensors((4, 6, 34), torch.float32, device))
        bias = given["bias"].requires_grad_()
        call.function(**given).sum().backward()
        assert torch.equal(bias.grad, torch.full_like(bias, 24))


@pytest.mark.parametrize("m", (1, 4, 5, 9, 40))
@pytest.mark.parametrize("kind", (torch.int8, torch.uint8), ids=cases.name_of)
def test_asymmetric_inputs(m: int, kind: torch.dtype, device: str) -> None:
    """The sums of the weight are found in the call, also of rows whose groups leave int8."""
    n, k = 37, 160
    packed, groups = weight(n, k, 64, extreme=False, asymmetric=True)
    groups["group_factor"][::5] = 255
    packed, groups = packed.to(device), on(device, groups)
    q = bytes_of(0, 256, m, k, seed=m).view(kind).to(device)
    z = bytes_of(0, 256, m, seed=7).view(kind).int().to(device)
    s, sw = torch.rand(m, device=device), torch.rand(n, device=device)
    for given in (groups, {**groups, "group_zero_point": None}):
        w8 = expanded(ops, packed, given, k)
        sums = w8.sum(1, dtype=torch.int32)
        got = ops.int4_linear(q, packed, s, sw, input_zero_point=z, **given)
        want = ops.int8_linear(q, w8, s, sw, input_zero_point=z, weight_sum=sums)
        assert_same_bits(got, want, str(m))
        if device == "cpu":  # and no pass over the weight comes first
            plan = baraquant.plan("int4_linear", q, packed, s, sw, input_zero_point=z, **given)
            assert len(plan) == 1


@pytest.mark.exhaustive
def test_a_million_products(device: str) -> None:
    """Extreme weights and inputs, every group size; the sums are those of float64, exactly."""
    count = 0
    for k in (1, 63, 129, 1000, 4096, 65_536):
        for group_size in (32, 64, 128):
            n, m = 301, 230 if k < 65_536 else 13
            packed, groups = weight(n, k, group_size, extreme=True, asymmetric=k % 2 == 1)
            x = (bytes_of(0, 2, m, k, seed=k) * 255).to(device)  # 0 and 255
            packed, groups = packed.to(device), on(device, groups)
            one = torch.ones(n, dtype=torch.float64, device=device)
            w8 = expanded(ops, packed, groups, k).double()
            signed = (x.int() - 128).to(torch.int8)  # -128 and 127
            for rows in (x, x[:3], signed[:2], signed[:1]):  # few are multiplied otherwise
                got = ops.int4_linear(rows, packed, one[:1], one, **groups, dtype=torch.float64)
                assert torch.equal(got, rows.double() @ w8.t())
                count += got.numel()
    assert count > 10**6
