# SPDX-License-Identifier: BSD-3-Clause
"""A filter sees each layer that a report names, and one that leaves nothing out is said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8
from baraquant.qat import prepare_
from baraquant.workflow.report import FILTERED


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True)
        self.gru, self.cell = nn.GRU(8, 8), nn.LSTMCell(8, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.tied = self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.gru(self.lstm(x)[0][..., :8])[0]
        y = self.attention(y, y, y)[0]
        return self.head(torch.stack([self.cell(one)[0] for one in y]))


CALLS = {
    "prepare_": lambda model, fn: prepare_(model, W8A8(), fn),
    "quantize_": lambda model, fn: baraquant.quantize_(model, W8A8(), filter_fn=fn),
    "rules": lambda model, fn: baraquant.quantize_(model, {"*": W8A8()}, filter_fn=fn),
}
by_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@by_call
def test_each_part_can_be_left_out(call: Any) -> None:
    every = set(call(Packed(), None).changed)
    assert {"lstm.cells.l0.ih", "cell.ih", "attention.out_proj"} <= every
    for name in every:
        model = Packed()
        refused = ("tied", "head") if name in ("tied", "head") else (name,)
        report = call(model, lambda module, path, refused=refused: path not in refused)
        assert set(report.changed) == every - {name}
        assert report.left_out[name] == FILTERED
        assert isinstance(model.get_submodule(name), nn.Linear)
        model(torch.randn(3, 2, 8))


@by_call
@pytest.mark.parametrize("whole", ["lstm", "gru", "cell", "attention"])
def test_the_whole_or_all_of_its_parts(call: Any, whole: str) -> None:
    for refused in (lambda name: name == whole, lambda name: name.startswith(f"{whole}.")):
        model = Packed()
        report = call(model, lambda module, name, refused=refused: not refused(name))
        assert not any(name.startswith(whole) for name in report.changed)
        assert set(report.left_out) == {whole} and report.left_out[whole] == FILTERED
        assert type(model.get_submodule(whole)).__module__.startswith("torch.")


def test_sensitivity_asks_for_parts() -> None:
    found = baraquant.sensitivity(
        Packed(),
        [W8A8()],
        [torch.randn(3, 2, 8)],
        filter_fn=lambda module, name: name != "lstm.cells.l0.ih",
    )
    assert found.left_out["lstm.cells.l0.ih"] == FILTERED
    assert "lstm.cells.l0.hh" in {layer.path for layer in found.layers}


@by_call
def test_a_filter_that_leaves_nothing_out_is_said(call: Any) -> None:
    with pytest.warns(UserWarning, match="expected filter_fn to leave out a layer, but it takes"):
        call(Packed(), lambda module, name: name != "lstm.cells.0.ih")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(Packed(), lambda module, name: name != "lstm.cells.l0.ih")
        call(Packed(), None)


def test_fused_ops_too() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    with pytest.warns(UserWarning, match="use_fused_ops_: expected filter_fn to leave out"):
        baraquant.use_fused_ops_(model, lambda module, name: name != "norm")
