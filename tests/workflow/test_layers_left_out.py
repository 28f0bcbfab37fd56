# SPDX-License-Identifier: BSD-3-Clause
"""One layer that does not fit a configuration is left out and said so; it refuses no model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_

GROUPS = QuantConfig(TensorConfig(4, "per_group", group_size=16))
INPUT_GROUPS = QuantConfig(TensorConfig(4), TensorConfig(8, "per_group", group_size=16))


class Mixed(nn.Module):
    """A relative bias of width 4, as T5's, beside layers of width 32."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(8, 4)
        self.narrow = nn.Linear(20, 32)
        self.body = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(8)
        return self.body(self.narrow(x)) + self.bias(steps).mean()


def only_narrow(module: nn.Module, name: str) -> bool:
    return name == "narrow"


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


X = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("config", [GROUPS, INPUT_GROUPS], ids=["weight", "input"])
def test_what_does_not_fit_is_left_out(config: QuantConfig, tmp_path) -> None:
    model = mixed()
    report = prepare_(model, config)
    assert "body" in report.changed and "narrow" in report.left_out
    assert "16" in report.left_out["narrow"] and "20" in report.left_out["narrow"]
    assert type(model.narrow) is nn.Linear
    if config is GROUPS:
        assert "4" in report.left_out["bias"] and "group_size" in report.left_out["bias"]
        assert type(model.bias) is nn.Embedding
    assert "narrow" in str(report)
    evaluated = model.eval()(X)
    report = convert_(model)
    assert "body" in report.changed and torch.equal(model(X), evaluated)
    baraquant.save(model, path := tmp_path / "model.safetensors")
    assert torch.equal(baraquant.load_(mixed(), path).eval()(X), evaluated)


def test_nothing_left_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
    with pytest.raises(ValueError, match=r"baraquant.qat.prepare_: .*group_size"):
        prepare_(model, GROUPS)
    assert all(type(m) is nn.Linear for m in model)


def test_a_layer_that_the_caller_named_is_an_error() -> None:
    """A filter that takes this layer alone asked for it."""
    model = mixed()
    with pytest.raises(ValueError, match=r"narrow: .*expected group_size to divide in_features"):
        prepare_(model, GROUPS, filter_fn=only_narrow)
    assert type(model.narrow) is nn.Linear and type(model.body) is nn.Linear


def test_a_filter_over_all_layers_names_none() -> None:
    report = prepare_(model := mixed(), GROUPS, filter_fn=lambda m, n: n != "bias")
    assert set(report.changed) == {"body"} and report.left_out["bias"] == "filter_fn"
    assert "group_size" in report.left_out["narrow"] and type(model.narrow) is nn.Linear


def test_rows_too_long_for_an_exact_sum() -> None:
    """`quantize_` as well: one layer of more than 131,071 inputs does not refuse a model."""
    with torch.device("meta"):
        long = nn.Linear(140_000, 1)
    model = nn.ModuleDict({"long": long.to_empty(device="cpu"), "body": nn.Linear(16, 16)})
    with torch.no_grad():
        model["long"].weight.zero_()
        model["long"].bias.zero_()
    report = baraquant.quantize_(model, W8A8())
    assert set(report.changed) == {"body"} and "131071" in report.left_out["long"]


def test_a_wrong_configuration_is_still_an_error() -> None:
    """What fits no layer of any model is not left out silently."""
    with pytest.raises((ValueError, TypeError)):
        prepare_(mixed(), "W8A8")
    with pytest.raises(ValueError, match="finite"):
        model = mixed()
        with torch.no_grad():
            model.body.weight[0, 0] = float("nan")
        baraquant.quantize_(model, W8A8())
