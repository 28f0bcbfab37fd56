# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.LearnedFakeQuantizeInt4`: factors that are trained, beside formulas in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from baraquant import W4A8, ops
from baraquant.nn import FakeQuantizeInt4
from baraquant.workflow.fit import fit_factors
from tests.nn.learned_factors import (
    SIZE,
    K,
    N,
    by_dtype,
    by_scheme,
    inputs,
    layer_of,
    moved,
    quantizer_of,
    weight,
)
from tests.support import cases

# --- values --------------------------------------------------------------------------------------


@by_dtype
@by_scheme
@pytest.mark.parametrize("scale_rule", ("search", "max"))
def test_it_starts_from_the_factors_of_the_rule(
    scale_rule: str, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    values = weight(dtype).to(device)
    made = quantizer_of(values, symmetric, scale_rule=scale_rule)
    fixed = FakeQuantizeInt4(SIZE, symmetric=symmetric)
    if scale_rule == "search":
        fixed = fit_factors(values, fixed)
    for got, wanted in zip(made.pack(values), fixed.pack(values), strict=True):
        assert torch.equal(got, wanted) and got.dtype == wanted.dtype
    assert len(made.qparams()[1].unique()) > 8
    assert torch.equal(made(values), fixed(values))
    assert made(values).dtype == dtype and made(values).device == values.device


@by_scheme
@by_dtype
def test_the_value_is_that_of_the_integers(
    dtype: torch.dtype, symmetric: bool, device: str
) -> None:
    values = weight(dtype).to(device)
    made = moved(quantizer_of(values, symmetric))
    scale, factor, zero_point = made.qparams_of(values)
    steps, rows = made.scale.detach().abs(), made.largest_step.detach().abs()[:, None] / 16
    assert torch.equal(factor, (steps / rows).round().clamp(1, 16).to(torch.uint8))
    assert factor.amin() == 1 and factor.amax() == 16
    assert symmetric == bool((zero_point == 8).all())
    integers, of_rows, zeros = made.quantize(values)
    assert integers.dtype == torch.int8 and torch.equal(of_rows, scale) and not zeros.any()
    wanted = ops.dequantize_per_channel(integers, scale, None, 0, dtype=dtype)
    assert torch.equal(made(values), wanted)
    assert torch.equal(made(values), made.requires_grad_(False)(values))
    # What carries the gradient is near it.
    made.requires_grad_(True)
    torch.testing.assert_close(made.smooth(values), wanted)


# --- gradients -----------------------------------------------------------------------------------


def two_levels(
    w: np.ndarray, step: np.ndarray, row: np.ndarray, zero: np.ndarray, dy: np.ndarray
) -> dict[str, np.ndarray]:
    """The formulas of the class without its factors; `w` and `dy` are [rows, groups, size]."""
    t = step / row[:, None]
    f = np.clip(np.rint(t), 1, 16)
    d = (f * row[:, None])[..., None]
    z = np.clip(np.rint(zero), -8, 7)[..., None]
    whole = f[..., None]
    # What is an int8 ends at a distance from the zero point, and follows it; four bits do not.
    int8_low, int8_high = z - np.floor(128 / whole), z + np.floor(127 / whole)
    low, high = np.maximum(-8, int8_low), np.minimum(7, int8_high)
    v = w / d
    r = np.rint(v) + z
    q = np.clip(r, low, high)
    inside = r == q
    by_d = (dy * np.where(inside, np.rint(v) - v, q - z)).sum(2)
    is_free = np.rint(t) == f
    format_end = ((r < low) & (int8_low < -8)) | ((r > high) & (int8_high > 7))
    return {
        "y": (q - z) * d,
        "w": dy * inside,
        "scale": np.where(is_free, by_d, 0),
        "row": (by_d * np.where(is_free, np.rint(t) - t, f)).sum(1),
        "zero_point": (dy * np.where(format_end, -d, 0)).sum(2),
        "inside": inside,
        "free": is_free,
    }


@by_scheme
@pytest.mark.parametrize("seed", (0, 1, 2))
def test_gradients_beside_numpy(seed: int, symmetric: bool, device: str) -> None:
    values = weight(torch.float64, seed).to(device)
    made = moved(quantizer_of(values, symmetric), seed)
    with torch.no_grad():
        made.scale[0, 0] *= -1  # the absolute value counts
    w = values.clone().requires_grad_()
    dy = torch.randn(N, K, dtype=torch.float64, generator=cases.generator(7)).to(device)
    y = made(w)
    y.backward(dy)
    groups = K // SIZE
    shape = (N, groups, SIZE)
    sign = np.sign(made.scale.detach().cpu().numpy())
    zero = np.zeros((N, groups))
    if made.zero_point is not None:
        zero = made.zero_point.detach().cpu().numpy()
    right = two_levels(
        values.cpu().numpy().reshape(shape),
        np.abs(made.scale.detach().cpu().numpy()),
        np.abs(made.largest_step.detach().cpu().numpy()) / 16,
        zero,
        dy.cpu().numpy().reshape(shape),
    )
    assert 0.3 < right["inside"].mean() < 0.98 and 0.3 < right["free"].mean() < 0.98
    g = 1 / math.sqrt(SIZE * 7)
    # 16 times the gradient of the scale: descent moves largest_step / 16 as if it were one.
    by_row = 16 / math.sqrt(groups * 16)
    wanted = {
        "y": (y.detach(), right["y"]),
        "w": (w.grad, right["w"]),
        "scale": (made.scale.grad, right["scale"] * g * sign),
        "largest_step": (made.largest_step.grad, right["row"] * g * by_row),
    }
    if made.zero_point is not None:
        wanted["zero_point"] = (made.zero_point.grad, right["zero_point"] * g)
    for name, (got, expected) in wanted.items():
        assert got is not None and got.any(), name
        np.testing.assert_allclose(
            got.cpu().numpy().reshape(expected.shape), expected, rtol=1e-9, atol=1e-12, err_msg=name
        )


@by_dtype
def test_a_layer_passes_its_gradient_through_the_factors(dtype: torch.dtype, device: str) -> None:
    """The product of integers in training has the gradients of the rounded weight's product."""
    layer = layer_of(W4A8(SIZE, learned=True), dtype, device)
    moved(layer.weight_fake_quant)
    x, dy = inputs(dtype, device), torch.randn(5, N, dtype=dtype, device=device)
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad(layer(x), parameters.values(), dy)
    rounded = ops.dynamic_fake_quantize_per_token(x)
    y = nn.functional.linear(rounded, layer.weight_fake_quant(layer.weight), layer.bias)
    for name, got, wanted in zip(
        parameters, found, torch.autograd.grad(y, parameters.values(), dy), strict=True
    ):
        assert got.dtype == parameters[name].dtype and got.any(), name
        error = (got.double() - wanted.double()).norm() / wanted.double().norm()
        assert error < (1e-5 if dtype in (torch.float32, torch.float64) else 0.03), name


@pytest.mark.parametrize("backward", ("int8_input", "int8"))
def test_a_backward_of_integers(backward: str) -> None:
    found = []
    for config in (W4A8(SIZE, learned=True), W4A8(SIZE, learned=True, backward=backward)):
        layer = layer_of(config)
        layer(inputs()).square().sum().backward()
        found.append([p.grad for p in layer.parameters()])
    for exact, rounded in zip(*found, strict=True):
        if exact.abs().amax() > 1e-6:  # that of largest_step is 0 at the start
            assert torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0) > 0.99
