# SPDX-License-Identifier: BSD-3-Clause
"""What a user has registered in a layer is carried over, or the layer is left out by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import AWQ, GPTQ, W4A8, W4A16, W8A8, SmoothQuant
from baraquant.qat import convert_, prepare_

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(32, 32),
    "conv": lambda: nn.Conv1d(32, 32, 1),
    "transposed": lambda: nn.ConvTranspose1d(32, 32, 1),
    "embedding": lambda: nn.Embedding(32, 32),
}
by_layer = pytest.mark.parametrize("layer", LAYERS)


def _hook(module: Any, args: Any, output: Tensor) -> Tensor:
    return output * module.mask * module.gain + module.scalar + module.bend(module.gain)[0]


def model_of(layer: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(LAYERS[layer](), nn.Linear(32, 32)).eval()
    first = model[0]
    first.register_buffer("mask", torch.full((32,), 0.5))
    first.register_buffer("scalar", torch.tensor(0.25), persistent=False)
    first.register_buffer("absent", None)
    first.gain = nn.Parameter(torch.full((32,), 2.0))
    first.bend = nn.Linear(32, 1)
    first.register_forward_hook(_hook)
    return model


def input_of(layer: str) -> Tensor:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    if layer == "embedding":
        return x.argsort(dim=1)[:, :8]
    return x if layer == "linear" else x.T.contiguous()[None].repeat(2, 1, 8)


def _quantize(scheme: Any) -> Callable[[nn.Module, Any], None]:
    def tool(model: nn.Module, x: Tensor) -> None:
        baraquant.quantize_(model, scheme, calibration=[x], progress=False)

    return tool


def _prepare(model: nn.Module, x: Tensor) -> None:
    prepare_(model, W8A8())


def _convert(model: nn.Module, x: Tensor) -> None:
    _prepare(model, x)
    convert_(model)


TOOLS = {
    "prepare_": _prepare,
    "convert_": _convert,
    **{
        type(scheme).__name__ + str(number): _quantize(scheme)
        for number, scheme in enumerate(
            (W8A8(), W4A16(16), W4A8(16), SmoothQuant(), AWQ(W4A16(16)), GPTQ(W4A16(16)))
        )
    },
}


@by_layer
@pytest.mark.parametrize("tool", TOOLS)
def test_carried_over(layer: str, tool: str) -> None:
    model, x = model_of(layer), input_of(layer)
    if layer == "embedding":
        model[1] = nn.Linear(32, 32).eval()
    x = x if layer in ("linear", "embedding") else x[..., :32]
    before, gain, bend = model(x), model[0].gain, model[0].bend
    TOOLS[tool](model, x)
    first = model[0]
    assert type(first) is not LAYERS[layer] and not type(first).__module__.startswith("torch.")
    assert first.gain is gain and first.bend is bend and first.absent is None
    assert "0.mask" in model.state_dict() and "0.scalar" not in model.state_dict()
    assert (model(x) - before).norm() < 0.5 * before.norm()
    assert torch.equal(copy.deepcopy(model)(x), model(x))


@by_layer
def test_saved_and_loaded(layer: str, tmp_path: Path) -> None:
    model, x = model_of(layer), input_of(layer)
    x = x if layer in ("linear", "embedding") else x[..., :32]
    with torch.no_grad():
        model[0].gain.fill_(3.0)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "model")
    loaded = baraquant.load_(model_of(layer), tmp_path / "model")
    assert torch.equal(loaded(x), model(x))


def test_the_report_names_a_layer_in_a_layer() -> None:
    report = baraquant.quantize_(model_of("linear"), W8A8())
    assert report.left_out == {"0.bend": "it is a part of 0, beside the weight of that layer"}


@pytest.mark.parametrize("name", ["weight_scale", "qweight", "input_fake_quant"])
def test_a_name_of_the_new_layer(name: str) -> None:
    """It is refused with the layer's path, and the model is as it was."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    model[0].register_buffer(name, torch.ones(32))
    with pytest.raises(ValueError, match=rf"0: expected a layer without '{name}'"):
        _convert(model, torch.ones(1, 32))
        baraquant.quantize_(model, W8A8())
    assert torch.equal(getattr(model[0], name), torch.ones(32))


@pytest.mark.parametrize(
    "whole",
    [lambda: nn.MultiheadAttention(32, 4), lambda: nn.LSTM(32, 32), lambda: nn.GRUCell(8, 8)],
)
def test_attentions_and_recurrent_layers_stay_floating(whole: Callable[[], nn.Module]) -> None:
    model = nn.ModuleList([whole(), nn.Linear(32, 32)])
    model[0].register_buffer("mask", torch.ones(32))
    report = baraquant.quantize_(model, W8A8())
    assert report.left_out["0"] == "it has mask beside its own weights"
    assert torch.equal(model[0].mask, torch.ones(32))


def test_a_layer_registered_in_another_is_the_new_one() -> None:
    """As long as it is replaced at all, all places get the same one."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].register_module("other", model[0])
    baraquant.quantize_(model, W8A8())
    assert model[1].other is model[0] and isinstance(model[0], baraquant.nn.QuantizedLinear)
