# SPDX-License-Identifier: BSD-3-Clause
"""Searches for scales do not depend on the size of the weights: no error overflows or vanishes."""

from __future__ import annotations

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
    "W3 tensor": baraquant.QuantConfig(
        baraquant.TensorConfig(3, "per_tensor"), scale_rule="search"
    ),
    "W2 groups": baraquant.QuantConfig(
        baraquant.TensorConfig(2, baraquant.PerGroup(32), symmetric=False), scale_rule="search"
    ),
    "AWQ": baraquant.AWQ(baraquant.W4A16(16)),
    "GPTQ": baraquant.GPTQ(baraquant.W4A16(16)),
}


def quantized(config: Any, weight: torch.Tensor, data: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 24, bias=False, dtype=weight.dtype))
    with torch.no_grad():
        model[0].weight.copy_(weight)
    needs = isinstance(config, (baraquant.AWQ, baraquant.GPTQ))
    baraquant.quantize_(model, config, calibration=[data] if needs else None, progress=False)
    return model


@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.parametrize("exponent", [-100, -70, 70, 100])
def test_weights_of_any_size(name: str, exponent: int) -> None:
    """Weights times a power of two have the same integers, and their scales times that power."""
    rng = cases.generator(0)
    weight = torch.randn(24, 64, generator=rng) * torch.randn(24, 1, generator=rng).exp()
    data = torch.randn(32, 64, generator=rng)
    plain = quantized(CONFIGS[name], weight, data).state_dict()
    scaled = quantized(CONFIGS[name], weight * 2.0**exponent, data).state_dict()
    for key, value in plain.items():
        wanted = value * 2.0**exponent if key.endswith("weight_scale") else value
        assert torch.equal(scaled[key], wanted), key


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("AWQ", "GPTQ")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=cases.name_of)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    """The smallest and the largest that they hold."""
    weight = torch.randn(24, 64, generator=cases.generator(1), dtype=torch.float64).clamp(-3, 3)
    power = {torch.float16: (-8, 13), torch.bfloat16: (-90, 120), torch.float64: (-600, 600)}[dtype]
    plain = quantized(CONFIGS[name], weight.to(dtype), torch.empty(0)).state_dict()
    for exponent in power:
        size = 2.0**exponent
        scaled = quantized(CONFIGS[name], weight.to(dtype) * size, torch.empty(0)).state_dict()
        for key, value in plain.items():
            wanted = value * size if key.endswith("weight_scale") else value
            assert torch.equal(scaled[key], wanted), (key, exponent)


@pytest.mark.parametrize("exponent", [-100, -70, 70, 100])
def test_factors_for_weights_of_any_size(exponent: int) -> None:
    """AWQ takes the same factors."""
    models = []
    for size in (1.0, 2.0**exponent):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 24, bias=False))
        with torch.no_grad():
            model[0].weight.uniform_(0.1, 20)
            model[1].weight.mul_(size)
        data = [torch.randn(32, 64)]
        report = baraquant.quantize_(model, CONFIGS["AWQ"], calibration=data, progress=False)
        assert "folded into 0" in report.changed["1"]
        models.append(model)
    assert torch.equal(models[0][0].weight, models[1][0].weight)
