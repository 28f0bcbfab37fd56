# SPDX-License-Identifier: BSD-3-Clause
"""Values of the fused family, bit for bit, on every device: the oracle, the parts, the reference.

An op that quantizes is its float op followed by dynamic_range_quantize_per_token. Any strides give
the values of the contiguous copy, contiguous; Meta says so too.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.calls.fused import FLOAT_CALLS, QUANTIZE_CALLS
from tests.support.family_cases.fused import ACTIVATION_DTYPES, LENGTHS, LONG_LENGTHS, hostile, rows
from tests.support.family_cases.layouts import AnyLayout
from tests.support.marks import by_dtype
from tests.support.oracle import fused as oracle

by_activation_dtype = pytest.mark.parametrize("dtype", ACTIVATION_DTYPES, ids=cases.name_of)
NO_VECTORS = {"rms_norm": (None,), "layer_norm": (None, None)}  # without a weight and a bias
by_base = pytest.mark.parametrize("base", NO_VECTORS)
by_wide_dtype = pytest.mark.parametrize(
    "dtype", (torch.float32, torch.bfloat16, torch.float64), ids=cases.name_of
)
SCHEMES: tuple[dict[str, Any], ...] = (
    {},
    {"symmetric": False},
    {"symmetric": False, "quant_min": 0, "quant_max": 255, "dtype": torch.uint8},
    {"quant_min": -8, "quant_max": 7},
    {"quant_min": 0, "quant_max": 200, "dtype": torch.uint8},
)
ACTIVATIONS = (("silu_mul", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"}))


def check_quantized(
    name: str, args: tuple[Any, ...], y: Tensor, *sums: Tensor, **kwargs: Any
) -> None:
    """Of every scheme, from the results of the float op."""
    quantize = getattr(ops, f"{name}_quantize_per_token")
    for scheme in SCHEMES:
        ends = scheme.get("quant_min", -128), scheme.get("quant_max", 127)
        mode = {k: v for k, v in scheme.items() if k in ("symmetric", "dtype")}
        expected = ops.dynamic_range_quantize_per_token(y, *ends, **mode)
        found = quantize(*args, **kwargs, **scheme)
        assert_all_same(found, (*expected, *sums), f"{name} {tuple(y.shape)} {scheme}")


def check_norm(
    base: str,
    x: Tensor,
    device: str,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    centered, eps = base == "layer_norm", 1e-5
    total = oracle.added(x, residual)
    expected = oracle.norm(total, weight, bias if centered else None, eps, centered)
    args = (*cases.to(device, x, weight, *((bias,) if centered else ())), eps)
    given = {} if residual is None else {"residual": residual.to(device)}
    results = outputs(getattr(ops, base)(*args, **given))
    wanted = (expected,) if residual is None else (expected, total)
    assert_all_same(results, wanted, f"{base} {tuple(x.shape)} {x.dtype} {given.keys()}")
    check_quantized(base, args, *results, **given)


def vectors(length: int, dtype: torch.dtype, seed: int) -> tuple[Tensor | None, Tensor | None]:
    """A weight and a bias in every combination of presence and dtype."""
    dtypes = oracle.weight_dtypes(dtype)
    weight = rows((length,), dtypes[seed % len(dtypes)], seed, "plain")
    bias = rows((length,), dtypes[seed // 2 % len(dtypes)], seed + 1, "plain")
    return (weight if seed % 4 != 3 else None), (bias if seed % 3 != 2 else None)


LONG = [pytest.param(length, marks=pytest.mark.exhaustive) for length in LONG_LENGTHS]


@by_base
@by_dtype
@pytest.mark.parametrize("length", (*LENGTHS, *LONG))
def test_norm_of_every_length(length: int, dtype: torch.dtype, base: str, device: str) -> None:
    for count in (1, 2, 19) if length < 1000 else (3, 4):
        seed = length + count
        x, residual = rows((count, length), dtype, seed), rows((count, length), dtype, seed + 1)
        check_norm(base, x, device, *vectors(length, dtype, seed), residual if seed % 2 else None)


@pytest.mark.exhaustive
@by_base
@by_dtype
def test_norm_of_hostile_values(dtype: torch.dtype, base: str, device: str) -> None:
    x = hostile(dtype)
    check_norm(base, x, device, *vectors(40, dtype, 0))
    check_norm(base, x, device, *vectors(40, dtype, 0), x.flip(0))


@by_base
@by_wide_dtype
@pytest.mark.parametrize("length", (48, 1000, 4096, 9001))
def test_norm_of_large_rows(length: int, dtype: torch.dtype, base: str, device: str) -> None:
    """Finite rows whose sums of squares leave the range of float32, but whose means do not."""
    for size in (1e18, 1.7e19, 1e-18):
        x = (rows((3, length), dtype, character="plain").double().clamp(-1, 1) * size).to(dtype)
        check_norm(base, x, device, *vectors(length, dtype, 0))
        y = getattr(ops, base)(x.to(device), *NO_VECTORS[base], 0.0)
        exact = x.double()
        exact = exact - exact.mean(-1, keepdim=True) if base == "layer_norm" else exact
        exact = exact / exact.square().mean(-1, keepdim=True).sqrt()
        torch.testing.assert_close(y.cpu().double(), exact, rtol=0.02, atol=0.02)


@by_base
@by_wide_dtype
@pytest.mark.parametrize("length", (4, 1000, 9001))
def test_norm_of_the_largest_rows(length: int, dtype: torch.dtype, base: str, device: str) -> None:
    """Results are finite also where the mean square is not, or the distance from the mean."""
    largest = torch.finfo(dtype).max
    x = torch.full((3, length), -largest, dtype=dtype)
    x[0, 0], x[1] = largest, largest
    x[2] = rows((1, length), dtype, character="plain").sign() * (largest**0.5 * 1e3)
    check_norm(base, x, device, *vectors(length, dtype, 0))
    assert getattr(ops, base)(x.to(device), *NO_VECTORS[base], 1e-5).isfinite().all()


@by_activation_dtype
@pytest.mark.parametrize(("name", "options"), ACTIVATIONS, ids=["silu_mul", "gelu", "tanh"])
def test_activations(name: str, options: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    many = hostile(dtype)
    pairs = [(many, many.flip(0))]
    for seed, shape in enumerate((3, length) for length in (1, 5, 16, 33, 513, 4099)):
        spiked, plain = rows(shape, dtype, seed, "spiked"), rows(shape, dtype, seed + 1, "plain")
        pairs.append((spiked * 4, plain))
    for pair in pairs:
        inputs = pair[: 1 + (name == "silu_mul")]
        args = tuple(t.to(device) for t in inputs)
        y = getattr(ops, name)(*args, **options)
        assert_same_bits(y, getattr(reference, name)(*inputs, **options), f"{name} {options}")
        check_quantized(name, args, y, **options)


LONG_BLOCKS = [pytest.param(b, marks=pytest.mark.exhaustive) for b in (8192, 16384, 32768)]


@by_dtype
@pytest.mark.parametrize("block", [*(2**i for i in range(13)), *LONG_BLOCKS])
def test_rotation(block: int, dtype: torch.dtype, device: str) -> None:
    inputs = [rows((2, blocks * block), dtype, block) for blocks in (1, 3 if block < 1024 else 2)]
    for x in (*inputs, *([hostile(dtype)] if block == 8 else [])):
        y = ops.hadamard(x.to(device), block)
        assert_same_bits(y, oracle.hadamard(x, block), f"block {block}")
        check_quantized("hadamard", (x.to(device), block), y)


# --- by hand -------------------------------------------------------------------------------------


def test_order_of_a_sum_by_hand() -> None:
    """Numbers of which every order gives another sum."""
    big = 2.0**53
    assert oracle.sum_of_rows(np.array([1.0, big, -big])).item() == 0.0  # (1 + big) + (-big + 0)
    assert oracle.sum_of_rows(np.array([big, -big, 1.0])).item() == 1.0
    assert oracle.sum_of_rows(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).item() == 15.0
    long = np.zeros(4096 + 4)
    long[[0, 1, 4096, 4097]] = [big, 1.0, -big, 1.0]  # lane 0: big - big, lane 1: 1 + 1
    assert oracle.sum_of_rows(long).item() == 2.0


@pytest.mark.parametrize("block", [1, 2, 4, 16, 64])
def test_rotation_is_sylvesters_matrix(block: int, device: str) -> None:
    signs = [[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    x = torch.randint(-9, 9, (5, 2 * block), generator=cases.generator(block)).double()
    matrix = torch.tensor(signs).double() / math.sqrt(block)
    expected = (x.unflatten(-1, (-1, block)) @ matrix).flatten(-2)
    torch.testing.assert_close(ops.hadamard(x.to(device), block).cpu(), expected)


# --- layouts -------------------------------------------------------------------------------------


class TestAnyLayout(AnyLayout):
    CALLS, SHAPE = (*FLOAT_CALLS, *QUANTIZE_CALLS), (4, 6, 5, 8)
    test_gradients_of_another_layout = None  # sums: test_gradients.py


@pytest.mark.parametrize("dtype", ACTIVATION_DTYPES, ids=cases.name_of)
def test_a_chunk_is_not_copied(dtype: torch.dtype, device: str) -> None:
    """One kernel for `silu_mul(*x.chunk(2, -1))`, aligned or not."""
    for length in (64, 33):
        x = torch.zeros(4, 5, 2 * length, dtype=dtype, device=device)
        plans = baraquant.plan(ops.silu_mul_quantize_per_token, *x.chunk(2, -1))
        assert [p.name.removesuffix("_rows") for p in plans] == ["silu_mul_quantize"]
