# SPDX-License-Identifier: BSD-3-Clause
"""Swapped modules are swapped wherever a model keeps them, and a model keeps a parameter."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, W8A8Static
from baraquant.qat import convert_, prepare_

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Listed(nn.Module):
    """Calls its layers through plain containers, beside which they are registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8), nn.ReLU()]
        for index, layer in enumerate(self.layers):
            self.add_module(str(index), layer)
        self.pair = nn.Linear(8, 8), {"inner": [nn.Linear(8, 8)]}
        self.add_module("first", self.pair[0])
        self.add_module("second", self.pair[1]["inner"][0])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.pair[1]["inner"][0](self.pair[0](x))


def test_layers_in_plain_containers_are_swapped_there_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Listed()
    wanted, float_model = model(X), copy.deepcopy(model)
    prepare_(model, W8A8Static())
    model(X).sum().backward()
    evaluated = model.eval()(X)
    assert not torch.equal(evaluated, wanted)
    convert_(model)
    assert type(model.layers[0]) is type(model.pair[0]) is baraquant.nn.StaticQuantizedLinear
    assert torch.equal(model(X), evaluated)
    baraquant.save(model, tmp_path / "a")
    assert torch.equal(baraquant.load_(float_model, tmp_path / "a")(X), evaluated)


def test_an_error_leaves_containers_alone() -> None:
    model = Listed()
    before = model.layers[0], model.pair
    with pytest.raises(ValueError, match="calibration data"):
        baraquant.quantize_(model, W8A8Static())
    assert (model.layers[0], model.pair) == before


def bare() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(8, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 8, bias=False)
    )


@pytest.mark.parametrize("how", ["quantize_", "convert_", "load_"])
def test_a_model_keeps_parameters(how: str, tmp_path: Path) -> None:
    """Much code asks the first parameter of a model for its device: the integers are parameters."""
    tokens = torch.tensor([[1, 2, 7]])
    model = bare().bfloat16()
    if how == "convert_":
        prepare_(model, W8A8())
        convert_(model.eval())
    else:
        baraquant.quantize_(model, W8A8())
    output = model(tokens)
    if how == "load_":
        baraquant.save(model, tmp_path / "a")
        model = baraquant.load_(bare().bfloat16(), tmp_path / "a")
        assert torch.equal(model(tokens), output)
    assert [name for name, _ in model.named_parameters()] == ["0.qweight", "2.qweight"]
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.load_state_dict(model.state_dict())
    assert torch.equal(copy.deepcopy(model)(tokens), model(tokens))


def test_the_first_parameter_of_a_layer_is_floating() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(8, 8, 1)).bfloat16()
    baraquant.quantize_(model, W8A8())
    assert [next(layer.parameters()).dtype for layer in model] == [torch.bfloat16] * 2


def test_no_layer_reached_is_an_error_and_one_is_not() -> None:
    model = Listed()
    prepare_(model, W8A8Static())
    with pytest.raises(ValueError, match="0: expected the range of its input to be known"):
        convert_(model)
    model.layers[0](X)
    report = convert_(model)
    assert report.changed["0"] == "StaticQuantizedLinear"
    assert report.changed["first"] == (
        "WeightOnlyLinear; its input stays floating, as training never called it"
    )
