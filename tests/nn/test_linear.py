# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers of integers: values, checks, and their life as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import ops
from baraquant.nn import FakeQuantize, QuantizedLinear, StaticQuantizedLinear, WeightOnlyLinear
from tests.nn.test_quantizer_modules import saved
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
        weight(), scale(N), torch.tensor(0.02), scale(N, seed=3),
        act_zero_point=None if zero is None else torch.tensor(zero), smooth_scale=scale(K,
        seed=4) if smooth else None, **changes,
    )  # fmt: skip


def grouped(zero: bool = False, **changes: Any) -> WeightOnlyLinear:
    zeros = torch.arange(3 * N).reshape(N, 3) % 5 - 2 if zero else None
    return WeightOnlyLinear(
        weight(4), scale(N, 3), scale(N, seed=3), weight_zero_point=zeros, group_size=4,
        weight_bits=4, **changes,
    )  # fmt: skip


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
def test_in_every_kind_of_graph(name: str) -> None:
    torch._dynamo.reset()
    layer, x = LAYERS[name](), example()
    longer = torch.randn(2, 7, K, generator=GENERATOR(5))
    script = torch.jit.script(layer)
    tokens = torch.export.Dim("tokens", min=2, max=64)
    for graph in (
        script,
        torch.jit.load(saved(torch.jit.save, script)),
        torch.compile(layer, fullgraph=True, backend="aot_eager"),
        torch.export.export(layer, (x,), dynamic_shapes=({1: tokens},)).module(),
    ):
        assert torch.equal(graph(x), layer(x)) and torch.equal(graph(longer), layer(longer))


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
