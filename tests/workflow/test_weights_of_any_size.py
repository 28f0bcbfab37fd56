# SPDX-License-Identifier: BSD-3-Clause
"""Searches for scales do not depend on the size of the weights: no error overflows or vanishes."""

from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from tests.support import cases

CONFIGS: dict[str, Any] = {
    "W4A16 groups": baraquant.W4A16(16),
    "W4A16 asymmetric": baraquant.W4A16(16, symmetric=False),
    "W4A8 channels": baraquant.W4A8(None),
    "W4A8 factors": baraquant.W4A8(16, group_factors=True),
    "W4A8 factors asymmetric": baraquant.W4A8(16, symmetric=False, group_factors=True),
    "W3A8 factors": baraquant.W3A8(16),
    "W2A8 factors": baraquant.W2A8(16),
    "W3 tensor": baraquant.QuantConfig(baraquant.TensorConfig(3, "per_tensor")),
    "W2 groups": baraquant.W2A16(32),
    "AWQ": baraquant.AWQ(baraquant.W4A16(16)),
    "GPTQ": baraquant.GPTQ(baraquant.W4A16(16)),
    "GPTQ factors": baraquant.GPTQ(baraquant.W4A8(16)),
    "GPTQ factors act_order": baraquant.GPTQ(baraquant.W4A8(16), act_order=True),
}


def quantized(config: Any, weight: torch.Tensor, data: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 24, bias=False, dtype=weight.dtype))
    model[0].weight.data.copy_(weight)
    needs = isinstance(config, (baraquant.AWQ, baraquant.GPTQ))
    baraquant.quantize_(model, config, calibration=[data] if needs else None, progress=False)
    return model


POWERS = {
    torch.float32: (-100, -70, -30, 30, 70, 100),
    torch.float16: (-8, 13),  # the smallest and the largest that these hold
    torch.bfloat16: (-90, 120),
    torch.float64: (-600, 600),
}
CASES = [(n, d) for d in POWERS for n in CONFIGS if d == torch.float32 or n[0] == "W"]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_weights_of_any_size(name: str, dtype: torch.dtype) -> None:
    """Weights times a power of two have the same integers, and their scales times that power."""
    rng = cases.generator(0)
    sizes = torch.randn(24, 1, generator=rng).exp() if dtype == torch.float32 else 1
    weight = (torch.randn(24, 64, generator=rng).clamp(-3, 3) * sizes).to(dtype)
    data = torch.randn(32, 64, generator=rng)
    plain = quantized(CONFIGS[name], weight, data).state_dict()
    for exponent in POWERS[dtype]:
        scaled = quantized(CONFIGS[name], weight * 2.0**exponent, data).state_dict()
        for key, value in plain.items():
            wanted = value * 2.0**exponent if key.endswith("weight_scale") else value
            assert torch.equal(scaled[key], wanted), (key, exponent)


def after_norm(config: Any, of_inputs: float, of_weights: float) -> tuple[nn.Module, str]:
    """Quantize a layer behind a norm, whose inputs and weights are multiplied by numbers."""
    rng = cases.generator(0)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 24, bias=False))
    model[0].weight.data.uniform_(0.1, 20, generator=rng).mul_(of_inputs)
    model[1].weight.data.normal_(generator=rng).mul_(of_weights)
    data = [torch.zeros(4, 64), *(torch.randn(n, 64, generator=rng) for n in (8, 24))]
    report = baraquant.quantize_(model, config, calibration=data, progress=False)
    return model, report.changed["1"]


@pytest.mark.parametrize("which", ["inputs", "weights", "both"])
@pytest.mark.parametrize("name", ["AWQ", "AWQ searched", "GPTQ", "GPTQ act_order"])
def test_calibration_of_any_size(name: str, which: str) -> None:
    """The same factors and integers, whatever power of two the inputs and weights have."""
    config = {
        "AWQ": baraquant.AWQ(baraquant.QuantConfig(CONFIGS["W4A16 groups"].weight)),
        "AWQ searched": CONFIGS["AWQ"],
        "GPTQ": CONFIGS["GPTQ"],
        "GPTQ act_order": baraquant.GPTQ(baraquant.W4A16(16), act_order=True),
    }[name]
    plain, changed = after_norm(config, 1.0, 1.0)
    assert ("folded into 0" in changed) == ("AWQ" in name)
    for exponent in (-60, 60) if which == "both" else (-100, -70, 70, 100):
        size = 2.0**exponent
        of_inputs, of_weights = (1.0 if which == other else size for other in ("weights", "inputs"))
        model, same = after_norm(config, of_inputs, of_weights)
        assert same == changed, exponent
        torch.testing.assert_close(model[0].weight, plain[0].weight * of_inputs)
        assert torch.equal(model[1].qweight, plain[1].qweight), exponent
        torch.testing.assert_close(model[1].weight_scale, plain[1].weight_scale * of_weights)


@pytest.mark.parametrize("static", [False, True])
def test_smoothing_of_any_size(static: bool) -> None:
    """The choice of alpha compares errors that neither overflow nor vanish.

    The factors themselves are limited, so that another alpha may be the best one.
    """
    config = baraquant.SmoothQuant("search", baraquant.W8A8Static() if static else baraquant.W8A8())
    for of_inputs, of_weights in ((0, 0), (40, 40), (-40, -40), (100, 100), (-100, -100)):
        _, changed = after_norm(config, 2.0**of_inputs, 2.0**of_weights)
        assert "folded into 0" in changed, (of_inputs, of_weights)


@pytest.mark.parametrize("exponent", [-100, -70, 70, 100])
@pytest.mark.parametrize("observer", ["mse", "percentile", "moving_average"])
def test_static_inputs_of_any_size(observer: str, exponent: int) -> None:
    config = baraquant.W8A8Static(observer, symmetric=False)
    plain, _ = after_norm(config, 1.0, 1.0)
    scaled, _ = after_norm(config, 2.0**exponent, 1.0)
    assert torch.equal(scaled[1].act_scale, plain[1].act_scale * 2.0**exponent)
    assert torch.equal(scaled[1].act_zero_point, plain[1].act_zero_point)


@pytest.mark.parametrize("of", ["layer", "output"])
def test_sensitivity_of_any_size(of: str) -> None:
    """The relative errors are the same, and so is what is chosen by them."""
    found = []
    for exponent in (0, -100, -70, 70, 100):
        rng = cases.generator(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 24, bias=False))
        for parameter in model.parameters():
            parameter.data.normal_(generator=rng)
        model[2].weight.data.mul_(2.0**exponent)
        data = [torch.randn(8, 64, generator=rng)]
        configs = [CONFIGS["W4A16 groups"], baraquant.W8A8()]
        report = baraquant.sensitivity(model, configs, data, of=of, progress=False)
        errors = {layer.path: layer.errors for layer in report.layers}
        found.append((errors, str(report.choose(bits=6.5))))
    assert all(one == found[0] for one in found[1:])
