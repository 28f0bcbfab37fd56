# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions: ``conv_inputs`` rounds their inputs too, by training and without it."""

import copy
import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
import baraquant.nn as bnn
from baraquant import W8A8, QuantConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.nn.test_convolutions import KINDS, floating
from tests.support.checks.stored import assert_stored
from tests.support.models.one_layer import Holder
from tests.support.models.training_models import data, train
from tests.support.schemes import described

CONFIGS: dict[str, QuantConfig] = {
    "static": W8A8Static(conv_inputs=True),
    "asymmetric": W8A8Static(symmetric=False, conv_inputs=True),
    "average": W8A8Static("moving_average", False, conv_inputs=True, scale_dtype="float16"),
    "percentile": W8A8Static("percentile", conv_inputs=True),
    "mse": W8A8Static("mse", symmetric=False, conv_inputs=True),
    "dynamic": described("int8, int8 per_tensor", conv_inputs=True),
    "dynamic_asymmetric": described("int4, int8 per_tensor asymmetric", conv_inputs=True),
    "learned": described("int8, int8 per_tensor asymmetric learned", conv_inputs=True),
}


def rounds(layer: Any) -> bool:
    return isinstance(layer.input_fake_quant, bnn.FakeQuantize)


def convolution(kind: str, dtype: torch.dtype = torch.float32) -> Holder:
    return Holder(floating(kind, dtype, out_channels=16)).eval()


def batches(shape: tuple[int, ...], count: int = 3, dtype: torch.dtype = torch.float32) -> Any:
    """Inputs as they come from ReLU: not negative."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).relu().to(dtype) for _ in range(count)]


def check_product(kind: str, layer: Any, x: Tensor, got: Tensor) -> None:
    """Check a converted convolution against the sums of the input's integers, in float64."""
    integers, scale, zeros = layer.input_fake_quant.quantize(x)
    assert integers.dtype == torch.int8 and scale.numel() == 1
    floats = convolution(kind, torch.float64).child
    floats.weight.data.copy_(layer.dequantized_weight())
    floats.bias = None
    wanted = floats(integers.double() - zeros).detach() * scale
    if layer.bias is not None:
        wanted += layer.bias.reshape(-1, *[1] * len(layer.kernel_size))
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.exhaustive
def test_prepared_converted_and_stored(kind: str, config: str, tmp_path: Path) -> None:
    others = {"static": torch.float16, "asymmetric": torch.bfloat16, "dynamic": torch.float64}
    dtypes = {torch.float32, others.get(config, torch.float32)}
    for dtype, quantizes in itertools.product(dtypes, (False, True)):
        data = batches(KINDS[kind][1], dtype=dtype)
        model = convolution(kind, dtype)
        if quantizes:
            baraquant.quantize_(model, CONFIGS[config], calibration=data, progress=False)
            expected = model(data[0])
        else:
            given = data if config in ("percentile", "mse") else None
            prepare_(model, CONFIGS[config], calibration=given, progress=False)
            train(model, *data, lr=0.01).eval()
            expected = model(data[0])
            convert_(model)
            assert torch.equal(model(data[0]), expected)
        layer = model.child
        assert type(layer) is getattr(bnn, f"Quantized{kind}")
        assert rounds(layer)
        if dtype == torch.float32:
            check_product(kind, layer, data[0], expected)
        build = functools.partial(convolution, kind, dtype)
        assert_stored(model, build, data[0], tmp_path / "model.safetensors")


def test_padding_is_exact_and_so_is_zero() -> None:
    """The zeros of the padding are those of the integers: nothing leaks in at the border."""
    model = Holder(nn.Conv2d(2, 3, 3, padding=2)).eval()
    config = W8A8Static(symmetric=False, conv_inputs=True)
    baraquant.quantize_(model, config, calibration=[torch.rand(1, 2, 4, 4) + 5], progress=False)
    zeros = torch.zeros(1, 2, 4, 4)
    assert torch.equal(model.child.input_fake_quant(zeros), zeros)
    assert torch.equal(model(zeros), model.child.bias.reshape(1, 3, 1, 1).expand(1, 3, 6, 6))


def test_the_default_and_off() -> None:
    data = batches((2, 8, 6, 5))
    for option, trains, after in ((None, True, False), (False, False, False), (True, True, True)):
        for words in ("int8, int8 per_tensor", "int8, int8 per_tensor static"):
            config = described(words, conv_inputs=option)
            model = Holder(nn.Conv2d(8, 4, 1))
            report = prepare_(model, config)
            assert model.child.rounds_input == trains
            assert ("input=float" in report.changed["child"]) == (not trains)
            model(data[0])
            assert ("input=" in convert_(model).changed["child"]) == (option is True)
            assert rounds(model.child) == trains
            model = Holder(nn.Conv2d(8, 4, 1))
            baraquant.quantize_(model, config, calibration=data, progress=False)
            assert rounds(model.child) == after
    linear = Holder(nn.Linear(5, 3))
    baraquant.quantize_(linear, W8A8Static(conv_inputs=False), calibration=data, progress=False)
    assert isinstance(linear.child, bnn.StaticQuantizedLinear), "an option of convolutions alone"


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", ["convolution", "factors"])
def test_what_no_data_reaches_keeps_a_floating_input(kind: str, trains: bool) -> None:
    """Its weight is the one that it would have had; what factors give becomes int8."""
    make, config, x = lambda: nn.Conv2d(8, 8, 3), W8A8Static(conv_inputs=True), data(2, 8, 6, 5)
    if kind == "factors":
        make, x = lambda: nn.Linear(16, 8), data(5, 16)
        words = "int4 per_group(8) factors, int8 per_tensor static"
        config = described(words, observer="min_max", scale_rule="max")
    model = nn.ModuleDict({"used": make(), "unused": make()})
    plain = copy.deepcopy(model)
    if trains:
        prepare_(model, config)
        model["used"](x)
        wanted = model["unused"].eval().weight + 0
        report = convert_(model)
    else:
        baraquant.quantize_(plain, config, calibration=lambda m: [m[name](x) for name in m])
        wanted = plain["unused"].weight + 0
        report = baraquant.quantize_(model, config, calibration=lambda m: m["used"](x))
    assert "its input stays floating, as" in report.changed["unused"]
    assert "floating" not in report.changed["used"] and not rounds(model["unused"])
    assert torch.equal(model["unused"].weight + 0, wanted)


def test_shared_and_tied_convolutions() -> None:
    model = nn.Sequential(nn.Conv1d(8, 8, 3, groups=8), nn.Conv1d(8, 8, 3, dilation=2, groups=8))
    model[1].weight = model[0].weight
    model.append(model[0])
    baraquant.quantize_(model, W8A8())
    assert model[2] is model[0] and model[1].qweight.data_ptr() == model[0].qweight.data_ptr()
