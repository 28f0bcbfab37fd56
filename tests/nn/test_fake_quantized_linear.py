# SPDX-License-Identifier: BSD-3-Clause
"""`FakeQuantizedLinear` of any width trains on the product of integers that it is deployed as."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import baraquant
from baraquant import QuantConfig, TensorConfig, ops
from baraquant.nn import FakeQuantizedLinear, QuantizedLinear
from baraquant.qat import convert_
from tests.support import cases
from tests.support.bits import assert_same_bits

WIDTHS = tuple(itertools.product((2, 3, 4, 8), (2, 4, 8)))  # of the weight and of the input
by_width = pytest.mark.parametrize(("weight", "input"), WIDTHS, ids=lambda bits: f"{bits}")
by_mode = pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


def config_of(weight: int, input: int, symmetric: bool = True) -> QuantConfig:
    return QuantConfig(TensorConfig(weight), TensorConfig(input, "per_token", symmetric))


def layer_of(
    weight: int,
    input: int,
    symmetric: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> FakeQuantizedLinear:
    torch.manual_seed(0)
    layer = FakeQuantizedLinear(40, 24, config=config_of(weight, input, symmetric))
    return layer.to(device, dtype)


def example(dtype: torch.dtype = torch.float32, device: str = "cpu", rows: int = 6) -> Tensor:
    gen = cases.generator(rows)
    return (2 * torch.randn(3, rows, 40, generator=gen) + 0.5).to(device, dtype)


def ends(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


@by_width
@by_mode
@by_dtype
def test_training_is_evaluation_is_deployment(
    weight: int, input: int, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    """The same bits, also after a step; and those of integers, multiplied by themselves."""
    model = nn.Sequential(layer_of(weight, input, symmetric, dtype, device))
    x = example(dtype, device)
    model(x).float().square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    trained = model.train()(x)
    evaluated = model.eval()(x)
    with torch.no_grad():
        assert_same_bits(model(x), evaluated)
    layer = model[0]
    q, s, z = ops.dynamic_range_quantize_per_token(x, *ends(input), symmetric=symmetric)
    qw, sw, _ = ops.dynamic_range_quantize_per_channel(layer.weight.detach(), 0, *ends(weight))
    point = None if symmetric else z
    expected = ops.int8_linear(
        q, qw, s, sw, layer.bias.detach(), input_zero_point=point, dtype=dtype
    )
    convert_(model)
    assert type(model[0]) is QuantizedLinear and model[0].weight_bits == weight
    assert torch.equal(model[0].qweight, qw) and qw.abs().max() == ends(weight)[1]
    for y in (trained, evaluated, model(x)):
        assert_same_bits(y.detach(), expected)


def test_switches_act_in_training(device: str) -> None:
    """Off, a quantizer lets values through; evaluation is deployment whatever they say."""
    layer, x = layer_of(4, 4, device=device), example(device=device)
    evaluated = layer.eval()(x)
    layer.train().apply(baraquant.nn.disable_fake_quant)
    torch.testing.assert_close(layer(x), linear(x, layer.weight, layer.bias))
    assert torch.equal(layer.eval()(x), evaluated)
    layer.train().apply(baraquant.nn.enable_fake_quant)
    assert torch.equal(layer(x), evaluated)


@pytest.mark.parametrize("grad", (True, False), ids=("grad", "no_grad"))
@by_mode
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_autocast_leaves_evaluation_alone(
    dtype: torch.dtype, symmetric: bool, grad: bool, device: str
) -> None:
    """It is what convert_ makes of the float32 weight, whatever comes in."""
    model = nn.Sequential(layer_of(4, 8, symmetric, device=device)).eval()
    x = example(dtype, device)
    with torch.autocast(device, dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        evaluated = model(x)
        assert evaluated.requires_grad == grad
        convert_(model)
        assert_same_bits(evaluated.detach(), model(x))
