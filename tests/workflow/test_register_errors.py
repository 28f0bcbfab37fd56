# SPDX-License-Identifier: BSD-3-Clause
"""Registrations that are wrong: an error that says where, and the model is as it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import W8A8, QuantConfig
from baraquant.qat import convert_, prepare_
from baraquant.workflow.layers import LAYERS
from tests.support.models.outlier_models import unchanged
from tests.workflow import registered_layer
from tests.workflow.registered_layer import (
    TENSORS,
    FakeQuantizedGained,
    Gained,
    QuantizedGained,
    model_of,
    register,
)

pytestmark = pytest.mark.usefixtures("forgotten")
forgotten = registered_layer.forgotten


class Liar(QuantizedGained):
    """Returned by nobody who says what it is."""


class ReturnsAnother(QuantizedGained):
    @classmethod
    def from_prepared(cls, layer: Any, integers: Any) -> Any:
        return QuantizedGained.from_prepared.__func__(Liar, layer, integers)


class ReturnsNothing(QuantizedGained):
    @classmethod
    def from_prepared(cls, layer: Any, integers: Any) -> Any:
        return None


class HasMore(QuantizedGained):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("surplus", torch.ones(3))


class HasLess(QuantizedGained):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.gain


class HasNoPower(QuantizedGained):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.power

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantized_weight()) * self.gain


class HasNoWidth(QuantizedGained):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.weight_bits


class Breaks(QuantizedGained):
    @classmethod
    def from_prepared(cls, layer: Any, integers: Any) -> Any:
        raise ValueError("expected a better day")


LIES: dict[str, tuple[type[nn.Module], dict[str, Any], str]] = {
    "another class": (ReturnsAnother, {}, "from_prepared to return a ReturnsAnother, .* a Liar"),
    "nothing": (ReturnsNothing, {}, "from_prepared to return a ReturnsNothing, .* a NoneType"),
    "a tensor more": (HasMore, {}, "HasMore to have the tensors .*, but it has surplus"),
    "a tensor less": (HasLess, {}, "HasLess to have the tensors .*, but gain is missing"),
    "a name more": (
        QuantizedGained,
        {"tensors": TENSORS | {"bias": True}},
        "QuantizedGained to have the tensors .*, but bias is missing",
    ),
    "a name less": (
        QuantizedGained,
        {"tensors": {"qweight": True, "weight_scale": True}},
        "QuantizedGained to have the tensors .*, but it has gain",
    ),
    "an option that is none": (HasNoPower, {}, "HasNoPower to have an attribute power"),
    "no width": (HasNoWidth, {}, "HasNoWidth to have an attribute weight_bits"),
    "an error": (Breaks, {}, "expected a better day"),
}


@pytest.mark.parametrize("name", LIES)
def test_registrations_that_lie(name: str) -> None:
    """The error names the layer's path, and the model is as it was."""
    inference, changes, message = LIES[name]
    register(inference, **changes)
    model = model_of()
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=rf"baraquant\.quantize_: 0\.0: .*{message}"):
        baraquant.quantize_(model, W8A8())
    assert unchanged(model, original)
    prepare_(model, W8A8())
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=rf"baraquant\.qat\.convert_: 0\.0: .*{message}"):
        convert_(model)
    assert unchanged(model, original)


class MakesAnother(FakeQuantizedGained):
    @classmethod
    def from_float(cls, module: Any, config: QuantConfig) -> Any:
        return copy.deepcopy(module)


def test_a_training_form_that_lies() -> None:
    baraquant.register_layer(Gained, MakesAnother, QuantizedGained)
    for call in (prepare_, baraquant.quantize_):
        model = model_of()
        original = copy.deepcopy(model)
        message = r"_: 0\.0: expected from_float to return a MakesAnother, but it returned a Gained"
        with pytest.raises(ValueError, match=message):
            call(model, W8A8())
        assert unchanged(model, original)


def test_an_option_that_the_constructor_does_not_take(tmp_path: Path) -> None:
    """It is found at the latest when a file is read, before the model changes."""
    register(options=["input_fake_quant", "group_size"])
    model = model_of()
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    fresh = model_of()
    before = copy.deepcopy(fresh)
    with pytest.raises((TypeError, ValueError), match=r"load_: a: 0\.0: .*power"):
        baraquant.load_(fresh, tmp_path / "a")
    assert unchanged(fresh, before)


@pytest.mark.parametrize("value", [object(), float("nan"), float("-inf"), 2**63, [0.5]])
def test_an_option_that_is_no_plain_value(value: object, tmp_path: Path) -> None:
    register()
    model = model_of()
    baraquant.quantize_(model, W8A8())
    model[2].power = value
    with pytest.raises(ValueError, match=r"save: 2: expected power to be a plain value"):
        baraquant.save(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()


class Other(nn.Module):
    pass


class FakeQuantizedOther(baraquant.nn.QuantizesWeight):
    pass


class QuantizedLinear(QuantizedGained):
    """A name that files have for another class."""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((Gained, FakeQuantizedGained, Liar), ValueError, "Gained is registered already"),
        ((nn.Linear, FakeQuantizedGained, Liar), ValueError, "Linear is registered already"),
        ((Other, FakeQuantizedGained, Liar), ValueError, "classes of its own for Other, but"),
        (
            (Other, baraquant.nn.FakeQuantizedLinear, Liar),
            ValueError,
            "classes of its own for Other, but another",
        ),
        ((3, FakeQuantizedGained, Liar), TypeError, "float_type to be a class of modules, .* 3"),
        ((int, FakeQuantizedGained, Liar), TypeError, "float_type to be a class of modules"),
        ((nn.Module, FakeQuantizedGained, Liar), TypeError, "float_type to be a class of modules"),
        ((Other, nn.Linear, Liar), TypeError, "training to be a subclass of QuantizesWeight"),
        ((Other, FakeQuantizedOther, Liar), TypeError, "to have a class method from_float"),
        ((Other, MakesAnother, nn.Linear), TypeError, "inference to be a subclass of HoldsInteg"),
        (
            (Other, MakesAnother, baraquant.nn.HoldsIntegers),
            TypeError,
            "HoldsIntegers to have a class method from_prepared",
        ),
        (
            (Other, MakesAnother, QuantizedGained),
            ValueError,
            "classes of its own for Other, but another kind",
        ),
        ((Other, MakesAnother, QuantizedLinear), ValueError, "a name of its own for QuantizedLin"),
    ],
)
def test_what_cannot_be_registered(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    register()
    known = list(LAYERS)
    with pytest.raises(error, match=f"^baraquant.register_layer: expected .*{message}|{message}"):
        baraquant.register_layer(*arguments)
    assert known == LAYERS
