# SPDX-License-Identifier: BSD-3-Clause
"""A warning that is made an error leaves the model as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from baraquant import GPTQ, W4A16, W8A8, SmoothQuant, W8A8Static, quantize_
from baraquant.qat import prepare_
from tests.support.checks.refused import refused
from tests.support.models.outlier_models import Block, batches

BLOCK_SPOILT = [*batches(), torch.full_like(batches()[0], torch.nan)]
SMOOTHED = SmoothQuant(0.5, W8A8Static(conv_inputs=True))
WARNING: dict[str, tuple[str, Callable[[nn.Module], Any]]] = {
    "not smoothed": (
        "SmoothQuant to smooth a layer",
        lambda model: quantize_(model, {nn.Conv1d: SMOOTHED}, calibration=batches()),
    ),
    "not finite": (
        "a NaN or an infinity",
        lambda model: quantize_(model, W8A8Static(), calibration=BLOCK_SPOILT),
    ),
    "not finite in training": (
        "a NaN or an infinity",
        lambda model: prepare_(model, W8A8Static(), calibration=BLOCK_SPOILT),
    ),
    "damping": (
        "which was used",
        lambda model: quantize_(
            model, {"*down": GPTQ(W4A16(8), damping=0)}, calibration=[torch.ones(1, 16)]
        ),
    ),
    "filter": (
        "filter_fn to leave out",
        lambda model: quantize_(model, W8A8(), filter_fn=lambda module, name: True),
    ),
    "filter in training": (
        "filter_fn to leave out",
        lambda model: prepare_(model, W8A8(), lambda module, name: True),
    ),
}


class Packed(nn.Module):
    """A convolution, packed weights, and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = nn.Conv1d(16, 16, 1), nn.LSTM(16, 16)
        self.attention, self.block = nn.MultiheadAttention(16, 2), Block()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.lstm(self.conv(x.mT).mT)[0] if x.dim() == 3 else self.lstm(x)[0]
        return self.block(self.attention(y, y, y)[0])


@pytest.mark.parametrize("name", WARNING)
def test_the_model_is_as_it_was(name: str) -> None:
    message, call = WARNING[name]
    model = Packed()
    modules = dict(model.named_modules())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(call, message, model, error=UserWarning)
    assert dict(model.named_modules()) == modules
