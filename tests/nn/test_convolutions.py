# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of all kinds, prepared and of integers: layouts, groups, values, checks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant.nn as bnn
from baraquant import QuantConfig, TensorConfig
from baraquant.qat import convert_
from tests.support import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")

# Of each kind: its arguments, and the shape of an input. Groups of 2 divide in_channels / groups.
KINDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Conv1d": ({"groups": 2, "padding": 1, "padding_mode": "reflect"}, (3, 8, 7)),
    "Conv2d": ({"stride": (2, 1), "padding": "valid", "bias": False}, (2, 8, 6, 5)),
    "Conv3d": ({"groups": 2, "padding": 1, "padding_mode": "circular"}, (2, 8, 3, 4, 5)),
    "ConvTranspose1d": ({"stride": 2, "output_padding": 1, "dilation": 2}, (3, 8, 5)),
    "ConvTranspose2d": ({"groups": 2, "stride": (2, 1), "padding": 1}, (2, 8, 4, 5)),
    "ConvTranspose3d": ({"groups": 4, "stride": 2, "output_padding": 1}, (2, 8, 2, 3, 3)),
}
TRANSPOSED = [kind for kind in KINDS if "Transpose" in kind]
by_kind = pytest.mark.parametrize("kind", KINDS)


def weight(granularity: str, **options: Any) -> TensorConfig:
    size = 2 if granularity == "per_group" else None
    return TensorConfig(options.pop("bits", 8), granularity, group_size=size, **options)


def static(**options: Any) -> TensorConfig:
    return TensorConfig(8, "per_tensor", dynamic=False, **options)


CONFIGS = {
    "channel": QuantConfig(weight("per_channel")),
    "channel_static": QuantConfig(weight("per_channel", dynamic=False), static(symmetric=False)),
    "channel_learned": QuantConfig(weight("per_channel", learned=True, symmetric=False), static()),
    "tensor": QuantConfig(weight("per_tensor", bits=5), TensorConfig(8, "per_tensor")),
    "tensor_static": QuantConfig(weight("per_tensor", dynamic=False, symmetric=False)),
    "tensor_learned": QuantConfig(weight("per_tensor", learned=True, bits=4)),
    "group": QuantConfig(weight("per_group", bits=4, symmetric=False), static(learned=True)),
    "group_static": QuantConfig(weight("per_group", bits=4, dynamic=False), static()),
    "group_learned": QuantConfig(weight("per_group", bits=4, learned=True)),
}
by_config = pytest.mark.parametrize("config", CONFIGS)


def floating(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    arguments = {"in_channels": 8, "out_channels": 12, "kernel_size": 3}
    return getattr(nn, kind)(**(arguments | KINDS[kind][0] | changes)).to(dtype)


def example(kind: str, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(KINDS[kind][1], generator=cases.generator(seed)).to(dtype)


def prepared(kind: str, config: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    base = getattr(bnn, f"FakeQuantized{kind}")
    return base.from_float(floating(kind, dtype), CONFIGS[config])


def converted(module: nn.Module) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(module))
    convert_(model)
    return model[0]


def parts(module: nn.Module, group_size: int | None) -> list[list[Tensor]]:
    """The numbers of a float weight that share a scale: for each output channel, its groups.

    By the definition of a group: output channel o of a transposed convolution with [in, out /
    groups, ...] takes the inputs of its own group of channels.
    """
    weight, groups = module.weight.detach(), module.groups
    inputs, outputs = module.in_channels // groups, module.out_channels // groups
    size = inputs if group_size is None else group_size
    rows = []
    for channel in range(module.out_channels):
        group, own = divmod(channel, outputs)
        if module.transposed:
            kernels = weight[group * inputs : (group + 1) * inputs, own]
        else:
            kernels = weight[channel]
        rows.append([kernels[i : i + size] for i in range(0, inputs, size)])
    return rows


@by_kind
@pytest.mark.parametrize("config", ["channel", "group_static"])
def test_scales_are_those_of_output_channels_and_their_inputs(kind: str, config: str) -> None:
    module, scheme = floating(kind), CONFIGS[config].weight
    integers, scale, zero_point = prepared(kind, config).quantized_weight()
    shares = parts(module, scheme.group_size)
    wanted = torch.stack([torch.stack([p.abs().max() for p in row]) for row in shares])
    wanted = (wanted / scheme.quant_max).reshape(scale.shape)
    assert torch.equal(scale, wanted) and not zero_point.any()
    assert integers.dtype == torch.int8 and integers.is_contiguous()
    inputs = module.in_channels // module.groups
    assert integers.shape == (module.out_channels, inputs, *module.kernel_size)
    steps = wanted.reshape(module.out_channels, -1)
    for row, own, got in zip(shares, steps, integers, strict=True):
        rounded = torch.cat([(p / s).round() for p, s in zip(row, own, strict=True)])
        assert torch.equal(got, rounded.to(torch.int8))


@by_kind
@by_config
def test_the_gradient_goes_straight_through_the_weight(kind: str, config: str) -> None:
    module, twin = prepared(kind, config, torch.float64), floating(kind, torch.float64)
    x = example(kind, torch.float64)
    got = module(x)
    with torch.no_grad():
        x = module.input_fake_quant(x)
        twin.weight.copy_(module.eval().weight + 0)
    wanted = twin(x)
    torch.testing.assert_close(got, wanted)
    got.square().sum().backward()
    wanted.square().sum().backward()
    inside = torch.ones_like(twin.weight, dtype=torch.bool)
    if CONFIGS[config].weight.learned:  # what is clipped has none
        low = module.weight_fake_quant
        integers = module.quantized_weight()[0]
        inside = (integers > low.quant_min) & (integers < low.quant_max)
        inside = module._channels_first(inside) if module.transposed_groups else inside
        inside = inside.reshape(twin.weight.shape)
        assert low.scale.grad.abs().min() > 0
    grads = module.float_weight().grad, twin.weight.grad
    torch.testing.assert_close(grads[0][inside], grads[1][inside])


@pytest.mark.parametrize("kind", TRANSPOSED)
def test_output_size(kind: str) -> None:
    twin, x = floating(kind), example(kind)
    stride = twin.stride[0]
    module = prepared(kind, "channel").apply(bnn.disable_fake_quant)
    smallest = [n - p for n, p in zip(twin(x).shape[2:], twin.output_padding, strict=True)]
    for size in (smallest, [smallest[0] + stride - 1, *smallest[1:]]):
        wanted = twin(x, output_size=size)
        assert torch.equal(module(x, output_size=size), wanted)
        assert torch.equal(module(x, size), wanted)
        layer = converted(module)
        assert layer(x, output_size=size).shape == wanted.shape
        assert torch.equal(layer(x, size), module.eval()(x, size))
        assert torch.equal(layer(x[0], size), layer(x[:1], size)[0])
        module.train()
    for wrong in ([smallest[0] + stride, *smallest[1:]], [1, *smallest]):
        for one in (twin, module, layer):
            with pytest.raises(ValueError, match=r"output.size"):
                one(x, output_size=wrong)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_group_sizes_that_do_not_fit(kind: str) -> None:
    make = getattr(bnn, f"FakeQuantized{kind}")
    for size, groups in ((3, 1), (16, 1), (8, 2)):
        config = QuantConfig(TensorConfig(4, "per_group", group_size=size))
        message = rf"group_size to divide in_channels / groups \({8 // groups}\), but got {size}"
        with pytest.raises(ValueError, match=message):
            make(8, 4, 3, groups=groups, config=config)
    # The layer of integers takes a last group that is not full, as the linear one does.
    integers = torch.ones(4, 5, 3, 3, dtype=torch.int8)
    layer = getattr(bnn, f"Quantized{kind}")(integers, torch.rand(4, 3), group_size=2)
    channels = layer.weight.transpose(0, 1) if "Transpose" in kind else layer.weight + 0
    wanted = layer.weight_scale.repeat_interleave(2, 1)[:, :5, None, None].expand(4, 5, 3, 3)
    assert torch.equal(channels + 0, wanted)
