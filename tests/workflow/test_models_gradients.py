# SPDX-License-Identifier: BSD-3-Clause
"""Gradients through served layers in whole models: those of the prepared model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static
from baraquant.qat import prepare_
from tests.support.models.one_layer import (
    CONVOLUTIONS,
    TRAINED,
    converted,
    inputs,
    prepared,
    trained,
)


class Residual(nn.Module):
    """`h + b(h)`: half of a's gradient comes through b."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        y: Tensor = h + self.b(h)
        return y


def only_b(module: nn.Module, name: str) -> bool:
    return name == "b"


X = inputs("linear", seed=4)
DY = torch.randn(5, 16, generator=torch.Generator().manual_seed(6))


def residual() -> Residual:
    torch.manual_seed(0)
    return Residual()


def gradients(model: nn.Module, x: Tensor = X, dy: Tensor = DY) -> dict[str, Tensor]:
    """Those of the float layer `a` and of the input."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    model(x).backward(dy)
    assert x.grad is not None
    return {"x": x.grad, "a.weight": model.a.weight.grad, "a.bias": model.a.bias.grad}


@pytest.mark.parametrize("scheme", TRAINED)
def test_residual(scheme: str) -> None:
    """The served model's gradients are the prepared one's, and near the float model's."""
    model = residual()
    prepare_(model, TRAINED[scheme], filter_fn=only_b)
    model.train()
    with torch.no_grad():
        model(X)
    model.eval()
    wanted, plain = gradients(model), gradients(residual())
    got = gradients(converted(model))
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)
        if scheme.startswith("w8"):
            assert (got[name] - plain[name]).norm() < 0.05 * plain[name].norm(), name


@pytest.mark.parametrize(
    "config",
    [W8A8(), W8A8(symmetric=False), W8A8Static(), SmoothQuant(0.5), SmoothQuant(0.5, W8A8Static())],
    ids=str,
)
def test_residual_after_quantize(config: object) -> None:
    """43 % off, when the gradient was cut."""
    model = residual()
    plain = gradients(copy.deepcopy(model))
    calibration = None if config in (W8A8(), W8A8(False)) else [X]
    baraquant.quantize_(model, config, calibration=calibration, filter_fn=only_b, progress=False)
    got = gradients(model)
    for name, value in plain.items():
        assert (got[name] - value).norm() < 0.05 * value.norm(), name


@pytest.mark.parametrize("scheme", TRAINED)
@pytest.mark.parametrize("layer", ["linear", "conv1d", "conv2d"])
def test_the_input_of_one_layer(layer: str, scheme: str) -> None:
    if layer != "linear" and scheme not in CONVOLUTIONS:
        pytest.skip("the groups do not divide the inputs of these convolutions")
    model = trained(layer, scheme)
    results = []
    for each in (model, converted(model)):
        x = (1.7 * inputs(layer, seed=8)).requires_grad_()  # beyond a static range
        y = each(x)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
        results.append(x.grad)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)
    assert results[0].any()


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8_asymmetric", "static", "w8_tensor"])
def test_gradient_of_the_gradient(scheme: str) -> None:
    """A gradient penalty through a served layer: right, or refused; never silently zero."""
    model = converted(prepared(residual(), scheme, X))
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(F.silu(model(x)).sum(), x, create_graph=True)
    try:
        (second,) = torch.autograd.grad(dx.square().sum(), x)
    except (RuntimeError, NotImplementedError) as error:
        assert "baraquant" in str(error), error
        return
    plain, z = residual(), X.clone().requires_grad_()
    (dz,) = torch.autograd.grad(F.silu(plain(z)).sum(), z, create_graph=True)
    (wanted,) = torch.autograd.grad(dz.square().sum(), z)
    assert (second - wanted).norm() < 0.1 * wanted.norm()
