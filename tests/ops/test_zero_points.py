# SPDX-License-Identifier: BSD-3-Clause
"""In every product a zero point that the integers of the input cannot be counts as the nearest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases

T, K, N = 3, 64, 32
POINTS = (-(2**63), -(2**40), cases.INT32_MIN, -300, -129, -1, 256, 300, cases.INT32_MAX, 2**40)
# Of the integers and a zero point for all: the result.
Product = Callable[[Tensor, Tensor], Tensor]


def random(*sizes: int, dtype: torch.dtype = torch.int8) -> Tensor:
    ends = torch.iinfo(dtype)
    drawn = torch.randint(ends.min, ends.max + 1, sizes, generator=cases.generator(len(sizes)))
    return drawn.to(dtype)


def on(q: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.to(q.device) for t in tensors)


def scales(q: Tensor, *sizes: int) -> Tensor:
    return torch.full(sizes, 0.25, device=q.device)


def of_linear(q: Tensor, z: Tensor) -> Tensor:
    (w,) = on(q, random(N, K))
    return ops.int8_linear(q, w, scales(q), scales(q, N), input_zero_point=z)


def of_tokens(q: Tensor, z: Tensor) -> Tensor:
    (w,) = on(q, random(N, K))
    return ops.int8_linear(
        q, w, scales(q, T), scales(q, N), scales(q, N), input_zero_point=z.expand(T).contiguous()
    )


def of_sums(q: Tensor, z: Tensor) -> Tensor:
    (w,) = on(q, random(N, K))
    return ops.int8_product(q, w, input_zero_point=z, weight_sum=w.sum(1, dtype=torch.int32))


def of_groups(q: Tensor, z: Tensor) -> Tensor:
    w, offsets = on(q, random(2, N, K), torch.tensor([1, T], dtype=torch.int32))
    return ops.int8_grouped_linear(q, w, offsets, scales(q), scales(q, 2, N), input_zero_point=z)


def of_smoothquant(q: Tensor, z: Tensor) -> Tensor:
    (w,) = on(q, random(N, K))
    return ops.smoothquant_linear(q, w, scales(q, N), scales(q), act_zero_point=z)


def of_convolution(q: Tensor, z: Tensor) -> Tensor:
    (w,) = on(q, random(N, K // 4, 3))
    return ops.int8_conv(
        q.reshape(T, K // 4, 4), w, scales(q), scales(q, N), input_zero_point=z, padding=1
    )


def of_four_bits(q: Tensor, z: Tensor) -> Tensor:
    packed, f = on(q, random(N, K // 2, dtype=torch.uint8), torch.ones(N, 2, dtype=torch.uint8))
    return ops.int4_linear(q, packed, scales(q), scales(q, N), f, 32, input_zero_point=z)


PRODUCTS: dict[str, Product] = {
    "int8_linear": of_linear,
    "per_token": of_tokens,
    "int8_product": of_sums,
    "int8_grouped_linear": of_groups,
    "smoothquant_linear": of_smoothquant,
    "int8_conv": of_convolution,
    "int4_linear": of_four_bits,
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", cases.INTEGER_DTYPES, ids=cases.name_of)
def test_the_nearest_counts(name: str, dtype: torch.dtype, device: str) -> None:
    q, ends = random(T, K, dtype=dtype).to(device), torch.iinfo(dtype)
    for point in POINTS:
        wrong = torch.tensor(point, device=device)
        nearest = torch.tensor(min(max(point, ends.min), ends.max), device=device)
        assert torch.equal(PRODUCTS[name](q, wrong), PRODUCTS[name](q, nearest)), point


@pytest.mark.parametrize("dtype", cases.INTEGER_DTYPES, ids=cases.name_of)
def test_a_number_is_refused(dtype: torch.dtype, any_device: str) -> None:
    q, ends = random(T, K, dtype=dtype).to(any_device), torch.iinfo(dtype)
    w = random(N, K).to(any_device)
    for point in (ends.min - 1, ends.max + 1, 2**40, -(2**63)):
        message = rf"expected act_zero_point to lie in \[{ends.min}, {ends.max}\] .*got {point}$"
        with pytest.raises(ValueError, match=message):
            ops.smoothquant_linear(q, w, scales(w, N), 0.1, act_zero_point=point)
