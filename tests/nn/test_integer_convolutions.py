# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions that multiply integers: which do, their bits, gradients, padding, state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant.nn as bnn
from baraquant import QuantConfig, TensorConfig, W8A8Static, ops
from baraquant.nn import FakeQuantize
from baraquant.qat import prepare_
from tests.support import cases
from tests.support.models.one_layer import converted

DTYPES = {d: cases.name_of(d) for d in cases.FLOAT_DTYPES}
INPUTS = {
    "dynamic": TensorConfig(8, "per_tensor"),
    "dynamic_asymmetric": TensorConfig(8, "per_tensor", symmetric=False),
    "observed": TensorConfig(8, "per_tensor", dynamic=False),
    "observed_asymmetric": TensorConfig(6, "per_tensor", symmetric=False, dynamic=False),
    "learned": TensorConfig(8, "per_tensor", learned=True),
    "learned_asymmetric": TensorConfig(4, "per_tensor", symmetric=False, learned=True),
}
# Of each: the layer, and the shape of its input.
LAYERS: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "line": (nn.Conv1d, {"kernel_size": 3, "padding": 1}, (2, 16, 9)),
    "image": (nn.Conv2d, {"kernel_size": 3, "stride": 2, "padding": (1, 0)}, (2, 16, 7, 9)),
    "space": (nn.Conv3d, {"kernel_size": 2, "padding": 1, "bias": False}, (2, 16, 3, 4, 5)),
    "depthwise": (nn.Conv2d, {"kernel_size": 3, "padding": 1, "groups": 16}, (2, 16, 6, 7)),
    "groups": (nn.Conv2d, {"kernel_size": 3, "groups": 2}, (2, 32, 6, 7)),
    "same": (nn.Conv2d, {"kernel_size": (2, 3), "padding": "same"}, (2, 16, 6, 7)),
    "valid": (nn.Conv2d, {"kernel_size": 3, "padding": "valid", "dilation": 2}, (2, 16, 6, 7)),
    "reflect": (nn.Conv2d, {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
                (2, 16, 6, 7)),
    "circular": (nn.Conv1d, {"kernel_size": 4, "padding": 3, "padding_mode": "circular"},
                 (2, 16, 9)),
    "replicate": (nn.Conv3d, {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
                  (1, 16, 3, 4, 5)),
}  # fmt: skip
by_layer = pytest.mark.parametrize("name", LAYERS)
by_input = pytest.mark.parametrize("mode", INPUTS)


def floating(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    kind, options, shape = LAYERS[name]
    torch.manual_seed(0)
    return kind(shape[1], 32, **options).to(dtype)


def example(name: str, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(LAYERS[name][2], generator=cases.generator(seed)).to(dtype)


def pair(name: str, mode: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A prepared layer in evaluation that has seen a batch, and the converted one."""
    config = QuantConfig(TensorConfig(8), INPUTS[mode])
    model = nn.Sequential(floating(name, dtype))
    prepare_(model, config, progress=False)
    model.train()(example(name, dtype))
    return model.eval()[0], converted(model)[0]


@by_layer
@by_input
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
def test_prepared_and_converted_have_the_bits_of_the_op(
    name: str, mode: str, dtype: torch.dtype
) -> None:
    prepared, layer = pair(name, mode, dtype)
    assert prepared.is_integer and layer.is_integer
    x = example(name, dtype, 2)
    with torch.no_grad():
        got, wanted = layer(x), prepared(x)
    assert got.dtype == dtype and torch.equal(got, wanted)
    close = layer._float_output(x)
    torch.testing.assert_close(got, close, rtol=2e-2, atol=2e-2)
    if name in ("image", "groups", "depthwise", "valid", "space", "line"):
        q, s, z = layer.input_fake_quant.quantize(x)
        options = {k: getattr(layer, k) for k in ("stride", "dilation", "groups")}
        padding = 0 if layer.padding == "valid" else layer.padding
        by_op = ops.int8_conv(
            q, layer.qweight, s, layer.weight_scale, layer.bias,
            input_zero_point=z, padding=padding, dtype=dtype, **options,
        )  # fmt: skip
        assert torch.equal(got, by_op)


@by_layer
@pytest.mark.parametrize("mode", ("dynamic", "observed_asymmetric", "learned"))
def test_the_gradient_is_that_of_the_floating_formula(name: str, mode: str) -> None:
    for layer in pair(name, mode, torch.float64):
        x = example(name, torch.float64, 2).requires_grad_()
        y = layer(x)
        with torch.no_grad():
            assert torch.equal(y, layer(x))
        dy = torch.randn(y.shape, generator=cases.generator(3), dtype=torch.float64)
        (got,) = torch.autograd.grad(y, x, dy)
        (wanted,) = torch.autograd.grad(layer._float_output(x), x, dy)
        assert torch.equal(got, wanted) and got.abs().sum() > 0


def test_parameters_get_gradients_in_evaluation() -> None:
    prepared, _ = pair("image", "observed")
    prepared(example("image")).square().sum().backward()
    assert prepared.float_weight().grad.abs().sum() > 0 and prepared.bias.grad.abs().sum() > 0


def test_which_layers_multiply_integers() -> None:
    """It depends on the configuration and the shapes alone, in both forms alike."""
    w8, static = TensorConfig(8), W8A8Static().activation
    for weight, activation, layer, wanted in (
        (w8, static, nn.Conv2d(3, 4, 3), True),
        (TensorConfig(4, "per_tensor"), static, nn.Conv2d(3, 4, 3), True),
        (w8, None, nn.Conv2d(3, 4, 3), False),
        (w8, TensorConfig(8, "per_token"), nn.Conv2d(3, 4, 3), False),
        (TensorConfig(8, symmetric=False), static, nn.Conv2d(3, 4, 3), False),
        (TensorConfig(4, "per_group", group_size=2), static, nn.Conv2d(4, 4, 3), False),
        (w8, static, nn.Conv2d(32, 8, 3, groups=2), True),
        (w8, static, nn.Conv2d(30, 8, 3, groups=2), False),
        (w8, static, nn.Conv2d(6, 12, 3, groups=6), True),
        (w8, static, nn.Conv1d(16384, 1, 4), True),
        (w8, static, nn.Conv1d(16385, 1, 4), False),
        (w8, static, nn.ConvTranspose2d(3, 4, 3), False),
    ):
        model = nn.Sequential(layer)
        prepare_(model, QuantConfig(weight, activation), progress=False)
        x = torch.randn(1, layer.in_channels, *[5] * len(layer.kernel_size))
        model.train()(x)
        prepared = model.eval()[0]
        served = converted(model)[0]
        for one in (prepared, served):
            assert getattr(one, "is_integer", False) is wanted, one
        assert torch.equal(prepared(x), served(x))


def test_what_rounds_to_other_integers_stays_floating() -> None:
    weight, scale = torch.ones(4, 3, 3, 3, dtype=torch.int8), torch.ones(4)
    for rounder in (
        FakeQuantize(0.1, 128, quant_min=0, quant_max=255),
        FakeQuantize(torch.rand(3), None, "per_channel", axis=1),
        FakeQuantize(mode="observed"),
        None,
    ):
        layer = bnn.QuantizedConv2d(weight, scale, input_fake_quant=rounder)
        assert not layer.is_integer and layer.qweight.is_contiguous()
        assert layer(torch.rand(1, 3, 5, 5)).shape == (1, 4, 3, 3)
    middle = FakeQuantize(mode="dynamic", quant_min=-3, quant_max=8)  # whose zero point is 3
    layer = bnn.QuantizedConv2d(weight, scale, input_fake_quant=middle, padding=1)
    x = torch.randn(1, 3, 5, 5)
    assert layer.is_integer and layer.has_zero_point
    torch.testing.assert_close(layer(x), layer._float_output(x))


def test_switched_off_it_is_floating() -> None:
    _, layer = pair("image", "observed")
    x = example("image")
    bnn.disable_fake_quant(layer.input_fake_quant)
    floats = floating("image")
    floats.weight = nn.Parameter(layer.dequantized_weight())
    assert torch.equal(layer(x), floats(x))
    bnn.enable_fake_quant(layer.input_fake_quant)
    assert not torch.equal(layer(x), floats(x))


def test_autocast_does_not_change_it() -> None:
    prepared, layer = pair("image", "dynamic")
    x = example("image")
    with torch.no_grad():
        wanted = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            for one in (prepared, layer):
                got = one(x)
                assert got.dtype == torch.float32 and torch.equal(got, wanted)


def test_special_values() -> None:
    """A NaN is the zero point for a static scale, and poisons the output for a dynamic one."""
    x = example("image")
    x[0, 0, 0, 0] = float("nan")
    with torch.no_grad():
        _, static = pair("image", "observed")
        assert torch.equal(static(x), static(x.nan_to_num()))
        _, dynamic = pair("image", "dynamic")
        assert dynamic(x).isnan().all()
