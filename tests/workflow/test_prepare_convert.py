# SPDX-License-Identifier: BSD-3-Clause
"""`prepare_` and `convert_`: what becomes of a model, and that conversion changes no bit."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, QuantConfig, TensorConfig, W8A8Static
from baraquant.configs import Config
from baraquant.nn import QuantizedLinear, StaticQuantizedLinear, WeightOnlyLinear
from baraquant.qat import convert_, prepare_
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.models import outlier_models, training_models
from tests.support.models.training_models import SCHEMES, data, linear_model, train

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
by_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def trained(model: nn.Module, config: Config, *batches: Tensor, lr: float = 0.05) -> nn.Module:
    prepare_(model, config)
    return train(model, *batches, lr=lr)


def assert_converts_to_the_same_bits(model: nn.Module, *inputs: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    with_grad = [model(x) for x in inputs]
    convert_(model)
    for x, y, z in zip(inputs, wanted, with_grad, strict=True):
        assert_same_bits(model(x), y)
        assert_same_bits(y, z.detach())


@pytest.mark.parametrize("activation", training_models.activation_configs(), ids=str)
@pytest.mark.parametrize("bits", range(2, 9))
def test_converted_bits(bits: int, activation: TensorConfig | None, device: str) -> None:
    """Every kind of weight beside every kind of activation, of the same width.

    Training too has the bits of a product of integers, where it computes that.
    """
    torch.manual_seed(0)
    activation = activation and dataclasses.replace(activation, bits=bits)
    x = data(3, 2, 8).to(device)
    for weight in training_models.weight_configs((bits,)):
        model = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 3, bias=False)).to(device)
        config = QuantConfig(weight, activation)
        trained(model, config, x, lr=0.5)
        if config.trains_on_integers:
            assert_same_bits(model(x), model.eval()(x))
        assert_converts_to_the_same_bits(model, x, -2 * x[:1])


@by_scheme
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_converted_bits_of_dtypes(scheme: str, dtype: torch.dtype, device: str) -> None:
    """Also of large, small and special inputs, and of a row of zeros in the weight."""
    x = data(4, 3, 16).to(device, dtype)
    model = linear_model().to(device, dtype)
    model[0].weight.data[1] = 0
    trained(model, SCHEMES[scheme], x, 2 * x)
    assert model[0].weight.dtype == dtype
    special = [x.clone() for _ in range(4)]
    for one, value in zip(special, (0.0, math.inf, -math.inf, math.nan), strict=True):
        one[1, 2, 3] = value
    sizes = [x * 2.0**exponent for exponent in (-12, 12)]
    assert_converts_to_the_same_bits(model, x, x[0], x[0, 0], *sizes, *special)
    assert model(x).dtype == dtype


@by_scheme
def test_evaluation_has_the_gradient_of_training(scheme: str) -> None:
    """Also where the value is of an integer product: frozen BatchNorm or Dropout are no reason."""
    x = data(4, 3, 16).requires_grad_()
    model = trained(linear_model(), SCHEMES[scheme], x.detach())
    model.apply(baraquant.nn.disable_observer)
    gradients = []
    for mode in (True, False):
        model.train(mode).zero_grad()
        x.grad = None
        model(x).sum().backward()
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_switches_act_in_training() -> None:
    """Off, a quantizer lets values through; evaluation is deployment whatever they say."""
    layer, x = baraquant.nn.FakeQuantizedLinear(40, 24, config=W8A8()), data(3, 40)
    evaluated = layer.eval()(x)
    layer.train().apply(baraquant.nn.disable_fake_quant)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert torch.equal(layer.eval()(x), evaluated)
    layer.train().apply(baraquant.nn.enable_fake_quant)
    assert torch.equal(layer(x), evaluated)


def test_what_linear_layers_become() -> None:
    int8, static = TensorConfig(8, "per_token"), TensorConfig(8, "per_tensor", dynamic=False)
    for config, kind in (
        (W8A8(), QuantizedLinear),
        (QuantConfig(TensorConfig(4), int8), QuantizedLinear),
        (QuantConfig(TensorConfig(4), TensorConfig(4, "per_tensor")), QuantizedLinear),
        (training_models.STATIC, StaticQuantizedLinear),
        (QuantConfig(TensorConfig(8, "per_tensor"), static), StaticQuantizedLinear),
        (QuantConfig(TensorConfig(8, "per_group", group_size=4), int8), WeightOnlyLinear),
        (QuantConfig(TensorConfig(8, symmetric=False), int8), WeightOnlyLinear),
        (QuantConfig(TensorConfig()), WeightOnlyLinear),
    ):
        model = trained(linear_model(), config, data(4, 16))
        convert_(model)
        assert [type(layer) for layer in model if hasattr(layer, "weight")] == [kind] * 3
        assert all(not layer.training or model.training for layer in model)
        assert model[0].qweight.int().abs().max() <= 2 ** (model[0].weight_bits - 1)


def test_modes_and_hooks_are_taken_over() -> None:
    model = linear_model()
    model[2].eval()
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("after"))
    model[0].register_forward_pre_hook(lambda *_, **__: calls.append("before"), with_kwargs=True)
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    prepare_(model, W8A8())
    assert model[0].training and not model[2].training and not model[2].weight_fake_quant.training
    model(data(2, 16)).sum().backward()
    assert calls == ["before", "after", "backward"]
    convert_(model)
    model(data(2, 16))
    assert calls[3:] == ["before", "after"]


def run_once(scheme: str, *, is_converted: bool, seed: int = 0) -> nn.Module:
    """A model with tied weights and shared modules that has seen a batch, in evaluation."""
    torch.manual_seed(seed)
    model = outlier_models.Tied()
    prepare_(model, SCHEMES[scheme])
    model(outlier_models.tokens()[1])
    if is_converted:
        convert_(model)
    return model.eval()


@pytest.mark.parametrize("is_converted", [False, True], ids=["prepared", "converted"])
@pytest.mark.parametrize("scheme", ["learned", "w8a8"])
def test_tools_of_pytorch(scheme: str, is_converted: bool, tmp_path: Path) -> None:
    model, x = run_once(scheme, is_converted=is_converted), outlier_models.tokens()[0]
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
        # safetensors' own functions: plain tensors, and ties that they can see.
        safetensors.torch.save_model(model, tmp_path / "model")
        other = run_once(scheme, is_converted=is_converted, seed=7)
        assert not torch.equal(other(x), expected)
        safetensors.torch.load_model(other, tmp_path / "model")
        assert torch.equal(other(x), expected)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)


INPUTS: dict[str, Callable[[], Tensor]] = {
    "no_rows": lambda: torch.empty(0, 16),
    "no_tokens": lambda: torch.empty(2, 0, 16),
    "vector": lambda: data(16),
    "five_dimensions": lambda: data(2, 1, 3, 2, 16),
    "transposed": lambda: data(16, 7).T,
    "every_other": lambda: data(7, 32)[:, ::2],
    "expanded": lambda: data(1, 16).expand(5, 16),
    "permuted": lambda: data(2, 16, 3, 5).permute(0, 2, 3, 1),
    "zeros": lambda: torch.zeros(3, 16),
    "huge": lambda: data(4, 16) * 3e37,
    "tiny": lambda: data(4, 16) * 1e-40,
    **{
        str(value): lambda value=value: data(4, 16).index_fill(1, torch.tensor(3), value)
        for value in (math.nan, math.inf, -math.inf)
    },
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_inputs_of_every_shape(scheme: str) -> None:
    model = linear_model()
    prepare_(model, SCHEMES[scheme])
    model(data(6, 16))
    converted = copy.deepcopy(model).eval()
    convert_(converted)
    for name, make in INPUTS.items():
        x = make()
        with torch.no_grad():
            prepared, served = model.eval()(x), converted(x)
        assert served.shape == (*x.shape[:-1], 4), name
        for got in (prepared, converted(x.contiguous())):
            assert torch.equal(got.isnan(), served.isnan()), name
            assert torch.equal(got.nan_to_num(), served.nan_to_num()), name
        trained = copy.deepcopy(model).train()
        trained(x).sum().backward()
        gradients = [parameter.grad for parameter in trained.parameters()]
        assert all(gradient is not None for gradient in gradients), name
        if x.numel() == 0:
            assert not any(gradient.any() for gradient in gradients), name
            assert trained.eval()(data(3, 16)).isfinite().all(), name


def test_on_the_meta_device() -> None:
    """A large model is built without memory, prepared, and then gets its weights."""
    x = data(4, 16)
    for scheme, place in itertools.product(SCHEMES, ("meta", "cpu")):  # of new tensors by default
        real = trained(linear_model(), SCHEMES[scheme], x).eval()
        model = linear_model().to("meta")
        with torch.device(place):
            prepare_(model, SCHEMES[scheme])
        away = [path for path, tensor in model.state_dict().items() if not tensor.is_meta]
        assert away == [], scheme
        model.load_state_dict(real.state_dict(), assign=True)
        assert torch.equal(model.eval()(x), real(x)), scheme


def test_models_of_several_dtypes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 8).bfloat16()
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x.bfloat16()).float())

    for scheme in SCHEMES.values():
        model = trained(Mixed(), scheme, data(4, 8))
        assert model.body.weight.dtype == torch.bfloat16 and model.body.weight.grad is not None
        assert_converts_to_the_same_bits(model, data(4, 8))


def test_the_observers_of_training() -> None:
    """What each follows: tests/nn/test_observed.py."""
    for observer, constant in (("min_max", None), ("moving_average", 0.01)):
        prepare_(model := nn.Sequential(nn.Linear(6, 4)), W8A8Static(observer))
        quantizer = model[0].input_fake_quant
        assert (quantizer.mode, quantizer.averaging_constant) == ("observed", constant)


ENCODERS: list[dict[str, Any]] = [
    {"batch_first": True}, {}, {"batch_first": True, "bias": False},
    {"batch_first": True, "norm_first": True, "activation": "gelu"},
]  # fmt: skip


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("options", ENCODERS, ids=str)
def test_transformer_encoder(options: dict[str, Any]) -> None:
    """Its fused evaluation does not go past the layers."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, **options), 2)
    x, padding = data(4, 4, 16), torch.zeros(4, 4, dtype=torch.bool)
    padding[1, 2:] = True
    floating = model.train()(x)
    prepare_(model, W8A8())
    trained, evaluated = model(x), model.eval()(x)
    masked = model(x, src_key_padding_mask=padding)
    for y in (trained, evaluated):
        assert not torch.equal(y, floating)
        torch.testing.assert_close(y, floating, rtol=0.1, atol=0.1)
    convert_(model)
    assert torch.equal(model(x), evaluated)
    assert torch.equal(model(x, src_key_padding_mask=padding), masked)
