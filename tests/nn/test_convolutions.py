# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of all kinds, prepared and of integers: layouts, groups, values, checks.

Those that multiply integers: which do, their bits, gradients, padding, state. And conversion,
saving and loading keep the memory format of a weight.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import baraquant.nn as bnn
from baraquant import QuantConfig, TensorConfig, load_, ops, save
from baraquant.qat import prepare_
from tests.support import cases
from tests.support.models.one_layer import converted
from tests.support.schemes import described

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
CONFIGS = {
    "channel": described("int8"),
    "channel_static": described("int8 static, int8 per_tensor asymmetric static"),
    "channel_learned": described("int8 asymmetric learned, int8 per_tensor static"),
    "tensor": described("int5 per_tensor, int8 per_tensor"),
    "tensor_static": described("int8 per_tensor asymmetric static"),
    "tensor_learned": described("int4 per_tensor learned"),
    "group": described("int4 per_group(2) asymmetric, int8 per_tensor learned"),
    "group_static": described("int4 per_group(2) static, int8 per_tensor static"),
    "group_learned": described("int4 per_group(2) learned"),
}
by_config = pytest.mark.parametrize("config", CONFIGS)
INPUTS = {
    "dynamic": "int8 per_tensor",
    "dynamic_asymmetric": "int8 per_tensor asymmetric",
    "observed": "int8 per_tensor static",
    "observed_asymmetric": "int6 per_tensor asymmetric static",
    "learned": "int8 per_tensor learned",
    "learned_asymmetric": "int4 per_tensor asymmetric learned",
}
# Of each that multiplies integers: the class, its arguments, and the shape of an input.
LAYERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "line": ("Conv1d", {"padding": 1}, (2, 16, 9)),
    "image": ("Conv2d", {"stride": 2, "padding": (1, 0)}, (2, 16, 7, 9)),
    "space": ("Conv3d", {"kernel_size": 2, "padding": 1, "bias": False}, (2, 16, 3, 4, 5)),
    "depthwise": ("Conv2d", {"padding": 1, "groups": 16}, (2, 16, 6, 7)),
    "groups": ("Conv2d", {"groups": 2}, (2, 32, 6, 7)),
    "same": ("Conv2d", {"kernel_size": (2, 3), "padding": "same"}, (2, 16, 6, 7)),
    "valid": ("Conv2d", {"padding": "valid", "dilation": 2}, (2, 16, 6, 7)),
    "reflect": ("Conv2d", {"padding": 2, "padding_mode": "reflect"}, (2, 16, 6, 7)),
    "circular": ("Conv1d", {"kernel_size": 4, "padding": 3, "padding_mode": "circular"},
        (2, 16, 9)),
    "replicate": ("Conv3d", {"padding": 1, "padding_mode": "replicate"}, (1, 16, 3, 4, 5)),
}  # fmt: skip
ALL = LAYERS | {kind: (kind, *row) for kind, row in KINDS.items()} | {
    "pointwise": ("Conv2d", {"kernel_size": 1}, (2, 16, 7, 9)),
    "transposed": ("ConvTranspose2d", {}, (2, 16, 5, 6)),
    "transposed space": ("ConvTranspose3d", {"kernel_size": 2}, (2, 16, 3, 4, 3)),
}  # fmt: skip
by_layer = pytest.mark.parametrize("name", LAYERS)


def floating(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    kind, options, shape = ALL[name]
    arguments = {"in_channels": shape[1], "out_channels": 32, "kernel_size": 3}
    return getattr(nn, kind)(**(arguments | options | changes)).to(dtype)


def example(name: str, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(ALL[name][2], generator=cases.generator(seed)).to(dtype)


def prepared(kind: str, config: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    base = getattr(bnn, f"FakeQuantized{kind}")
    return base.from_float(floating(kind, dtype), CONFIGS[config])


def trained(model: nn.Module, config: QuantConfig, x: Tensor) -> nn.Sequential:
    """A prepared layer in evaluation that has seen a batch."""
    model = nn.Sequential(model)
    prepare_(model, config, progress=False)
    model.train()(x)
    return model.eval()


def pair(name: str, mode: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A prepared layer in evaluation, and the converted one."""
    config = described(f"int8, {INPUTS[mode]}")
    model = trained(floating(name, dtype), config, example(name, dtype))
    return model[0], converted(model)[0]


def parts(module: nn.Module, group_size: int | None) -> list[list[Tensor]]:
    """The numbers of a float weight that share a scale: for each output channel, its groups.

    By the definition of a group: output channel o of a transposed convolution with [in, out /
    groups, ...] takes the inputs of its own group of channels.
    """
    weight, groups = module.weight.detach(), module.groups
    inputs, outputs = module.in_channels // groups, module.out_channels // groups
    channels = [divmod(channel, outputs) for channel in range(module.out_channels)]
    if module.transposed:
        weight = [weight[group * inputs : (group + 1) * inputs, own] for group, own in channels]
    return [[*kernels.split(group_size or inputs)] for kernels in weight]


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
        layer = converted(nn.Sequential(module))[0]
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


# --- products of integers ------------------------------------------------------------------------


@by_layer
@pytest.mark.parametrize("mode", INPUTS)
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_both_forms_have_the_bits_of_the_op(name: str, mode: str, dtype: torch.dtype) -> None:
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
    static = ", int8 per_tensor static"
    for config, layer, wanted in (
        ("int8" + static, nn.Conv2d(3, 4, 3), True),
        ("int4 per_tensor" + static, nn.Conv2d(3, 4, 3), True),
        ("int8", nn.Conv2d(3, 4, 3), False),
        ("int8, int8 per_token", nn.Conv2d(3, 4, 3), False),
        ("int8 asymmetric" + static, nn.Conv2d(3, 4, 3), False),
        ("int4 per_group(2)" + static, nn.Conv2d(4, 4, 3), False),
        ("int8" + static, nn.Conv2d(32, 8, 3, groups=2), True),
        ("int8" + static, nn.Conv2d(30, 8, 3, groups=2), False),
        ("int8" + static, nn.Conv2d(6, 12, 3, groups=6), True),
        ("int8" + static, nn.Conv1d(16384, 1, 4), True),
        ("int8" + static, nn.Conv1d(16385, 1, 4), False),
        ("int8" + static, nn.ConvTranspose2d(3, 4, 3), False),
    ):
        x = torch.randn(1, layer.in_channels, *[5] * len(layer.kernel_size))
        model = trained(layer, described(config), x)
        prepared, served = model[0], converted(model)[0]
        for one in (prepared, served):
            assert getattr(one, "is_integer", False) is wanted, one
        assert torch.equal(prepared(x), served(x))


def test_what_rounds_to_other_integers_stays_floating() -> None:
    weight, scale = torch.ones(4, 3, 3, 3, dtype=torch.int8), torch.ones(4)
    for rounder in (
        bnn.FakeQuantize(0.1, 128, quant_min=0, quant_max=255),
        bnn.FakeQuantize(torch.rand(3), None, "per_channel", axis=1),
        bnn.FakeQuantize(mode="observed"),
        None,
    ):
        layer = bnn.QuantizedConv2d(weight, scale, input_fake_quant=rounder)
        assert not layer.is_integer and layer.qweight.is_contiguous()
        assert layer(torch.rand(1, 3, 5, 5)).shape == (1, 4, 3, 3)
    middle = bnn.FakeQuantize(mode="dynamic", quant_min=-3, quant_max=8)  # whose zero point is 3
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


# --- memory formats ------------------------------------------------------------------------------

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
FORMATS = (
    "line", "image", "pointwise", "depthwise", "groups", "space", "transposed", "transposed space",
)  # fmt: skip
FORMAT_CONFIGS = {
    "weight only": described("int8"), "groups": described("int8 per_group(2) asymmetric"),
    "dynamic": described("int8, int8 per_tensor asymmetric"),
    "static": described("int8, int8 per_tensor asymmetric static"),
}  # fmt: skip


def in_format(name: str, is_last: bool = True) -> nn.Sequential:
    model, rank = nn.Sequential(floating(name)).eval(), len(ALL[name][2])
    return model.to(memory_format=LAST[rank]) if is_last and rank in LAST else model


def trained_in_format(name: str, config: str, is_last: bool) -> nn.Sequential:
    return trained(in_format(name, is_last)[0], FORMAT_CONFIGS[config], example(name))


def outputs(model: nn.Module, name: str) -> list[Tensor]:
    """Those of a batch, of one in the other format, and of one image, with their gradients."""
    x, found = example(name), []
    more = [x.contiguous(memory_format=LAST[x.dim()])] if x.dim() in LAST else []
    for given in (x, *more, x[0]):
        leaf = given.detach().requires_grad_()
        y = model(leaf)
        (grad,) = torch.autograd.grad(y.square().sum(), leaf)
        found += [y.detach(), grad]
    return found


def check(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("config", FORMAT_CONFIGS)
@pytest.mark.cover(("name", "config"))
@pytest.mark.parametrize("is_last", (True, False))
def test_bits_and_strides(name: str, config: str, is_last: bool, tmp_path: Path) -> None:
    if (name, config) == ("depthwise", "groups"):
        pytest.skip("a depthwise convolution has no groups of inputs")
    prepared = trained_in_format(name, config, is_last)
    model = converted(prepared)
    wanted = outputs(prepared, name)
    check(outputs(model, name), wanted)
    assert model[0].weight.stride() == (model[0].weight + 0).stride()
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    save_file(model.state_dict(), tmp_path / "state")
    save(model, tmp_path / "model")
    loaded = load_(in_format(name, False), tmp_path / "model")
    check(outputs(loaded, name), wanted)
    check(outputs(copy.deepcopy(model), name), wanted)
    model.load_state_dict(copy.deepcopy(loaded.state_dict()), assign=True)
    check(outputs(model, name), wanted)


@pytest.mark.parametrize("config", ("weight only", "static"))
def test_a_conversion_to_a_format(config: str, tmp_path: Path) -> None:
    """``to(memory_format=...)`` of a converted model is that of its float weights."""
    first, model = (converted(trained_in_format("image", config, last)) for last in (True, False))
    plain = outputs(model, "image")
    model.to(memory_format=torch.channels_last)
    assert model[0].channels_last and model[0].qweight.is_contiguous()
    check(outputs(model, "image"), outputs(first, "image"))
    model.double().float()
    assert model[0].channels_last
    save_file(model.state_dict(), tmp_path / "state")
    model.to(memory_format=torch.contiguous_format)
    assert not model[0].channels_last
    check(outputs(model, "image"), plain)
