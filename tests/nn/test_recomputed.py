# SPDX-License-Identifier: BSD-3-Clause
"""Layers that dequantize their weight keep integers alone for the backward pass.

And layers whose bias has another dtype than the input compute in the input's.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baraquant
from baraquant.workflow.layers import is_converted
from tests.support.saved_tensors import saved_tensors, storages

SCHEMES = {
    "8 bits": baraquant.W8A16(),
    "4 bits in groups": baraquant.W4A16(group_size=4, symmetric=False),
}
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(16, 24), (2, 3, 16)),
    "conv": (lambda: nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"), (2, 8, 6, 6)),
    "conv of groups": (lambda: nn.Conv1d(16, 12, 3, groups=2), (2, 16, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 3, stride=2), (2, 8, 6, 6)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def layer_and_input(
    name: str, scheme: str = "8 bits", dtype: torch.dtype = torch.float32
) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model = nn.Sequential(make()).to(dtype)
    baraquant.quantize_(model, SCHEMES[scheme], progress=False)
    assert is_converted(model[0])
    return model[0], torch.randn(shape, dtype=dtype).requires_grad_()


def floating(layer: Any, name: str) -> nn.Module:
    """A float layer of the same weight, whose product keeps it."""
    float_layer = LAYERS[name][0]().to(layer.dtype).requires_grad_(False)
    float_layer.weight.copy_(layer.weight)
    float_layer.bias.copy_(layer.bias)
    return float_layer


def kept(layer: nn.Module, input: Tensor) -> int:
    with saved_tensors() as saved:
        output = layer(input)
    del output
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    return sum(size for place, size in storages(saved).items() if place not in own)


@pytest.mark.exhaustive
@every_layer
@every_scheme
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_gradients_are_those_of_the_float_layer(name: str, scheme: str, dtype: torch.dtype) -> None:
    layer, x = layer_and_input(name, scheme, dtype)
    outputs, grads = [], []
    for module in (layer, floating(layer, name)):
        y = module(x)
        outputs.append(y.detach())
        dy = 2 * outputs[0]  # of the sum of squares; the same for both
        grads.append(torch.autograd.grad(y, x, dy)[0])
    assert torch.equal(*grads)
    if name == "linear":  # whose sums have an order of their own
        torch.testing.assert_close(*outputs)
    else:
        assert torch.equal(*outputs)


@every_layer
@every_scheme
@pytest.mark.parametrize("autocast", [False, True])
def test_the_weight_is_not_kept(name: str, scheme: str, autocast: bool) -> None:
    layer, x = layer_and_input(name, scheme)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        more = kept(layer, x) - kept(floating(layer, name), x)
    assert more <= 0, "no more than a float layer, which keeps its own parameter"


@pytest.mark.exhaustive
@every_layer
def test_autocast_has_the_bits_of_the_float_layer(name: str) -> None:
    layer, x = layer_and_input(name)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [module(x) for module in (layer, floating(layer, name))]
    assert outputs[0].dtype == torch.bfloat16 and torch.equal(*outputs)
    grads = [torch.autograd.grad(y.float().square().sum(), x)[0] for y in outputs]
    assert torch.equal(*grads)


@pytest.mark.exhaustive
@every_layer
def test_second_derivatives_and_checkpoints(name: str) -> None:
    layer, x = layer_and_input(name, dtype=torch.float64)
    # Along random directions: entry by entry this takes minutes.
    assert torch.autograd.gradgradcheck(layer, x, atol=1e-4, fast_mode=True)
    (wanted,) = torch.autograd.grad(layer(x).square().sum(), x)
    for reentrant in (False, True):
        x.grad = None
        checkpoint(layer, x, use_reentrant=reentrant).square().sum().backward()
        assert torch.equal(x.grad, wanted)
    got = torch.func.grad(lambda t: layer(t).square().sum())(x.detach())
    assert torch.equal(got, wanted)
    _, tangent = torch.func.jvp(layer, (x.detach(),), (x.detach(),))
    with torch.no_grad():
        torch.testing.assert_close(tangent, layer(x) - layer(torch.zeros_like(x)))


def test_integers_that_change_before_the_backward_pass_are_noticed() -> None:
    layer, x = layer_and_input("conv")
    output = layer(x)
    layer.qweight.add_(1)
    with pytest.raises(RuntimeError, match="QuantizedConv2d: expected the same integers in the"):
        output.sum().backward()
    output = layer(x)
    layer.qweight = layer.qweight.clone()
    with pytest.raises(RuntimeError, match="changed or moved in between; run the forward pass"):
        output.sum().backward()


def test_a_linear_layer_keeps_its_integers() -> None:
    """Autograd notices a change itself, and a new tensor in their place changes nothing."""
    layer, x = layer_and_input("linear")
    (wanted,) = torch.autograd.grad(layer(x).sum(), x)
    output = layer(x)
    layer.qweight = layer.qweight.clone().zero_()
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], wanted)
    output = layer(x)
    layer.qweight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


# --- a bias of another dtype than the input ------------------------------------------------------

ALL_SCHEMES = {
    **SCHEMES,
    "int8": baraquant.W8A8(),
    "int8 per tensor": baraquant.QuantConfig(
        baraquant.TensorConfig(), baraquant.TensorConfig(8, "per_tensor")
    ),
    "int8 static": baraquant.W8A8Static(),
    "smoothed": baraquant.SmoothQuant(),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ALL_SCHEMES)
@pytest.mark.parametrize("bias", [False, True])
def test_a_bfloat16_layer_takes_float32(scheme: str, bias: bool) -> None:
    """It computes what a float32 layer with the same numbers computes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24, bias=bias)).bfloat16()
    data = [torch.randn(32, 16).bfloat16()]
    baraquant.quantize_(model, ALL_SCHEMES[scheme], calibration=data, progress=False)
    x = torch.randn(5, 16)
    wide = copy.deepcopy(model).float()
    got, wanted = model(x), wide(x)
    assert got.dtype == torch.float32 and torch.equal(got, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).isfinite().all()
