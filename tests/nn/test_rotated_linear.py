# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers that rotate their inputs: the identity behind it, bits, gradients, state dicts."""

import copy
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from baraquant import W4A8, W4A16, W8A8, W8A16, QuantConfig, W8A8Static, ops, reference
from baraquant import nn as bnn
from baraquant.workflow.convert import Converter
from baraquant.workflow.layers import stage_of
from baraquant.workflow.served import served_linear
from tests.support.bits import without_switches
from tests.support.schemes import described

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("linear", "conv1d")
SCHEMES: dict[str, QuantConfig] = {
    "w8a8": W8A8(rotate=16), "w8a8_asymmetric": W8A8(False, rotate=256),
    "w4a8": W4A8(None, rotate=8),
    "ternary": described("int2 per_tensor ternary, int8 per_token", rotate=16),
    "static": W8A8Static("moving_average", rotate=16),
    "static_asymmetric": W8A8Static("moving_average", False, rotate=4),
    "per_tensor": described("int8, int8 per_tensor asymmetric", rotate=16),
    "w8a16": W8A16(rotate=2), "w4a16": W4A16(8, rotate=16),
    "w4a16_asymmetric": W4A16(4, False, rotate=8),
    "w4a8_groups": W4A8(8, rotate=16, group_factors=False),
    "groups_of_inputs": described("int8, int8 per_group(4)", rotate=16),
    "learned": described("int4 learned, int8 per_tensor learned", rotate=16),
    "observed_weight": described("int8 static, int8 per_token", rotate=16),
    "bfloat16_scales": W8A8(scale_dtype="bfloat16", rotate=16),
}  # fmt: skip
IN, OUT = 48, 10  # the largest block is 16


class Conv1D(nn.Module):
    """transformers' layer of this name: its weight is [in_features, out_features]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.nx, self.nf = linear.in_features, linear.out_features
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = linear.bias


def floating(layout: str = "linear", dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    linear = nn.Linear(IN, OUT).to(dtype)
    return linear if layout == "linear" else Conv1D(linear)


def rows_of(weight: Tensor, layout: str) -> Tensor:
    return weight if layout == "linear" else weight.t()


def prepared(config: QuantConfig, layout: str = "linear", dtype: Any = torch.float32) -> Any:
    """A layer whose ranges are known, in training."""
    kind = bnn.FakeQuantizedLinear if layout == "linear" else bnn.FakeQuantizedConv1D
    layer = kind.from_float(floating(layout, dtype), config)
    with torch.no_grad():
        layer(inputs(dtype))
    return layer


def inputs(dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, IN, generator=generator, dtype=torch.float64)
    x[..., 7] *= 30
    return x.to(dtype)


def converted(layer: Any) -> Any:
    kind = stage_of(layer)[0]
    assert kind is not None
    return served_linear(layer, Converter().integers(kind, layer))


def matrix(block: int) -> Tensor:
    """Sylvester's matrix as written in a book, over its root; a block for each of the inputs."""
    one = torch.ones(1, 1, dtype=torch.float64)
    while one.shape[0] < block:
        one = torch.cat([torch.cat([one, one], 1), torch.cat([one, -one], 1)])
    return torch.block_diag(*[one / block**0.5] * (IN // block))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [2, 4, 8, 16])
def test_the_identity_behind_it(block: int, layout: str) -> None:
    """x W' is (x H)(W H)': without rounding a rotated layer is the floating one."""
    x, float_layer = inputs(torch.float64), floating(layout, torch.float64)
    weight = rows_of(float_layer.weight.detach().clone(), layout)
    wanted = nn.functional.linear(x, weight, float_layer.bias)
    layer = prepared(W8A16(rotate=block), layout, torch.float64)
    h, near = matrix(block), {"rtol": 1e-14, "atol": 1e-15}
    torch.testing.assert_close(h @ h, torch.eye(IN, dtype=torch.float64), rtol=0, atol=1e-15)
    stored = rows_of(layer._parameters["weight"].detach(), layout)
    torch.testing.assert_close(stored, weight @ h, **near)
    layer.apply(bnn.disable_fake_quant)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rows_of(layer.weight.detach(), layout), weight, **near)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_served_as_it_is_evaluated(scheme: str, dtype: torch.dtype, layout: str) -> None:
    layer = prepared(SCHEMES[scheme], layout, dtype).eval()
    served = converted(layer)
    assert served.rotate == layer.rotate == layer.config.rotate > 1
    for x in (inputs(dtype), inputs(dtype)[0, 0], inputs(dtype)[:0], inputs(dtype)[:, ::2]):
        got = served(x)
        assert got.dtype == dtype and torch.equal(got, layer(x))
    assert torch.equal(served.weight.clone(), layer.weight.detach())
    assert served.weight.shape == layer._parameters["weight"].shape
    assert served.weight.dtype == dtype


@pytest.mark.exhaustive
@pytest.mark.parametrize("bits", [(8, 8), (4, 8), (3, 2)])  # of the weight and of the input
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_numbers_are_the_contracts(dtype: torch.dtype, symmetric: bool, bits: Any) -> None:
    """Rotate, quantize, multiply: by the reference in plain PyTorch, from the float layer."""
    float_layer, x = floating(dtype=dtype), inputs(dtype)
    weight, rows = (reference.hadamard(t, 16) for t in (float_layer.weight.detach(), x))
    of_weight, ends = ((-(1 << n - 1), (1 << n - 1) - 1) for n in bits)
    qweight, weight_scale, _ = reference.dynamic_range_quantize_per_channel(weight, 0, *of_weight)
    q, scale, zero = reference.dynamic_range_quantize_per_token(rows, *ends, symmetric=symmetric)
    wanted = reference.int8_linear(
        q, qweight, scale, weight_scale, float_layer.bias.detach(),
        input_zero_point=None if symmetric else zero, dtype=dtype,
    )  # fmt: skip
    zero_point = "symmetric" if symmetric else "asymmetric"
    config = described(f"int{bits[0]}, int{bits[1]} per_token {zero_point}", rotate=16)
    layer = prepared(config, dtype=dtype)
    served = converted(layer)
    for one in (layer, layer.eval(), served):
        assert torch.equal(one(x).detach(), wanted)
    assert torch.equal(served.qweight, qweight) and torch.equal(served.weight_scale, weight_scale)


def composed(layer: Any, x: Tensor, weight: Tensor, layout: str) -> Tensor:
    """The layer in float64 operations that autograd knows, straight through every rounding."""

    def through(values: Tensor, rounded: Tensor) -> Tensor:
        return values + (rounded - values).detach()

    rows = x @ matrix(layer.rotate)
    rows = through(rows, layer.rounded_input(rows.detach()))
    # The parameter is in the rotated basis.
    stored = through(weight, rows_of(layer.fake_quantized_weight().detach(), layout))
    return nn.functional.linear(rows, stored, layer.bias)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheme", ["w8a8", "w4a8", "per_tensor", "w8a16", "w4a16", "w4a8_groups"])
def test_gradients_are_those_of_the_composed_operations(scheme: str, layout: str) -> None:
    layer = prepared(SCHEMES[scheme], layout, torch.float64)
    x = inputs(torch.float64).requires_grad_()
    weight = rows_of(layer._parameters["weight"].detach().clone(), layout).requires_grad_()
    wanted = composed(layer, x, weight, layout)
    dy = torch.randn_like(wanted)
    dx, dw = torch.autograd.grad(wanted, (x, weight), dy)
    for training in (True, False):
        layer.train(training)
        layer.zero_grad()
        given = inputs(torch.float64).requires_grad_()
        y = layer(given)
        torch.testing.assert_close(y, wanted, rtol=1e-9, atol=1e-9)
        y.backward(dy)
        own = rows_of(layer._parameters["weight"].grad, layout)
        torch.testing.assert_close(given.grad, dx, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(own, dw, rtol=1e-9, atol=1e-9)


def test_reading_the_weight() -> None:
    """It is the float layer's, in training and after it; a write is an error, never lost."""
    wanted = floating().weight.detach().clone()
    layer = prepared(W8A8(rotate=16))
    parameter = layer._parameters["weight"]
    assert not torch.allclose(parameter, wanted, atol=1e-3)
    for training in (True, False):
        layer.train(training)
        near = 1e-6 if training else 1e-2
        torch.testing.assert_close(layer.weight.detach().clone(), wanted, rtol=0, atol=near)
        assert layer.weight.requires_grad and layer.weight.shape == wanted.shape
        with pytest.raises(RuntimeError, match=r"FakeQuantizedLinear: expected weight to be read"):
            layer.weight.data.add_(2)
    layer.train()
    (layer.weight * 2).sum().backward()  # the gradient goes on to the parameter
    turned = ops.hadamard(torch.full_like(wanted, 2.0), 16)
    torch.testing.assert_close(parameter.grad, turned)
    assert layer.weight.grad is parameter.grad
    served = converted(layer.eval())
    torch.testing.assert_close(served.weight.clone(), wanted, rtol=0, atol=1e-2)
    assert torch.equal(served.dequantized_weight(), layer.weight.detach())


@pytest.mark.exhaustive
def test_tools_that_compute_the_weight() -> None:
    """They would read the weight before the rotation, and write it as if it were rotated."""
    text = "FakeQuantizedLinear: expected the rotated weight to be a parameter.*without rotate"
    layer = prepared(SCHEMES["w8a8"])
    for tool in (
        lambda one: parametrize.register_parametrization(one, "weight", nn.Identity()),
        torch.nn.utils.parametrizations.weight_norm,
        lambda one: torch.nn.utils.weight_norm(one)(inputs()),
    ):
        with pytest.raises(RuntimeError, match=text):
            tool(copy.deepcopy(layer))
    parameters = dict(layer.named_parameters())
    assert torch.equal(torch.func.functional_call(layer, parameters, inputs()), layer(inputs()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("strict", [True, False])
def test_a_state_dict_of_another_basis_is_refused(strict: bool) -> None:
    """Both ways, also where a file format holds nothing but names and tensors."""
    layers = {block: prepared(W8A8(rotate=block)) for block in (16, None, 8)}
    rotated, plain = layers[16], layers[None]
    assert list(without_switches(rotated.state_dict())) == ["weight", "bias", "rotation"]
    assert list(without_switches(plain.state_dict())) == ["weight", "bias"]
    fresh = bnn.FakeQuantizedLinear(IN, OUT, config=W8A8(rotate=16))
    fresh.load_state_dict(dict(rotated.state_dict()), strict=strict)
    assert torch.equal(fresh(inputs()), rotated(inputs()))
    for (block, target), (other, source) in permutations(layers.items(), 2):
        for state in (source.state_dict(), dict(source.state_dict())):
            text = f"with rotate={block}, as the layer has, but got one with rotate={other}"
            with pytest.raises(RuntimeError, match=text):
                target.load_state_dict(state, strict=strict)
    text = "expected a weight with rotate=16, .*load floating weights before baraquant.qat.prepare_"
    with pytest.raises(RuntimeError, match=text):
        rotated.load_state_dict(floating().state_dict(), strict=strict)
    rotated.load_state_dict({"bias": torch.zeros(OUT)}, strict=False)  # no weight in it
    if strict:
        with pytest.raises(RuntimeError, match=r"Unexpected key.*rotation"):
            floating().load_state_dict(rotated.state_dict())


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["w8a8", "static", "w4a16"])
def test_integers_of_another_basis_are_refused(scheme: str) -> None:
    config = SCHEMES[scheme]
    rotated, again = (converted(prepared(config)) for _ in range(2))
    plain = converted(prepared(config.with_rotation(0)))
    again.load_state_dict(rotated.state_dict())
    assert torch.equal(again(inputs()), rotated(inputs()))
    for target, own, source, other in ((plain, None, rotated, 16), (rotated, 16, plain, None)):
        text = f"rotate={own}, as the layer has, but got.*rotate={other}"
        with pytest.raises(RuntimeError, match=text):
            target.load_state_dict(source.state_dict())


@pytest.mark.exhaustive
def test_a_layer_that_is_built_is_the_float_layer_of_its_seed() -> None:
    torch.manual_seed(3)
    layer = bnn.FakeQuantizedLinear(IN, OUT, config=W8A8(rotate=16), dtype=torch.float64)
    torch.manual_seed(3)
    wanted = nn.Linear(IN, OUT, dtype=torch.float64)
    torch.testing.assert_close(layer.weight.detach().clone(), wanted.weight.detach())
    odd = bnn.FakeQuantizedLinear(7, 3, config=W8A8(rotate=16))
    assert odd.rotate == 0 and "rotation" not in odd.state_dict() and "rotate" not in str(odd)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_weight_is_rounded_once(dtype: torch.dtype) -> None:
    weight = floating(dtype=dtype).weight.detach().clone()
    layer = prepared(W8A8(rotate=16), dtype=dtype)
    wide = weight.double() @ matrix(16)
    error = (layer._parameters["weight"].double() - wide).abs()
    half_a_step = torch.finfo(dtype).eps / 2 * wide.abs() * 1.0001
    assert bool((error <= half_a_step + 1e-7).all())
