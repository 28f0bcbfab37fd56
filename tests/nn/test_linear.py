# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers of integers: values, checks, and their life as modules."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import ops
from baraquant.nn import FakeQuantize, QuantizedLinear, StaticQuantizedLinear, WeightOnlyLinear
from tests.support import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
N, K = 5, 12
GENERATOR = cases.generator


def weight(bits: int = 8) -> Tensor:
    limits = -(2 ** (bits - 1)), 2 ** (bits - 1)
    return torch.randint(*limits, (N, K), generator=GENERATOR(0)).to(torch.int8)


def scale(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=GENERATOR(seed)) * 0.1 + 0.01


def example(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, K, generator=GENERATOR(2)).to(dtype)


def dynamic(bias: bool = True, **changes: Any) -> QuantizedLinear:
    return QuantizedLinear(weight(), scale(N), scale(N, seed=3) if bias else None, **changes)


def static(zero: int | None = None, smooth: bool = False, **changes: Any) -> StaticQuantizedLinear:
    return StaticQuantizedLinear(
        weight(),
        scale(N),
        torch.tensor(0.02),
        scale(N, seed=3),
        act_zero_point=None if zero is None else torch.tensor(zero),
        smooth_scale=scale(K, seed=4) if smooth else None,
        **changes,
    )


def grouped(zero: bool = False, **changes: Any) -> WeightOnlyLinear:
    zeros = torch.arange(3 * N).reshape(N, 3) % 5 - 2 if zero else None
    return WeightOnlyLinear(
        weight(4),
        scale(N, 3),
        scale(N, seed=3),
        weight_zero_point=zeros,
        group_size=4,
        weight_bits=4,
        **changes,
    )


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dynamic": dynamic,
    "no_bias": lambda: dynamic(bias=False),
    "asymmetric": lambda: dynamic(symmetric=False),
    "four_bits": lambda: dynamic(bits=4, weight_bits=4),
    "per_tensor": lambda: dynamic(granularity="per_tensor", symmetric=False),
    "smooth": lambda: dynamic(smooth=scale(K, seed=4)),
    "static": static,
    "static_asymmetric": lambda: static(7),
    "static_smooth": lambda: static(-3, smooth=True),
    "static_four_bits": lambda: static(bits=4),
    "weight_only": lambda: WeightOnlyLinear(weight(), scale(N)),
    "grouped": grouped,
    "grouped_asymmetric": lambda: grouped(True),
    "grouped_rounded": lambda: grouped(
        input_fake_quant=FakeQuantize(mode="dynamic", granularity="per_token", symmetric=False)
    ),
    "grouped_static": lambda: grouped(input_fake_quant=FakeQuantize(0.05, 3)),
}
by_layer = pytest.mark.parametrize("name", LAYERS)


def wanted(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer by its definition, in float64: integers apart from scales."""
    x64, w = x.double(), layer.qweight.double()
    if isinstance(layer, WeightOnlyLinear):
        zero = 0 if layer.weight_zero_point is None else layer.weight_zero_point
        factor, size = layer.weight_scale.double(), layer.group_size
        if size is not None:
            factor = factor.repeat_interleave(size, 1)
            zero = zero if isinstance(zero, int) else zero.repeat_interleave(size, 1)
        else:
            factor = factor[:, None]
        y = layer.input_fake_quant(x).double() @ ((w - zero) * factor).T
    else:
        low, high = -(2 ** (layer.bits - 1)), 2 ** (layer.bits - 1) - 1
        if isinstance(layer, StaticQuantizedLinear):
            s, z = layer.act_scale.double(), layer.act_zero_point
            z = 0 if z is None else z
            step = s if layer.smooth_scale is None else layer.smooth_scale.double()
        else:
            x64 = x64 if layer.smooth is None else x64 / layer.smooth.double()
            every = (-1,) if layer.granularity == "per_token" else (-3, -2, -1)
            if layer.symmetric:
                s, z = x64.abs().amax(every, keepdim=True) / high, 0
            else:
                ends = [x64.clamp(max=0).amin(every, True), x64.clamp(min=0).amax(every, True)]
                s = (ends[1] - ends[0]) / (high - low)
                z = low - (ends[0] / s).round()
            step = s
        q = ((x64 / step).round() + z).clamp(low, high)
        y = ((q - z) @ w.T) * s * layer.weight_scale.double()
    return y if layer.bias is None else y + layer.bias.double()


@by_layer
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_value(name: str, dtype: torch.dtype, device: str) -> None:
    layer, x = LAYERS[name]().to(device, dtype), example(dtype).to(device)
    y = layer(x)
    assert y.dtype == dtype and y.shape == (2, 3, N) and not y.requires_grad
    # A tie that rounds otherwise in float32 would cost one step of an integer: a wide tolerance.
    close = {torch.float64: 1e-9, torch.float32: 1e-2}.get(dtype, 5e-2)
    expected = wanted(layer, x)
    assert (y.double() - expected).norm() < close * expected.norm()
    if name != "per_tensor":
        exact = not isinstance(layer, WeightOnlyLinear)
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(layer(x[0, 0]), y[0, 0], **tolerance)


@by_layer
def test_bits_are_those_of_the_ops(name: str) -> None:
    layer, x = LAYERS[name](), example()
    args = (layer.qweight, layer.weight_scale, layer.bias)
    if name in ("dynamic", "no_bias", "asymmetric"):
        y = ops.quantized_linear(x, *args, symmetric=layer.symmetric)
    elif name in ("static", "static_asymmetric"):
        q = ops.quantize_per_tensor(x, layer.act_scale, layer.act_zero_point)
        y = ops.smoothquant_linear(
            q, *args[:2], layer.act_scale, layer.bias, act_zero_point=layer.act_zero_point
        )
    else:
        pytest.skip("of several ops")
    assert torch.equal(layer(x), y)


@by_layer
def test_state_holds_the_arguments_alone(name: str) -> None:
    layer = LAYERS[name]()
    state = layer.state_dict()
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert state["qweight"].dtype == torch.int8
    for tensor in state.values():
        assert type(tensor) is Tensor and tensor.is_contiguous()


@by_layer
def test_state_makes_another_layer_the_same(name: str) -> None:
    layer, x = LAYERS[name](), example()
    y = layer(x)
    other = LAYERS[name]()
    for buffer in other.buffers():
        buffer.zero_()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other.load_state_dict(state)
    assert torch.equal(other(x), y)
    empty = LAYERS[name]().to("meta")
    assert empty(x.to("meta")).shape == y.shape
    empty.load_state_dict(state, assign=True)
    assert torch.equal(empty(x), y)
    empty = LAYERS[name]().to("meta").to_empty(device="cpu")
    empty.load_state_dict(state)
    assert torch.equal(empty(x), y)


@by_layer
def test_copies(name: str) -> None:
    layer, x = LAYERS[name](), example()
    y = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), y)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), y)
    assert torch.equal(layer.train()(x), y), "training changes nothing"


@by_layer
def test_conversions_keep_scales_exact(name: str) -> None:
    layer = LAYERS[name]()
    before = copy.deepcopy(layer.state_dict())
    for dtype in (torch.float16, torch.bfloat16):
        other = copy.deepcopy(layer).to(dtype)
        for key, tensor in other.state_dict().items():
            if key == "bias":
                assert tensor.dtype == dtype
            else:
                assert torch.equal(tensor, before[key]) and tensor.dtype == before[key].dtype, key
    assert copy.deepcopy(layer).double().weight_scale.dtype == torch.float64


@by_layer
def test_scripted(name: str) -> None:
    layer, x = LAYERS[name](), example()
    scripted = torch.jit.script(layer)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    y = layer(x)
    assert torch.equal(scripted(x), y) and torch.equal(torch.jit.load(file)(x), y)


@by_layer
def test_exported(name: str) -> None:
    layer, x = LAYERS[name](), example()
    tokens = torch.export.Dim("tokens", min=2, max=64)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({1: tokens},))
    assert torch.equal(exported.module()(x), layer(x))
    longer = torch.randn(2, 7, K, generator=GENERATOR(5))
    assert torch.equal(exported.module()(longer), layer(longer))


@pytest.mark.parametrize("name", ["dynamic", "asymmetric", "smooth", "static_smooth", "grouped"])
def test_compiled(name: str) -> None:
    torch._dynamo.reset()
    layer, x = LAYERS[name](), example()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x))


def test_smoothing_costs_no_accuracy_but_where_it_acts() -> None:
    """A feature a hundred times as large takes the others' precision; smoothed, it does not."""
    x = example()
    x[..., 4] *= 100
    float_weight = torch.randn(N, K, generator=GENERATOR(6)) * 0.1
    float_weight[:, 4] *= 0.01
    y = x @ float_weight.T
    smooth = torch.ones(K)
    smooth[4] = 100.0
    errors = []
    for factor in (torch.ones(K), smooth):
        q, s, _ = ops.dynamic_range_quantize_per_channel(float_weight * factor, 0)
        layers = [QuantizedLinear(q, s, smooth=factor)]
        act_scale = (x / factor).abs().max() / 127
        layers += [StaticQuantizedLinear(q, s, act_scale, smooth_scale=act_scale * factor)]
        errors.append([((layer(x) - y).norm() / y.norm()).item() for layer in layers])
    assert all(after < 0.5 * before for before, after in zip(*errors, strict=True)), errors


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: QuantizedLinear(scale(N, K), scale(N)), TypeError, "weight to be int8, .*float32"),
        (lambda: QuantizedLinear(weight()[0], scale(N)), ValueError, "weight to have 2 dimensions"),
        (lambda: QuantizedLinear(weight(), scale(4)), ValueError, "weight_scale to have 5 elem"),
        (lambda: QuantizedLinear(weight(), scale(N).half()), TypeError, "weight_scale .*float16"),
        (lambda: QuantizedLinear(weight(), scale(N), scale(4)), ValueError, "bias to have 5"),
        (lambda: QuantizedLinear(weight(), scale(N), weight()[:, 0]), TypeError, "bias .*floating"),
        (lambda: dynamic(bits=9), ValueError, r"bits to be an int in \[2, 8\], but got 9"),
        (lambda: dynamic(weight_bits=1), ValueError, "weight_bits to be an int"),
        (lambda: dynamic(granularity="per_group"), ValueError, "per_token or per_tensor"),
        (lambda: dynamic(smooth=scale(N)), ValueError, r"smooth to have 12 elements .* \[5\]"),
        (
            lambda: StaticQuantizedLinear(weight(), scale(N), scale(2)),
            ValueError,
            "act_scale to have one element",
        ),
        (
            lambda: StaticQuantizedLinear(weight(), scale(N), scale(1), act_zero_point=scale(1)),
            TypeError,
            "act_zero_point to be integer",
        ),
        (
            lambda: StaticQuantizedLinear(weight(), scale(N), scale(1), smooth_scale=scale(3)),
            ValueError,
            "smooth_scale to have 12 elements",
        ),
        (
            lambda: WeightOnlyLinear(weight(), scale(N, 2), group_size=4),
            ValueError,
            r"shape \[5, 3\] \(groups of 4\), but got \[5, 2\]",
        ),
        (
            lambda: WeightOnlyLinear(weight(), scale(N, 2), group_size=0),
            ValueError,
            "group_size > 0",
        ),
        (
            lambda: WeightOnlyLinear(weight(), scale(N), weight_zero_point=torch.zeros(2).int()),
            ValueError,
            "weight_zero_point to have the shape of weight_scale",
        ),
    ],
)
def test_what_is_refused(build: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as info:
        build()
    assert str(info.value).split(":")[0].endswith("Linear")


def test_repr() -> None:
    assert repr(dynamic(smooth=scale(K))) == (
        "QuantizedLinear(in_features=12, out_features=5, bias=True, weight=int8 per_channel, "
        "input=int8 per_token symmetric dynamic, smooth)"
    )
    assert repr(static(3, bits=4)) == (
        "StaticQuantizedLinear(in_features=12, out_features=5, bias=True, weight=int8 per_channel, "
        "input=int4 per_tensor asymmetric static)"
    )
    assert "weight=int4 per_group(4) asymmetric" in repr(grouped(True))
