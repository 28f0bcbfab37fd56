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
from baraquant.qat import convert_, prepare_
from tests.support import cases
from tests.support.bits import assert_same_bits

WIDTHS = tuple(itertools.product((2, 3, 4, 8), (2, 4, 8)))  # of the weight and of the input
by_width = pytest.mark.parametrize(("weight", "input"), WIDTHS, ids=lambda bits: f"{bits}")
by_mode = pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
jit = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


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


def float_output(layer: FakeQuantizedLinear, x: Tensor) -> Tensor:
    """What the gradients are those of."""
    weight, input = layer.config.weight.bits, layer.config.activation.bits
    rounded = ops.dynamic_fake_quantize_per_token(x, *ends(input), symmetric=layer.symmetric)
    of_weight = ops.dynamic_fake_quantize_per_channel(layer.weight, 0, *ends(weight))
    return linear(rounded, of_weight, layer.bias)


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


@by_width
@by_mode
@pytest.mark.parametrize("training", (True, False), ids=("training", "evaluation"))
def test_gradients(weight: int, input: int, symmetric: bool, training: bool, device: str) -> None:
    """Straight through the roundings, in evaluation too."""
    layer = layer_of(weight, input, symmetric, torch.float64, device).train(training)
    x = example(torch.float64, device).requires_grad_()
    wanted = (x, *layer.parameters())
    y, smooth = layer(x), float_output(layer, x)
    dy = torch.randn(y.shape, generator=cases.generator(1)).to(y)
    torch.testing.assert_close(y, smooth)
    actual, expected = (torch.autograd.grad(out, wanted, dy) for out in (y, smooth))
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, right)
        assert got.any()


def test_one_op_computes_it(device: str) -> None:
    """With the kernels that eight bits take."""
    layer, x = layer_of(4, 8, False, device=device), example(device=device)
    of_op = ops.qat_linear(x, layer.weight)
    assert type(layer(x).grad_fn).__name__ == type(of_op.grad_fn).__name__
    arguments = (x, layer.weight, layer.bias)
    ranges = {"weight_quant_min": -8, "weight_quant_max": 7, "quant_min": -2, "quant_max": 1}
    plan = baraquant.plan(ops.qat_linear, *arguments, **ranges)
    assert plan == baraquant.plan(ops.qat_linear, *arguments) and len(plan) == 3
    ok, kind, reason = baraquant.can_implement(ops.qat_linear, *arguments, weight_quant_min=-9)
    assert (ok, kind) == (False, "ValueError") and "weight_quant_max to have 0" in reason


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


def test_evaluation_with_gradients_keeps_the_bits_of_what_overflows(device: str) -> None:
    """Where the training's formula is infinite or NaN, the integers are not; -0.0 stays."""
    model = nn.Sequential(nn.Linear(16, 4))
    prepare_(model, baraquant.W8A8Static())
    x = example()[..., :16].contiguous()
    model(x)
    model.to(device).eval()
    x[0, 0, 0], x[0, 1, 1] = float("nan"), float("inf")
    with_gradients = model(x.to(device))
    assert with_gradients.requires_grad
    convert_(model)
    assert_same_bits(with_gradients.detach(), model(x.to(device)))
    assert with_gradients.isfinite().all()
