# SPDX-License-Identifier: BSD-3-Clause
"""Weights of four bits against the NumPy oracle, bit for bit; the reference too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.oracle import int4 as oracle

SHAPES = ((5, 7), (16, 64), (3, 100), (9, 33), (1, 1), (4, 300), (7, 128), (0, 5), (5, 0))
SIZES = (2, 10, 32, 64, 128)
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_symmetric = pytest.mark.parametrize("symmetric", (True, False))
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
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights(shape, dtype, symmetric, module, device) -> None:  # type: ignore[no-untyped-def]
    w = weights(shape, dtype)
    for size in SIZES:
        scale, factor, zero_point = module.choose_int4_qparams(
            w.to(device), size, symmetric=symmetric
        )
        expected = oracle.choose(w, size, symmetric)
        assert_same_bits(scale, expected.scale, "scale")
        assert_same_bits(factor, expected.factor, "factor")
        assert_same_bits(zero_point, expected.zero_point, "zero point")
        given = {"group_zero_point": zero_point}
        packed = module.quantize_int4(w.to(device), scale, factor, size, **given)
        u = oracle.quantize(w, expected, size)
        assert_same_bits(packed, oracle.packed(u), "packed")
        w8 = module.expand_int4(packed, factor, size, shape[1], **given)
        exact = oracle.expanded(u, expected, size)
        assert exact.size == 0 or -128 <= exact.min() <= exact.max() <= 127
        assert_same_bits(w8, exact.astype("int8"), "int8")
        assert w8.is_contiguous() and packed.is_contiguous()


@by_module
@by_dtype
def test_given_factors(dtype: torch.dtype, module, device: str) -> None:  # type: ignore[no-untyped-def]
    """All factors with all zero points: what an int8 cannot hold is never chosen."""
    factor = torch.arange(1, 17).repeat_interleave(16).to(torch.uint8).reshape(1, -1)
    zero_point = torch.arange(16).repeat(16).to(torch.uint8).reshape(1, -1)
    w = torch.linspace(-300, 300, 256 * 34, dtype=torch.float64)
    w = w[torch.randperm(w.numel(), generator=cases.generator(1))].reshape(1, -1).to(dtype)
    scale = torch.ones(1, dtype=cases.compute_dtype(dtype))
    q = oracle.Qparams(*(to_numpy(t) for t in (scale, factor, zero_point)))
    u = oracle.quantize(w, q, 34)
    exact = oracle.expanded(u, q, 34)
    assert -128 <= exact.min() < -112 and 112 < exact.max() <= 127
    on = [t.to(device) for t in (w, scale, factor)]
    packed = module.quantize_int4(*on, 34, group_zero_point=zero_point.to(device))
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


@by_symmetric
def test_error_is_that_of_four_bits(symmetric: bool, device: str) -> None:
    """Of normal weights, against a floating scale for each group: at most a tenth more."""
    w = torch.randn(64, 1024, generator=cases.generator(3)).to(device)
    for size in (32, 64, 128):
        scale, factor, zero_point = ops.choose_int4_qparams(w, size, symmetric=symmetric)
        packed = ops.quantize_int4(w, scale, factor, size, group_zero_point=zero_point)
        w8 = ops.expand_int4(packed, factor, size, 1024, group_zero_point=zero_point)
        error = (w8 * scale.unsqueeze(1) - w).norm()
        of_group = {"quant_min": -8, "quant_max": 7, "symmetric": symmetric}
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
    laid = {
        "transposed": lambda t: t.t().contiguous().t(),
        "stepped": lambda t: t.repeat_interleave(2, 1)[:, ::2],
        "misaligned": lambda t: torch.cat((t.new_zeros(1), t.flatten()))[1:].reshape(t.shape),
    }[layout]
    scale, factor, zero_point = ops.choose_int4_qparams(w, 16, symmetric=False)
    given = {"group_zero_point": zero_point}
    packed = ops.quantize_int4(w, scale, factor, 16, **given)
    w8 = ops.expand_int4(packed, factor, 16, 64, **given)
    for value, expected in zip(
        ops.choose_int4_qparams(laid(w), 16, symmetric=False),
        (scale, factor, zero_point),
        strict=True,
    ):
        assert torch.equal(value, expected)
    given = {"group_zero_point": laid(zero_point)}
    assert torch.equal(ops.quantize_int4(laid(w), scale, laid(factor), 16, **given), packed)
    assert torch.equal(ops.expand_int4(laid(packed), laid(factor), 16, 64, **given), w8)
    assert torch.equal(ops.pack_int4(laid(w8)), ops.pack_int4(w8))
