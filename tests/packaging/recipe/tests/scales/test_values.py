# SPDX-License-Identifier: BSD-3-Clause
"""round_to_power_of_two_scale: every number of 16 bits, gradients, tools, wrong arguments."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.bad_arguments.affine import Bad, got, to_dtype
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import FLOAT_DTYPES, name_of

NAME = "round_to_power_of_two_scale"
rounded = ops.round_to_power_of_two_scale
by_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=name_of)

# --- right calls and wrong ones, which the tests of all families find here ------------------------


@dataclass(frozen=True)
class Op:
    """One right call."""

    dtype: torch.dtype
    name = NAME
    number = False

    def __str__(self) -> str:
        return f"{self.name}-{name_of(self.dtype)}"

    def arguments(self, device: str) -> dict[str, Any]:
        return {"scale": torch.ones(4, 6, dtype=self.dtype, device=device)}

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


def wrong_calls() -> Iterator[Bad]:
    integers = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
    others = (torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)
    for dtype in (*integers, *others):
        yield Bad("scale", name_of(dtype), to_dtype("scale", dtype), TypeError, got(dtype))


OPS = [Op(dtype) for dtype in FLOAT_DTYPES]
PAIRS = [(op, bad) for op in OPS for bad in wrong_calls()]


# --- values --------------------------------------------------------------------------------------


def numbers(dtype: torch.dtype) -> Tensor:
    """All of them, or powers of two, their neighbours, those of the roots between, and bits."""
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    whole = torch.int32 if dtype == torch.float32 else torch.int64
    info = torch.finfo(dtype)
    exponents = torch.arange(-1080, 1024, dtype=torch.float64)
    around = torch.cat([torch.exp2(exponents), torch.exp2(exponents + 0.5)]).to(dtype)
    bits = torch.randint(
        torch.iinfo(whole).min, torch.iinfo(whole).max, (4096,), generator=cases.generator(0)
    )
    ends = torch.tensor([info.max, info.tiny, torch.inf, torch.nan, 0.0], dtype=dtype)
    near = torch.cat([around, ends]).view(whole)
    found = torch.cat([near, near - 1, near + 1, bits.to(whole)]).view(dtype)
    return torch.cat([found, -found])


def oracle(x: Tensor) -> np.ndarray:
    """By the square of the fraction as a whole number, which is exact."""
    values, limit = to_numpy(x), np.frexp(torch.finfo(x.dtype).max)[1] - 1
    kept = ~np.isfinite(values) | (values == 0)
    fraction, exponent = np.frexp(np.where(kept, 1, values).astype(np.float64))
    wholes = [int(f * 2.0**53) for f in np.abs(fraction).ravel()]
    below = np.array([w**2 < 2**105 for w in wholes], dtype=bool).reshape(values.shape)
    powers = np.ldexp(1.0, np.minimum(exponent - below, limit))
    return np.where(kept, values, np.where(fraction < 0, -powers, powers)).astype(values.dtype)


@by_dtype
def test_values(dtype: torch.dtype, device: str) -> None:
    x = numbers(dtype)
    assert_same_bits(rounded(x.to(device)), oracle(x))


@by_dtype
def test_reference(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    assert_same_bits(reference.round_to_power_of_two_scale(x), oracle(x))


@by_dtype
def test_layouts(dtype: torch.dtype, any_device: str) -> None:
    """Any strides, no dimensions, no elements; the result is contiguous, on Meta as well."""
    x = torch.rand(6, 10, generator=cases.generator(0)).to(dtype)
    for view in (x, x.T, x[:, ::2], x[0, 0], x[:0], x[0].expand(3, 10)):
        y = rounded(view.to(any_device))
        assert y.shape == view.shape and y.dtype == dtype and y.is_contiguous()
        if any_device != "meta":
            assert_same_bits(y, oracle(view))


# --- gradients and tools -------------------------------------------------------------------------


@by_dtype
def test_the_gradient_goes_straight_through(dtype: torch.dtype, device: str) -> None:
    x, dy = torch.rand(2, 5, 7, generator=cases.generator(0)).to(device, dtype)
    for function in (rounded, reference.round_to_power_of_two_scale):
        leaf = x.clone().requires_grad_()
        assert torch.equal(torch.autograd.grad(function(leaf), leaf, dy)[0], dy)


def test_second_gradient(device: str) -> None:
    x = torch.full((3,), 1.5, device=device, requires_grad=True)
    (dx,) = torch.autograd.grad(rounded(x).square().sum(), x, create_graph=True)
    assert torch.autograd.grad(dx.sum(), x)[0].eq(2).all()


def test_opcheck(device: str) -> None:
    op = getattr(torch.ops.baraquant, NAME).default
    torch.library.opcheck(op, (torch.rand(3, 5, device=device, requires_grad=True),))


@pytest.mark.parametrize("dynamic", (False, True))
def test_compile(dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(rounded, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size in (5, 6):
        x = torch.rand(size, device=device, requires_grad=True)
        y = compiled(x)
        assert torch.equal(y, rounded(x))
        assert torch.autograd.grad(y.sum(), x)[0].eq(1).all()


@pytest.mark.filterwarnings("error")
def test_vmap(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Along any dimension, and until a sample has none left."""
    x = torch.rand(4, 5, device=device)
    for dim in (0, 1):
        assert torch.equal(torch.vmap(rounded, dim)(x), rounded(x.movedim(dim, 0)))
    assert torch.equal(torch.vmap(torch.vmap(rounded))(x), rounded(x))
    leaf = x.clone().requires_grad_()
    assert torch.autograd.grad(torch.vmap(rounded)(leaf).sum(), leaf)[0].eq(1).all()
    assert "batching rule" not in capfd.readouterr().err, "PyTorch's warning of a slow loop"


def test_autocast_leaves_scales_alone(device: str) -> None:
    with torch.autocast(device, torch.bfloat16):
        assert rounded(torch.rand(3, device=device)).dtype == torch.float32
