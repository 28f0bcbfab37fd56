# SPDX-License-Identifier: BSD-3-Clause
"""Weights of 2 to 4 bits against the NumPy oracle, bit for bit; the reference, and tools."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from baraquant.configs import integer_range
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits, to_numpy
from tests.support.calls.int4 import INT4_CALLS, LINEARS, Int4Call
from tests.support.checks.int8_mm import moved
from tests.support.family_cases.torch_tools import Tools
from tests.support.marks import by_dtype
from tests.support.oracle import int4 as oracle

SHAPES = ((5, 7), (16, 64), (3, 100), (9, 33), (1, 1), (4, 300), (7, 128), (0, 5), (5, 0))
SIZES = (2, 10, 32, 64, 128)
by_symmetric = pytest.mark.parametrize("symmetric", (True, False))
by_bits = pytest.mark.parametrize("bits", (2, 3, 4))
by_module = pytest.mark.parametrize("module", (ops, reference), ids=("ops", "reference"))


def weights(shape: tuple[int, int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows and groups of very different size, and special numbers where there is room."""
    rng = torch.Generator().manual_seed(seed)
    w = torch.randn(shape, generator=rng, dtype=torch.float64)
    w *= torch.exp(2 * torch.randn((shape[0], 1), generator=rng, dtype=torch.float64))
    w *= torch.exp(torch.randn((1, shape[1]), generator=rng, dtype=torch.float64))
    if shape[0] > 3 and shape[1] > 6:
        w[1], w[2, :5], w[3] = 0, -w[2, :5].abs(), w[3] * 1e-42
    if shape[0] > 6 and shape[1] > 6:
        w[4, 3], w[5, 4], w[6, 5] = torch.nan, torch.inf, -torch.inf
    return w.to(dtype)


@by_module
@by_symmetric
@by_dtype
@by_bits
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights(shape, bits, dtype, symmetric, module, device) -> None:  # type: ignore[no-untyped-def]
    w, width = weights(shape, dtype), {"bits": bits}
    for size in SIZES:
        chosen = module.choose_int4_qparams(w.to(device), size, symmetric=symmetric, **width)
        expected = oracle.choose(w, size, symmetric, bits)
        assert_all_same(chosen, expected)
        scale, factor, zero_point = chosen
        given = {"group_zero_point": zero_point}
        packed = module.quantize_int4(w.to(device), scale, factor, size, **given, **width)
        u = oracle.quantize(w, expected, size, bits)
        assert_same_bits(packed, oracle.packed(u), "packed")
        w8 = module.expand_int4(packed, factor, size, shape[1], **given)
        exact = oracle.expanded(u, expected, size)
        assert exact.size == 0 or -128 <= exact.min() <= exact.max() <= 127
        assert_same_bits(w8, exact.astype("int8"), "int8")
        assert w8.is_contiguous() and packed.is_contiguous()


@by_module
@by_dtype
@by_bits
def test_given_factors(bits, dtype: torch.dtype, module, device: str) -> None:  # type: ignore[no-untyped-def]
    """All factors with all zero points: what an int8 cannot hold is never chosen."""
    factor = torch.arange(1, 17).repeat_interleave(16).to(torch.uint8).reshape(1, -1)
    zero_point = torch.arange(16).repeat(16).to(torch.uint8).reshape(1, -1)
    w = torch.linspace(-300, 300, 256 * 34, dtype=torch.float64)
    w = w[torch.randperm(w.numel(), generator=cases.generator(1))].reshape(1, -1).to(dtype)
    scale = torch.ones(1, dtype=cases.compute_dtype(dtype))
    q = oracle.Qparams(*(to_numpy(t) for t in (scale, factor, zero_point)))
    u = oracle.quantize(w, q, 34, bits)
    exact = oracle.expanded(u, q, 34)
    assert -128 <= exact.min() < -112 and 112 < exact.max() <= 127 and len(np.unique(u)) == 2**bits
    on = [t.to(device) for t in (w, scale, factor)]
    packed = module.quantize_int4(*on, 34, group_zero_point=zero_point.to(device), bits=bits)
    assert_same_bits(packed, oracle.packed(u))
    w8 = module.expand_int4(packed, on[2], 34, w.shape[1], group_zero_point=zero_point.to(device))
    assert_same_bits(w8, exact.astype("int8"))


@by_module
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pack(shape, module, device) -> None:  # type: ignore[no-untyped-def]
    q = torch.randint(-8, 8, shape, dtype=torch.int8, generator=cases.generator(2))
    packed = module.pack_int4(q.to(device))
    assert_same_bits(packed, oracle.packed((to_numpy(q) + 8).astype("uint8")))
    size = 2 * math.ceil((shape[1] + 1) / 2)
    ones = torch.ones(shape[0], min(shape[1], 1), dtype=torch.uint8, device=device)
    assert torch.equal(module.expand_int4(packed, ones, size, shape[1]), q.to(device))


@by_bits
@by_symmetric
def test_error_is_that_of_the_bits(symmetric: bool, bits: int, device: str) -> None:
    """Of normal weights, against a floating scale for each group: at most a tenth more."""
    w = torch.randn(64, 1024, generator=cases.generator(3)).to(device)
    for size in (32, 64, 128):
        chosen = ops.choose_int4_qparams(w, size, symmetric=symmetric, bits=bits)
        scale, factor, zero_point = chosen
        given = {"group_zero_point": zero_point, "bits": bits}
        packed = ops.quantize_int4(w, scale, factor, size, **given)
        w8 = ops.expand_int4(packed, factor, size, 1024, group_zero_point=zero_point)
        error = (w8 * scale.unsqueeze(1) - w).norm()
        low, high = integer_range(bits)
        of_group = {"quant_min": low, "quant_max": high, "symmetric": symmetric}
        floating = ops.dynamic_fake_quantize_per_group(w, size, **of_group)
        assert error < 1.1 * (floating - w).norm()


def test_a_row_is_that_of_compressed_tensors(device: str) -> None:
    """Eight numbers of four bits in an int32, offset by 8, the first in the lowest bits."""
    q = torch.randint(-8, 8, (6, 64), dtype=torch.int8, generator=cases.generator(4))
    words = (q.long() + 8).reshape(6, 8, 8) << torch.arange(0, 32, 4)
    words = words.sum(2)
    expected = torch.where(words >= 2**31, words - 2**32, words).int()
    assert torch.equal(ops.pack_int4(q.to(device)).view(torch.int32).cpu(), expected)


@pytest.mark.parametrize("layout", ("transposed", "stepped", "misaligned"))
def test_layouts(layout: str, device: str) -> None:
    w = weights((10, 64), torch.float32).nan_to_num(1, 1, 1).to(device)
    laid = cases.LAYOUTS[layout]
    scale, factor, zero_point = ops.choose_int4_qparams(w, 16, symmetric=False)
    given = {"group_zero_point": zero_point}
    packed = ops.quantize_int4(w, scale, factor, 16, **given)
    w8 = ops.expand_int4(packed, factor, 16, 64, **given)
    chosen = ops.choose_int4_qparams(laid(w), 16, symmetric=False)
    assert_all_same(chosen, (scale, factor, zero_point))
    given = {"group_zero_point": laid(zero_point)}
    assert torch.equal(ops.quantize_int4(laid(w), scale, laid(factor), 16, **given), packed)
    assert torch.equal(ops.expand_int4(laid(packed), laid(factor), 16, 64, **given), w8)
    assert torch.equal(ops.pack_int4(laid(w8)), ops.pack_int4(w8))


# --- products: the bits of the op for int8 with the expanded weight -------------------------------

# Inputs, outputs, tokens: rests of packs, of panels and of groups, and more than a block of depth.
PRODUCT_SIZES = (
    *((64, 16, 1), (130, 33, 4), (7, 5, 3), (1, 1, 1), (4097, 17, 2), (300, 40, 17)),
    *((2500, 35, 5), (256, 200, 130), (96, 3, 600), (0, 4, 3), (8, 0, 3), (8, 4, 0)),
    *((160, 21, 3), (4096, 9, 2)),
)
GROUP_SIZES = (32, 64, 128, 2, 34)
OF_INT8 = (ops.int8_linear, ops.quantized_linear, ops.static_quantized_linear)
SIBLINGS: dict[str, Callable[..., Tensor]] = dict(zip(LINEARS, OF_INT8, strict=True))
by_product_size = pytest.mark.parametrize("size", PRODUCT_SIZES, ids=str)


def bytes_of(low: int, high: int, *sizes: int, seed: int) -> Tensor:
    return torch.randint(low, high, sizes, dtype=torch.uint8, generator=cases.generator(seed))


def weight(
    n: int, k: int, size: int, device: str, extreme: bool = False, asymmetric: bool = True
) -> tuple[Tensor, dict[str, Any]]:
    """A packed weight, and its groups; `extreme`: of the largest factors and numbers alone."""
    groups = -(-k // size)
    packed = bytes_of(0, 256, n, (k + 1) // 2, seed=1)
    factor = bytes_of(1, 17, n, groups, seed=2)
    if extreme:
        packed, factor = packed % 2 * 255, torch.full_like(factor, 16)
    found: dict[str, Any] = {"group_factor": factor, "group_size": size}
    if asymmetric:
        zero_point = bytes_of(0, 16, n, groups, seed=3)
        found["group_zero_point"] = torch.full_like(zero_point, 8) if extreme else zero_point
    return packed.to(device), moved(found, device)


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


def expanded(module: Any, packed: Tensor, groups: dict[str, Any], columns: int) -> Tensor:
    result: Tensor = module.expand_int4(packed, in_features=columns, **groups)
    return result


@pytest.mark.parametrize("extreme", (False, True), ids=("any", "extreme"))
@by_product_size
def test_the_bits_of_int8(size: tuple[int, int, int], extreme: bool, device: str) -> None:
    k, n, m = size
    for group_size in GROUP_SIZES:
        for asymmetric in (False, True):
            packed, groups = weight(n, k, group_size, device, extreme, asymmetric)
            w8 = expanded(ops, packed, groups, k)
            assert torch.equal(w8, expanded(reference, packed, groups, k))
            for name, arguments in calls(k, n, m):
                given = moved(arguments, device)
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
        packed, groups = weight(n, k, group_size, device)
        zero_point, factor = groups["group_zero_point"], groups["group_factor"]
        zero_point[::2] = 8
        factor[::6] = 17  # 7 * 17 is an int8, and -8 * 17 is none
        factor[1::6] %= 9  # with any zero point, 0 too
        factor[3, 0], factor[5, -1] = 255, 128
        for given in (groups, {**groups, "group_zero_point": None}):
            w8 = expanded(ops, packed, given, k)
            x = bytes_of(0, 256, m, k, seed=m).view(kind).to(device)
            s, sw = torch.ones(1, device=device), torch.ones(n, device=device)
            got = ops.int4_linear(x, packed, s, sw, **given)
            assert torch.equal(got, ops.int8_linear(x, w8, s, sw)), group_size


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.differentiable], ids=str)
@by_dtype
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
    assert_all_same(*results)
    assert_same_bits(call.function(**given), results[0][0])


def test_gradient_of_the_bias(device: str) -> None:
    for call in (c for c in INT4_CALLS if c.verb in LINEARS and c.full):
        _, given = call.arguments(*call.tensors((4, 6, 34), torch.float32, device))
        bias = given["bias"].requires_grad_()
        call.function(**given).sum().backward()
        assert torch.equal(bias.grad, torch.full_like(bias, 24))


# --- in PyTorch ----------------------------------------------------------------------------------


class TestTools(Tools):
    CALLS, BATCHED = INT4_CALLS, ("input", "input_scale", "input_zero_point")
