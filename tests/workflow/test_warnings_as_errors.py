# SPDX-License-Identifier: BSD-3-Clause
"""A warning that is made an error leaves the model as it was."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import GPTQ, W4A16, W8A8, SmoothQuant, W8A8Static
from baraquant.qat import prepare_
from tests.support.models.outlier_models import unchanged


def built() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv1d(8, 8, 1), nn.ReLU(), nn.LSTM(8, 8), nn.MultiheadAttention(8, 2)
    return nn.ModuleDict({"body": nn.Sequential(*layers[:2]), "rest": nn.ModuleList(layers[2:])})


class Run(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.head = built(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.parts["rest"][0](self.parts["body"](x).transpose(1, 2))[0]
        return self.head(self.parts["rest"][1](y, y, y)[0])


DATA = [torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
SPOILT = [*DATA, torch.full((3, 8, 4), float("nan"))]
WARNING: dict[str, tuple[str, Callable[[nn.Module], Any]]] = {
    "not smoothed": (
        "SmoothQuant to smooth a layer",
        lambda model: baraquant.quantize_(
            model, {nn.Conv1d: SmoothQuant(0.5, W8A8Static(conv_inputs=True))}, calibration=DATA
        ),
    ),
    "not finite": (
        "a NaN or an infinity",
        lambda model: baraquant.quantize_(model, W8A8Static(), calibration=SPOILT),
    ),
    "not finite in training": (
        "a NaN or an infinity",
        lambda model: prepare_(model, W8A8Static(), calibration=SPOILT),
    ),
    "damping": (
        "which was used",
        lambda model: baraquant.quantize_(
            model, {"*head": GPTQ(W4A16(8), damping=1e-30)}, calibration=DATA[:1]
        ),
    ),
    "filter": (
        "filter_fn to leave out",
        lambda model: baraquant.quantize_(model, W8A8(), filter_fn=lambda module, name: True),
    ),
    "filter in training": (
        "filter_fn to leave out",
        lambda model: prepare_(model, W8A8(), lambda module, name: True),
    ),
}


@pytest.mark.parametrize("name", WARNING)
def test_the_model_is_as_it_was(name: str) -> None:
    message, call = WARNING[name]
    model = Run()
    before, modules = copy.deepcopy(model), dict(model.named_modules())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=message):
            call(model)
    assert dict(model.named_modules()) == modules and unchanged(model, before)
    assert not any(module._forward_hooks for module in model.modules())
