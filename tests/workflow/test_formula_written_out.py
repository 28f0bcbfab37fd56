# SPDX-License-Identifier: BSD-3-Clause
"""Subclasses of Linear that write the parent's formula out, and ones that compute another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant.nn.shared.subclassed import computes_parent
from baraquant.qat import convert_, prepare_


class WrittenOut(nn.Linear):
    """Falcon's linear layer: the parent's formula, written out."""

    def forward(self, input: Tensor) -> Tensor:
        hidden = input @ self.weight.T
        return hidden if self.bias is None else hidden + self.bias


class Halved(nn.Linear):
    """Another formula with the weight."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T * 0.5 + self.bias


def test_the_parents_formula_written_out_is_the_parents(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(WrittenOut(8, 8), nn.ReLU(), WrittenOut(8, 4, bias=False))
    float_model, x = copy.deepcopy(model), torch.randn(3, 8)
    wanted = model(x)
    prepare_(model, baraquant.W8A8())
    model(x).sum().backward()
    evaluated = model.eval()(x)
    report = convert_(model)
    assert set(report.changed.values()) == {"QuantizedLinear"}
    assert torch.equal(model(x), evaluated)
    assert (evaluated - wanted).norm() < 0.03 * wanted.norm()
    baraquant.save(model, tmp_path / "a")
    for into in (float_model, lambda: copy.deepcopy(float_model)):
        assert torch.equal(baraquant.load_(into, tmp_path / "a")(x), evaluated)


def test_another_formula_with_the_weight_stays_out() -> None:
    model = nn.Sequential(Halved(8, 8), nn.Linear(8, 8))
    report = baraquant.quantize_(model, baraquant.W8A8())
    assert report.left_out == {"0": "Halved has a forward of its own"}


class Scaled(nn.Linear):
    """The parent's formula in one module, and another one in the next."""

    def __init__(self, factor: object) -> None:
        super().__init__(8, 8)
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        factor = self.factor if isinstance(self.factor, float) else self.factor[0]
        return input @ self.weight.T * factor + self.bias


@pytest.mark.parametrize("wrap", [float, lambda number: torch.tensor([number])])
def test_the_formula_is_a_matter_of_the_module(wrap: Callable[[float], object]) -> None:
    model = nn.Sequential(Scaled(wrap(1.0)), Scaled(wrap(2.0)), Scaled(wrap(1.0)))
    report = baraquant.quantize_(model, baraquant.W8A8())
    assert report.left_out == {"1": "Scaled has a forward of its own"}
    assert set(report.changed) == {"0", "2"}


class Adapted(nn.Linear):
    """Not the parent's formula: an adapter adds to it."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.adapter = nn.Linear(8, 8, bias=False)
        self.register_buffer("mask", torch.ones(8))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.adapter(input) * self.mask


class Unused(WrittenOut):
    """The parent's formula, with a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("calls", torch.zeros(()))


@pytest.mark.parametrize("kind", [Adapted, Unused])
def test_a_module_on_the_meta_device_is_told_as_one_with_data(kind: type[nn.Linear]) -> None:
    with torch.device("meta"):
        without = kind()
    for module in (kind(), without, kind().to("meta")):
        assert computes_parent(module, nn.Linear) == (kind is Unused)
