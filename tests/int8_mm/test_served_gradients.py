# SPDX-License-Identifier: BSD-3-Clause
"""Served products pass on the gradient that the trained layer has: the contract's rule, to the bit.

dx = inside ? dy @ w^ : 0        w^ = C(w) * sw, rounded to the input's dtype
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import ops, reference
from baraquant.nn import FakeQuantizedLinear
from tests.support import cases
from tests.support.family_cases.int8_mm import clipped
from tests.support.served_products import K, N, Served, by_kind, example

LEADS = ((), (5,), (2, 3), (1, 2, 2), (0,), (2, 0))
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


@by_dtype
@by_kind
def test_the_rule_bit_for_bit(kind: str, dtype: torch.dtype, device: str) -> None:
    served = Served(kind, dtype, device)
    for lead in LEADS:
        x, dy = example(served, lead)
        y = served(x)
        with torch.no_grad():
            assert torch.equal(y, served(x)), "recording changes no value"
        (dx,) = torch.autograd.grad(y, x, dy)
        assert dx.dtype == dtype and dx.shape == x.shape
        assert torch.equal(dx, served.rule(x, dy)), f"{lead}"
        ratio = served.inside(x).float().mean().item() if x.numel() else 0.5
        assert ratio == 1 if kind == "symmetric" and x.numel() else 0 < ratio < 1


@by_dtype
@by_kind
def test_reference_has_the_same(kind: str, dtype: torch.dtype, device: str) -> None:
    served = Served(kind, dtype, device)
    for lead in LEADS:
        x, dy = example(served, lead)
        bias = torch.randn(N, device=device, dtype=dtype, requires_grad=True)
        actual, expected = (
            torch.autograd.grad(served.call(module, x, bias), (x, bias), dy)
            for module in (ops, reference)
        )
        assert torch.equal(actual[0], expected[0])
        torch.testing.assert_close(actual[1], expected[1])


# --- the trained layer ---------------------------------------------------------------------------


def trained_layers(
    symmetric: bool, static: bool, dtype: torch.dtype, device: str
) -> FakeQuantizedLinear:
    torch.manual_seed(0)
    config = baraquant.W8A8Static(symmetric=symmetric) if static else baraquant.W8A8(symmetric)
    layer = FakeQuantizedLinear(K, N, config=config, device=device, dtype=dtype)
    layer(clipped().to(device, dtype) / 3)  # the static range: an input of thrice that is clipped
    return layer.eval()


def serve(layer: FakeQuantizedLinear, x: Tensor) -> Tensor:
    """The layer's product in the ops for a served one."""
    weight, weight_scale, _ = layer.quantized_weight()
    bias = layer.bias.detach()
    if layer.input_fake_quant.is_dynamic:
        symmetric = layer.symmetric
        return ops.quantized_linear(x, weight, weight_scale, bias, symmetric=symmetric)
    scale, zero_point = layer.input_fake_quant.calculate_qparams()
    point = None if layer.symmetric else zero_point
    return ops.static_quantized_linear(x, weight, weight_scale, scale, bias, act_zero_point=point)


@by_dtype
@pytest.mark.parametrize("static", (False, True), ids=("dynamic", "static"))
@pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
def test_like_the_prepared_layer(
    symmetric: bool, static: bool, dtype: torch.dtype, device: str
) -> None:
    layer = trained_layers(symmetric, static, dtype, device)
    for lead in ((6,), (2, 3), ()):
        x = clipped().to(device, dtype)
        x = (x[0] if lead == () else x.reshape(*lead, K)).requires_grad_()
        dy = torch.randn((*lead, N), generator=cases.generator(1)).to(device, dtype)
        prepared, served = layer(x), serve(layer, x)
        assert torch.equal(prepared, served)
        expected, actual = (torch.autograd.grad(y, x, dy)[0] for y in (prepared, served))
        assert torch.equal(actual, expected), f"{lead}"
        assert static or not symmetric or (actual != 0).all()
        assert not static or (actual == 0).any()


@pytest.mark.parametrize("static", (False, True), ids=("dynamic", "static"))
@pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
def test_a_layer_before_gets_its_gradient(symmetric: bool, static: bool, device: str) -> None:
    """h + b(h): the part through b was dropped silently once, which left 43 percent out."""
    torch.manual_seed(1)
    a = nn.Linear(K, K, device=device)
    b = trained_layers(symmetric, static, torch.float32, device)
    square = FakeQuantizedLinear(K, K, config=b.config, device=device)
    x = clipped().to(device, torch.float32)
    square(a(x))
    square.eval()
    gradients = []
    for layer in (square, partial(serve, square)):
        h = a(x)
        loss = (h + layer(h)).square().sum()
        gradients.append(torch.autograd.grad(loss, (a.weight, a.bias)))
    assert all(map(torch.equal, *gradients))
    h = a(x)
    without = torch.autograd.grad((h + serve(square, h).detach()).square().sum(), a.weight)
    assert not torch.allclose(without[0], gradients[1][0])


# --- the mask ------------------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("smooth", (False, True), ids=("plain", "smooth"))
@pytest.mark.parametrize("point", (None, 3), ids=("symmetric", "shifted"))
def test_mask_at_the_ends(point: int | None, smooth: bool, dtype: torch.dtype, device: str) -> None:
    """Both ends are inside, ties go to the even integer, NaN and infinities are outside."""
    z = point or 0
    low, high = -8, 7
    steps = [low - z - 1, low - z - 0.5, low - z, high - z, high - z + 0.5, high - z + 1, 0, 0.5]
    steps += [torch.nan, torch.inf, -torch.inf]
    # -8.5 rounds to -8 and 7.5 to 8; shifted, -11.5 to -12 and 4.5 to 4
    tie_low, tie_high = (True, False) if point is None else (False, True)
    expected = [False, tie_low, True, True, tie_high, False, True, True, False, False, False]
    compute = cases.compute_dtype(dtype)
    x = (torch.tensor(steps, dtype=torch.float64) * 0.25).to(device, dtype)[None].requires_grad_()
    k = len(steps)
    scale = torch.tensor(0.25, dtype=compute, device=device)
    options: dict[str, Any] = {"quant_min": low, "quant_max": high}
    if point is not None:
        options["act_zero_point"] = torch.tensor([point], device=device)
    if smooth:
        options["smooth_scale"] = scale.expand(k)
    weight = torch.ones(1, k, dtype=torch.int8, device=device)
    y = ops.static_quantized_linear(x, weight, scale.expand(1), scale, **options)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert (dx[0] == 0.25).tolist() == expected
    assert (dx[0] == 0).tolist() == [not e for e in expected]
    # A select: no NaN from what comes in.
    (dx,) = torch.autograd.grad(
        ops.static_quantized_linear(x, weight, scale.expand(1), scale, **options),
        x,
        torch.full_like(y, torch.inf),
    )
    assert (dx[0] == torch.inf).tolist() == expected and (dx[0] == 0).sum() == expected.count(False)


@by_kind
@pytest.mark.parametrize("k", (1, 7, 8, 9, 33))
def test_masks_of_every_length(k: int, kind: str, device: str) -> None:
    """Eight bits to a byte, over the rows of a matrix that need not fill it."""
    served = Served(kind, torch.float32, device, k=k)
    for lead in ((1,), (3,), (2, 5)):
        x, dy = example(served, lead, seed=k)
        (dx,) = torch.autograd.grad(served(x), x, dy)
        assert torch.equal(dx, served.rule(x, dy))


@by_kind
@pytest.mark.parametrize("layout", ("transposed", "stepped", "padded", "swapped"))
def test_layouts(layout: str, kind: str, device: str) -> None:
    served = Served(kind, torch.float32, device)
    x, dy = example(served, (4, 6))
    expected = served.rule(x, dy)
    x, dy = (cases.LAYOUTS[layout](t.detach()) for t in (x, dy))
    (dx,) = torch.autograd.grad(served(x.requires_grad_()), x, dy)
    torch.testing.assert_close(dx, expected)
    assert torch.equal(dx == 0, expected == 0)
    (dx,) = torch.autograd.grad(served(x).sum(), x)  # an incoming gradient without strides
    torch.testing.assert_close(dx, served.rule(x, torch.ones_like(dy)))


def test_poison_in_the_gradient_stays_visible(device: str) -> None:
    served = Served("static", torch.float32, device)
    x, dy = example(served)
    dy[2, 3], dy[3, 3] = torch.nan, torch.inf
    (dx,) = torch.autograd.grad(served(x), x, dy)
    inside = served.inside(x)
    assert dx[2].isnan().equal(inside[2]) and (~dx[3].isfinite()).equal(inside[3])
    assert dx[[0, 1, 4]].isfinite().all()


# --- twice ---------------------------------------------------------------------------------------


@by_kind
def test_double_backward(kind: str, device: str) -> None:
    """dx is linear in dy, and constant in x."""
    served = Served(kind, torch.float64, device)
    x, dy = example(served, (2, 3))
    dy.requires_grad_()
    y = served(x)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    weights = torch.randn(dx.shape, generator=cases.generator(5), dtype=torch.float64).to(device)
    of_dy, of_x = torch.autograd.grad(dx, (dy, x), weights, allow_unused=True)
    expected = torch.autograd.grad(served.rule(x, dy), dy, weights)[0]
    torch.testing.assert_close(of_dy, expected)
    assert of_x is None or not of_x.any()


def test_gradient_penalty_trains_a_layer_before(device: str) -> None:
    """A loss that has the gradient in it, through the served layer and what came before."""
    results = []
    for module in (ops, reference):
        torch.manual_seed(0)
        layer = nn.Linear(K, K, device=device, dtype=torch.float64)
        served = Served("smooth_shifted", torch.float64, device)
        x, _ = example(served)
        y = served.call(module, torch.tanh(layer(x)) * 5).square().sum()
        (dx,) = torch.autograd.grad(y, x, create_graph=True)
        (y + dx.square().sum()).backward()
        results.append([layer.weight.grad, layer.bias.grad])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.abs().sum() > 0


def test_a_float_layer_agrees(device: str) -> None:
    """In size: a served layer's gradient is that of the floating layer but for the rounding."""
    layer = nn.Linear(64, 48, device=device)
    weight, scale, _ = ops.dynamic_range_quantize_per_channel(layer.weight.detach(), 0)
    x = torch.randn(10, 64, device=device, requires_grad=True)
    dy = torch.randn(10, 48, device=device)
    (expected,) = torch.autograd.grad(F.linear(x, layer.weight), x, dy)
    (actual,) = torch.autograd.grad(ops.quantized_linear(x, weight, scale), x, dy)
    assert (actual - expected).norm() < 0.01 * expected.norm()
