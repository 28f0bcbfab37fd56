# SPDX-License-Identifier: BSD-3-Clause
"""A report says which layers multiply integers, and a scheme that speeds up nothing is said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import AWQ, W4A8, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static
from baraquant.qat import convert_, prepare_
from baraquant.workflow.report import FLOATS, INTEGERS, ROWS


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv1d(16, 16, 3), nn.ReLU(), nn.ConvTranspose1d(16, 16, 3))


DATA = [torch.randn(2, 16, 9)]


@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        (W8A8(), INTEGERS),
        (W8A8Static(), INTEGERS),
        (W4A8(16), INTEGERS),
        (W4A8(16, group_factors=False), FLOATS),
        (W8A16(), FLOATS),
        (W4A16(16), FLOATS),
    ],
    ids=str,
)
@pytest.mark.parametrize("trained", [True, False])
def test_linear_layers(scheme: Any, how: str, trained: bool) -> None:
    model = nn.Sequential(nn.Embedding(5, 16), nn.Linear(16, 16))
    data = [torch.arange(5)]
    if trained:
        prepared = prepare_(model, scheme, calibration=data)
        assert prepared.computes == {} and "multiply-adds" not in prepared.summary()
        report = convert_(model)
    else:
        report = baraquant.quantize_(model, {nn.Linear: scheme, "*": W8A16()}, calibration=data)
    assert report.computes["1"] == how and report.computes["0"] == ROWS
    assert report.integer_products == (1.0 if how == INTEGERS else 0.0)
    assert any(row[1].endswith(f": {how}") for row in report.rows())
    assert "of multiply-adds of weights by integers" in report.summary()


@pytest.mark.parametrize(
    "scheme", [W8A8(), W8A8(False), W8A8Static(), SmoothQuant(0.5), SmoothQuant("search")], ids=str
)
def test_presets_that_speed_up_no_convolution_are_said(scheme: Any) -> None:
    model = convolutions()
    with pytest.warns(UserWarning, match="smaller and no faster; convolutions round their inputs"):
        report = baraquant.quantize_(model, scheme, calibration=DATA)
    assert set(report.computes.values()) == {FLOATS} and report.integer_products == 0


def test_smoothing_that_smooths_nothing_is_said() -> None:
    with pytest.warns(UserWarning, match="expected SmoothQuant to smooth a layer"):
        baraquant.quantize_(convolutions(), SmoothQuant(0.5), calibration=DATA)


@pytest.mark.parametrize("scheme", [W8A16(), W8A8Static(conv_inputs=True)], ids=str)
def test_others_are_not(scheme: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = baraquant.quantize_(convolutions(), scheme, calibration=DATA)
    products = 0.5 if scheme.activation is not None else 0.0
    assert report.integer_products == products


class Tied(nn.Module):
    """An embedding of 1,600 weights, which the head may share, and a layer of 256."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(100, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 100, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


@pytest.mark.parametrize("tied", [True, False])
def test_a_shared_weight_counts_for_each_of_its_modules(tied: bool) -> None:
    rules = {"layer": W8A8(), "*": W8A16()}
    report = baraquant.quantize_(Tied(tied), rules)
    assert report.integer_products == pytest.approx(256 / (256 + 1600))


@pytest.mark.parametrize("left_out", [True, False])
def test_embeddings_do_not_count(left_out: bool) -> None:
    rules = {nn.Embedding: None if left_out else W8A8(), "*": W8A8()}
    assert baraquant.quantize_(Tied(False), rules).integer_products == 1


def test_smoothing_is_not_mistaken_for_another_scheme() -> None:
    model = nn.Sequential(nn.Conv1d(16, 16, 1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 16))
    with torch.no_grad():
        model[2].weight[3] = 100.0  # AWQ scales the linear layer
    rules = {nn.Conv1d: SmoothQuant(0.5), "*": AWQ(W4A16(16))}
    with pytest.warns(UserWarning, match="expected SmoothQuant to smooth a layer"):
        report = baraquant.quantize_(model, rules, calibration=[torch.randn(4, 16, 1)])
    assert "alpha" in report.changed["3"]
