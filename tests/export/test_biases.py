# SPDX-License-Identifier: BSD-3-Clause
"""Biases that programs with int32 biases hold exactly."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import qat
from baraquant.export import round_biases_
from tests.export.onnx_runs import error_of, run
from tests.support.optional_packages import package


def chain(count: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(count)]
    return nn.Sequential(*layers).eval(), torch.randn(2, 8, 10, 10)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("prepared", [True, False])
def test_biases_become_multiples(symmetric: bool, prepared: bool) -> None:
    model, x = chain(3)
    scheme = baraquant.W8A8Static(symmetric=symmetric, conv_inputs=True)
    if prepared:
        qat.prepare_(model, scheme)
        model.train()(x)
        model.apply(qat.disable_observer) if hasattr(qat, "disable_observer") else None
        model.eval()
    else:
        baraquant.quantize_(model, scheme, calibration=[x], progress=False)
    assert round_biases_(model) == ["0", "1", "2"]
    assert round_biases_(model) == []
    if prepared:
        before = model(x).detach()
        qat.convert_(model)
        assert torch.equal(model(x), before) and round_biases_(model) == []
    for layer in model:
        assert isinstance(layer, baraquant.nn.QuantizedConv2d)
        one: Any = layer
        step = one.input_fake_quant.scale * one.weight_scale.reshape(-1)
        assert torch.equal(torch.round(one.bias / step) * step, one.bias)


def test_others_stay() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 4))
    baraquant.quantize_(model, baraquant.W8A16(), progress=False)
    assert round_biases_(model) == []
    with pytest.raises(TypeError, match="expected model to be a Module"):
        round_biases_([])  # type: ignore[arg-type]


def test_onnxruntime_comes_nearer(tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        package(name)
    model, x = chain(6)
    baraquant.quantize_(
        model, baraquant.W8A8Static(conv_inputs=True), calibration=[x], progress=False
    )
    path = tmp_path / "model.onnx"
    errors = []
    for rounds in (False, True):
        if rounds:
            round_biases_(model)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            baraquant.export.to_onnx(model, (x,), path)
        assert any("rounds the biases" in str(one.message) for one in said) != rounds
        errors.append(error_of(run(path, x), model(x).detach()))
    assert errors[1] < 1e-6 < errors[0]
