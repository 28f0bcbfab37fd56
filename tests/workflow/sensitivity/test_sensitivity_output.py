# SPDX-License-Identifier: BSD-3-Clause
"""The error of the model's output that each layer makes, quantized alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W4A16, W8A8, W8A8Static


class Gated(nn.Module):
    """A recurrent layer of one large weight, an attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.attention = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2)
        self.head, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        with torch.no_grad():
            self.lstm.weight_ih_l0[3, 3] = 60.0

    def forward(self, x: torch.Tensor, seen: list[int] | None = None) -> Any:
        if seen is not None:
            assert not seen  # a call that changes its inputs can be repeated
            seen.append(1)
        y = self.lstm(x)[0]
        return {"y": self.head(self.attention(y, y, y)[0] + y), "mask": x > 0}


def data() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 5, 8, generator=generator) for _ in range(2)]


def built() -> nn.Module:
    torch.manual_seed(0)
    return Gated().eval()


@pytest.mark.parametrize("scheme", [W8A8(), W8A8Static(), W4A16(8)], ids=str)
def test_it_is_the_error_of_the_model_with_one_layer_quantized(scheme: Any) -> None:
    model = built()
    before = {name: id(module) for name, module in model.named_modules()}
    found = baraquant.sensitivity(model, {"q": scheme}, data(), of="output", progress=False)
    assert {name: id(module) for name, module in model.named_modules()} == before
    assert all("forward" not in vars(module) for module in model.modules())
    assert found.left_out == {"unused": "the calibration data does not reach it"}
    wanted = [model(x)["y"] for x in data()]
    for layer in found.layers:
        quantized = copy.deepcopy(model)
        baraquant.quantize_(quantized, {layer.path: scheme}, calibration=data(), progress=False)
        with torch.no_grad():
            error = sum(
                (quantized(x)["y"] - y).square().sum() for x, y in zip(data(), wanted, strict=True)
            )
        expected = float(error / sum(y.square().sum() for y in wanted))
        assert layer.errors["q"] == pytest.approx(expected, rel=1e-4, abs=1e-12), layer.path


def test_the_worst_comes_first_and_is_named() -> None:
    found = baraquant.sensitivity(built(), [W8A8()], data(), of="output", progress=False)
    errors = {layer.path: layer.errors["W8A8"] for layer in found.layers}
    path, share, name = found.worst() or ("", 0.0, "")
    assert path == max(errors, key=lambda one: errors[one]) == "lstm.cells.l0.ih"
    assert share == pytest.approx(errors[path] / sum(errors.values())) and name == "W8A8"
    assert found.rows()[1][0] == path
    assert f"of the model's output; {path} makes" in found.summary()
    choice = found.choose(bits=40, floating=True)
    assert choice.error <= sum(errors.values())
    assert baraquant.Sensitivity.from_dict(found.to_dict()) == found


def test_functions_and_calls_that_change_their_inputs() -> None:
    model, xs = built(), data()
    by_list = baraquant.sensitivity(model, [W8A8()], xs, of="output", progress=False)
    seen = [(x, []) for x in xs]
    by_call = baraquant.sensitivity(
        model, [W8A8()], lambda m: [m(x, seen=one) for x, one in seen], of="output", progress=False
    )
    assert by_list.layers == by_call.layers and all(one == [1] for _, one in seen)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="expected of to be 'layer' or 'output', but got 'model'"):
        baraquant.sensitivity(built(), [W8A8()], data(), of="model")
    with pytest.raises(ValueError, match="to call the model itself"):
        run = lambda m: m.head(torch.ones(1, 8))  # noqa: E731
        baraquant.sensitivity(built(), [W8A8()], run, of="output")
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten())
    model.register_forward_hook(lambda module, args, output: output.argmax(-1))
    with pytest.raises(ValueError, match="to return floating tensors"):
        baraquant.sensitivity(model, [W8A8()], [torch.ones(1, 8)], of="output")
