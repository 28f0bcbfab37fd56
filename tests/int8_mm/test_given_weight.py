# SPDX-License-Identifier: BSD-3-Clause
"""qat_linear of a weight whose integers are given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.marks import by_dtype, by_mode
from tests.support.oracle import int8_mm as oracle

by_backward = pytest.mark.parametrize("backward", ("float", "int8_input", "int8"))


def layer_of(dtype: torch.dtype, device: str, n: int = 24, k: int = 40) -> tuple[Tensor, ...]:
    gen = cases.generator(11)
    shapes = (3, 5, k), (n, k), (n,), (3, 5, n)
    return tuple(
        torch.randn(shape, generator=gen, dtype=torch.float64).to(device, dtype) for shape in shapes
    )


def gradients(
    function: Callable[..., Tensor], tensors: tuple[Tensor, ...], **options: Any
) -> list[Tensor]:
    *leaves, dy = (tensor.detach().clone().requires_grad_() for tensor in tensors)
    y = function(*leaves, **options)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.detach())]


@by_dtype
@by_backward
@by_mode
def test_the_own_integers_change_no_bit(
    dtype: torch.dtype, backward: str, symmetric: bool, device: str
) -> None:
    tensors = layer_of(dtype, device)
    q, s, _ = ops.dynamic_range_quantize_per_channel(tensors[1], 0)
    options = {"symmetric": symmetric, "backward": backward}
    wanted = gradients(ops.qat_linear, tensors, **options)
    found = gradients(ops.qat_linear, tensors, qweight=q, weight_scale=s, **options)
    for got, right in zip(found, wanted, strict=True):
        assert got.dtype == dtype and torch.equal(got, right) and got.any()


@by_dtype
@by_backward
def test_other_integers_replace_the_weight(dtype: torch.dtype, backward: str, device: str) -> None:
    """The values of the weight play no part: not even those that are not finite."""
    x, weight, bias, dy = layer_of(dtype, device)
    q = torch.randint(-128, 128, weight.shape, generator=cases.generator(5), dtype=torch.int8)
    s = cases.scales((len(q),), cases.compute_dtype(dtype), 6)
    given = {"qweight": q.to(device), "weight_scale": s.to(device)}
    expected = oracle.qat_linear(x.cpu(), weight.cpu(), bias.cpu(), qweight=q, weight_scale=s)
    tensors = x, torch.full_like(weight, float("nan")), bias, dy
    y, dx, dw, db = gradients(ops.qat_linear, tensors, backward=backward, **given)
    assert_same_bits(y, expected)
    assert all(one.isfinite().all() for one in (y, dx, dw, db))
    # Through the rounding of the input the gradient is that of a served layer.
    x.requires_grad_()
    served = ops.quantized_linear(x, given["qweight"], given["weight_scale"], bias)
    (right,) = torch.autograd.grad(served, x, dy)
    if backward == "float":
        assert torch.equal(dx, right)
    else:
        torch.testing.assert_close(dx, right, rtol=0.05, atol=0.05 * float(right.abs().max()))


def test_twice(device: str) -> None:
    """A second derivative goes through the weight as if it were not rounded."""
    tensors = layer_of(torch.float64, device, 6, 10)
    q, s, _ = ops.dynamic_range_quantize_per_channel(tensors[1], 0)
    found = []
    for given in ({}, {"qweight": q, "weight_scale": s}):
        x, weight, bias, dy = (tensor.detach().clone().requires_grad_() for tensor in tensors)
        y = ops.qat_linear(x, weight, bias, **given)
        (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), (weight, dy)))
    for got, right in zip(*found, strict=True):
        assert torch.equal(got, right) and got.any()


def test_autocast_leaves_the_integers(device: str) -> None:
    x, weight, bias, _ = layer_of(torch.float32, device)
    q, s, _ = ops.dynamic_range_quantize_per_channel(weight, 0)
    with torch.autocast(device, torch.bfloat16):
        y = ops.qat_linear(x, weight, bias, qweight=q, weight_scale=s)
    low = x.bfloat16()
    assert torch.equal(y, ops.qat_linear(low, weight, bias, qweight=q, weight_scale=s))
    assert torch.equal(y, ops.quantized_linear(low, q, s, bias))


BAD = {
    "qweight alone": ({"weight_scale": None}, ValueError, "or neither, but got qweight alone"),
    "scale alone": ({"qweight": None}, ValueError, "or neither, but got weight_scale alone"),
    "uint8": ({"qweight": lambda q: q.view(torch.uint8)}, TypeError, "qweight to be torch.int8"),
    "transposed": ({"qweight": lambda q: q.t()}, ValueError, "qweight to have the shape of weight"),
    "strided": ({"qweight": lambda q: q.t().contiguous().t()}, ValueError, "to be contiguous"),
    "too few": ({"qweight": lambda q: q[1:]}, ValueError, "qweight to have the shape of weight"),
    "on meta": ({"qweight": lambda q: q.to("meta")}, ValueError, "qweight to be on cpu"),
    "sparse": ({"qweight": lambda q: q.to_sparse()}, TypeError, "qweight to be a dense"),
    "half": ({"weight_scale": lambda s: s.half()}, TypeError, "weight_scale to be torch.float32"),
    "double": ({"weight_scale": lambda s: s.double()}, TypeError, "compute type"),
    "column": ({"weight_scale": lambda s: s[:, None]}, ValueError, r"shape \[24\]"),
    "learned": (
        {"weight_scale": lambda s: s.clone().requires_grad_()},
        NotImplementedError,
        "weight_scale to be a constant",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("learns", (True, False), ids=("recorded", "plain"))
def test_errors(case: str, learns: bool) -> None:
    x, weight, bias, _ = layer_of(torch.float32, "cpu")
    q, s, _ = ops.dynamic_range_quantize_per_channel(weight, 0)
    weight.requires_grad_(learns)
    change, error, words = BAD[case]
    given = {"qweight": q, "weight_scale": s}
    given |= {name: how and how(given[name]) for name, how in change.items()}
    with pytest.raises(error, match=f"qat_linear: expected .*{words}"):
        ops.qat_linear(x, weight, bias, **given)
