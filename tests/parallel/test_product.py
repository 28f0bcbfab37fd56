# SPDX-License-Identifier: BSD-3-Clause
"""The two halves of a product on several processes, beside the op of one process."""

from __future__ import annotations

import pytest
import torch

from baraquant import ops
from baraquant.parallel._product import _int32_product, rescale
from tests.support import cases

DEPTHS = {"float32 holds the sums": 24, "float64 does": 3000}


@pytest.mark.exhaustive
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("tokens", [0, 1, 37])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_sum_of_parts_gives_the_bits_of_the_op(
    dtype: torch.dtype,
    symmetric: bool,
    bias: bool,
    tokens: int,
    depth: str,
    parts: int,
    device: str,
) -> None:
    k, n, random = DEPTHS[depth], 29, cases.generator(0)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randint(-128, 128, (tokens, k), dtype=torch.int8, generator=random)
    w = torch.randint(-128, 128, (n, k), dtype=torch.int8, generator=random)
    x[:1], w[:1] = -128, -128  # the largest sum
    zero = torch.randint(-128, 128, (tokens, 1), dtype=torch.int32, generator=random)
    scale = torch.rand(tokens, 1, dtype=compute, generator=random) * 0.01
    weight_scale = torch.rand(n, dtype=compute, generator=random) * 0.01
    added = torch.randn(n, dtype=compute, generator=random) * 30
    scale[1:2], scale[2:3] = float("nan"), float("inf")
    x, w, zero, scale, weight_scale, added = (
        tensor.to(device) for tensor in (x, w, zero, scale, weight_scale, added)
    )
    given_zero, given_bias = None if symmetric else zero, added if bias else None
    expected = ops.int8_linear(
        x, w, scale, weight_scale, given_bias, input_zero_point=given_zero, dtype=dtype
    )
    most = 128 * 128 * (1 if symmetric else 2)
    pairs = zip(x.chunk(parts, 1), w.chunk(parts, 1), strict=True)
    sums = [
        _int32_product(a.contiguous(), b.contiguous(), given_zero, None, most) for a, b in pairs
    ]
    total = torch.stack(sums).sum(0, dtype=torch.int32)
    shift = torch.zeros_like(zero) if symmetric else zero
    exact = (x.cpu().long() - shift.cpu().long()) @ w.cpu().long().t()
    assert torch.equal(total.cpu().long(), exact)
    ours = rescale(total, scale, weight_scale, given_bias, dtype)
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ours.signbit() & ~ours.isnan(), expected.signbit() & ~expected.isnan())


def test_one_scale_for_all_tokens(device: str) -> None:
    sums = torch.tensor([[3, -5], [1 << 30, -(1 << 31)]], dtype=torch.int32, device=device)
    scale, weight_scale = torch.tensor(0.5, device=device), torch.tensor([2.0, 4.0], device=device)
    bias = torch.tensor([1.0, -1.0], device=device)
    y = rescale(sums, scale, weight_scale, bias, torch.float32)
    assert y.tolist() == [[4.0, -11.0], [2.0**30, -(2.0**32)]]
