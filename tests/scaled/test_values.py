# SPDX-License-Identifier: BSD-3-Clause
"""The scaled ops against the NumPy oracle, bit for bit; the reference too; layouts and shapes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.calls.scaled import SCALED_CALLS
from tests.support.family_cases.layouts import AnyLayout
from tests.support.marks import by_dtype
from tests.support.oracle import scaled as oracle

SHAPES = (
    *((1,), (17,), (3, 8), (5, 7), (64, 48), (129, 200), (2, 3, 33), (257, 16), (16, 1031)),
    *((40, 2064), (0, 5), (5, 0), (1, 1), (2, 0, 3)),
)
Numbers = tuple[int, int] | None  # of a state
RANDOM: tuple[Numbers, ...] = (None, (0, 0), (-(2**63), 2**63 - 1), (123456789012345, 77))
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
by_random = pytest.mark.parametrize("random", RANDOM, ids=("nearest", "zero", "ends", "usual"))
by_module = pytest.mark.parametrize("module", (ops, reference), ids=("ops", "reference"))


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows of very different size, one of zeros, and special numbers where there is room."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    x *= torch.exp(2 * torch.randn((*shape[:-1], 1), generator=rng, dtype=torch.float64))
    flat = x.reshape(-1, shape[-1]) if x.numel() else x
    if x.numel() > 20 and flat.shape[0] > 4:
        flat[2] = 0
        flat[1, 0], flat[3, -1] = -0.0, 1e-42
        if flat.shape[0] > 40:
            flat[5, 3], flat[6, 4], flat[7, 5] = torch.nan, torch.inf, -torch.inf
    return x.to(dtype)


def factors(count: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    compute = cases.compute_dtype(dtype)
    return torch.exp(torch.randn(count, generator=rng, dtype=torch.float64)).to(compute)


def state(random: Numbers, device: str = "cpu") -> Tensor | None:
    return None if random is None else torch.tensor(random, device=device)


def check(
    name: str, x: Tensor, factor: Tensor, random: Numbers, device: str, module: Any = ops
) -> None:
    q, s = getattr(module, name)(x.to(device), factor.to(device), random=state(random, device))
    expected = getattr(oracle, name)(x, factor, random)
    assert_same_bits(s, expected.scale, "scale")
    assert_same_bits(q, expected.values, "integers")
    assert q.is_contiguous() and q.dtype == torch.int8


@by_module
@by_random
@by_dtype
@by_shape
def test_rows_and_columns(shape, dtype, random, module, device) -> None:  # type: ignore[no-untyped-def]
    x = numbers(shape, dtype)
    of_columns = factors(shape[-1], dtype)
    check("scaled_quantize_per_token", x, of_columns, random, device, module)
    of_rows = factors(math.prod(shape[:-1]), dtype).reshape(shape[:-1])
    check("scaled_quantize_transposed", x, of_rows, random, device, module)


@by_dtype
def test_one_number_as_a_row_and_as_a_column(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([3.0, -1.0], dtype=dtype, device=device)
    one = torch.ones((), dtype=cases.compute_dtype(dtype), device=device)
    q, s = ops.scaled_quantize_transposed(x, one)
    assert q.tolist() == [[127], [-127]] and q.shape == (2, 1)
    assert_same_bits(s, (x.to(one.dtype).abs() / torch.tensor(127.0).to(one)))
    q, s = ops.scaled_quantize_transposed(x, one.reshape(1))
    assert q.tolist() == [[127], [-127]]


TRANSPOSED = ((1, 1), (3, 5), (16, 16), (64, 65), (128, 128), (129, 257), (200, 64), (300, 31))


@pytest.mark.parametrize("shape", (*TRANSPOSED, (0, 4), (4, 0), (0, 0)), ids=str)
def test_transpose(shape: tuple[int, int], device: str) -> None:
    x = torch.randint(-128, 128, shape, dtype=torch.int8, device=device)
    for given in (x, x.flip(0), x[:, ::2], x.t(), x[:1].expand(shape) if shape[0] else x):
        for function in (ops.transpose_int8, reference.transpose_int8):
            y = function(given)
            assert torch.equal(y, given.t()) and y.is_contiguous()
    y = ops.transpose_int8(x.t())
    if x.numel():
        assert y.data_ptr() != x.data_ptr(), "a new tensor, also where nothing has to move"


@pytest.mark.exhaustive
@by_dtype
@by_random
def test_scales_that_are_extreme(dtype, random, device) -> None:  # type: ignore[no-untyped-def]
    """Subnormal and huge numbers, so that no fast way of dividing may be taken."""
    compute = cases.compute_dtype(dtype)
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    rng = torch.Generator().manual_seed(4)
    base = torch.rand((6, 32), generator=rng, dtype=torch.float64) * 2 - 1
    sizes = torch.tensor([tiny, tiny * 64, 1e-12, 1.0, huge / 300, huge], dtype=torch.float64)
    x = (base * sizes[:, None]).to(dtype)
    for power in (0, -100, 100, -30):
        f, g = (torch.full((count,), 2.0**power, dtype=compute) for count in (32, 6))
        check("scaled_quantize_per_token", x, f, random, device)
        check("scaled_quantize_transposed", x, g, random, device)


# --- layouts -------------------------------------------------------------------------------------


class TestAnyLayout(AnyLayout):
    CALLS = SCALED_CALLS[:4]  # those that quantize
    test_gradients_of_another_layout = None  # integers have none


def test_shapes_of_the_factor(device: str) -> None:
    """With a last 1 for rows, or without."""
    x = torch.randn(6, 4, 20, device=device)
    factor = torch.rand(6, 4, device=device) + 0.5
    assert_all_same(*(ops.scaled_quantize_transposed(x, f) for f in (factor, factor[..., None])))
