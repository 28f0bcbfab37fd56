# SPDX-License-Identifier: BSD-3-Clause
"""A layer of a user's own, as docs/guide.md has one; and registrations that are wrong."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16, QuantConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from baraquant.workflow.layers import LAYERS
from tests.support.checks.refused import refused
from tests.support.checks.stored import assert_stored
from tests.support.models.outlier_models import relative_error
from tests.support.schemes import described
from tests.workflow import registered_layer
from tests.workflow.registered_layer import FakeQuantizedGained, Gained, QuantizedGained, model_of

pytestmark = pytest.mark.usefixtures("forgotten")
forgotten, register = registered_layer.forgotten, registered_layer.register

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
GAINED = ["0.0", "2"]
SCHEMES: dict[str, QuantConfig] = {
    "W8A8": W8A8(False),
    "W8A8Static": W8A8Static(symmetric=False),
    "W8A16": W8A16(),
    "W4A16": W4A16(4, symmetric=False),
    "W4A8": W4A8(8, group_factors=False),
    "learned": described("int3 learned, int8 per_tensor learned"),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_layer_of_ones_own(name: str, tmp_path: Path) -> None:
    config, reason = SCHEMES[name], "there is no quantized form of Gained"
    assert prepare_(model_of(), W8A8()).left_out == dict.fromkeys(GAINED, reason)
    register()
    model = model_of()
    wanted = model(X).detach()
    parameters = list(model.parameters())
    report = prepare_(model, config)
    assert list(report.changed) == ["0.0", "1", "2"] and not report.left_out
    assert report.changed["2"].startswith("FakeQuantizedGained(weight=int")
    own = {id(parameter) for parameter in model.parameters()}
    assert own >= {id(parameter) for parameter in parameters}, "an optimizer goes on"
    model.train()(X).square().sum().backward()
    assert all(parameter.grad is not None for parameter in parameters)
    with torch.no_grad():
        evaluated = model.eval()(X)
        report = convert_(model)
        assert [report.changed[name] for name in GAINED] == ["QuantizedGained"] * 2
        assert torch.equal(model(X), evaluated)
    assert_stored(model, model_of, X, tmp_path / "trained")

    served = model_of()
    data = {"calibration": [X]} if config.is_static else {}
    report = baraquant.quantize_(served, config, **data)
    assert set(report.changed) == {"0.0", "1", "2"} and report.share > 0.85
    assert relative_error(served(X), wanted) < (0.06 if config.weight.bits == 8 else 0.5)
    assert_stored(served, model_of, X, tmp_path / "served")


def test_rules_and_filters_and_subclasses() -> None:
    class Same(Gained):
        pass

    class Other(Gained):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    register()
    model = model_of()
    report = baraquant.quantize_(model, {Gained: W4A8(4, group_factors=False), "*": None})
    assert list(report.changed) == GAINED and model[2].weight_bits == 4
    report = prepare_(model_of(), W8A8(), lambda module, name: not isinstance(module, Gained))
    assert report.left_out == dict.fromkeys(GAINED, "filter_fn")
    model = nn.Sequential(Same(4, 4), Other(4, 4))
    report = prepare_(model, W8A8())
    assert list(report.changed) == ["0"]
    assert report.left_out == {"1": "Other has a forward of its own"}


def test_a_reason_of_ones_own() -> None:
    def why_not(module: nn.Module, config: QuantConfig) -> str | None:
        return "it has a power" if module.power != 1 else None

    register(why_not=why_not)
    model = model_of()
    model[2].power = 2
    report = baraquant.quantize_(model, W8A8())
    assert report.left_out == {"2": "it has a power"} and "0.0" in report.changed


def test_tied_weights() -> None:
    register()
    model = nn.Sequential(Gained(8, 8), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    prepare_(model, W4A16(4))
    convert_(model)
    assert model[0].qweight.data_ptr() == model[1].qweight.data_ptr()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m[2], "power", 3), "2: expected power to be 1, as in the file, .* 3"),
        (lambda m: setattr(m, "2", nn.Linear(8, 4)), "2: expected a Gained for the QuantizedGai"),
    ],
)
def test_a_file_of_another_model(change: Any, message: str, tmp_path: Path) -> None:
    register()
    model = model_of()
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    other = model_of()
    change(other)
    refused(baraquant.load_, message, other, tmp_path / "a")


def lying(name: str, from_prepared: Any) -> type[nn.Module]:
    """A class of this name whose ``from_prepared`` is a function of the layer and its integers."""
    method = classmethod(lambda cls, *given: from_prepared(*given))
    return type(name, (QuantizedGained,), {"from_prepared": method})


def changed(name: str, change: Callable[[Any], None]) -> type[nn.Module]:
    """A class of this name whose layers are changed when they have been made."""

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        QuantizedGained.__init__(self, *arguments, **options)
        change(self)

    return type(name, (QuantizedGained,), {"__init__": init})


def breaks(*_: Any) -> None:
    raise ValueError("expected a better day")


Liar = type("Liar", (QuantizedGained,), {})
as_liar = QuantizedGained.from_prepared.__func__.__get__(Liar)
LIES: dict[str, tuple[type[nn.Module], dict[str, Any], str]] = {
    "another class": (lying("ReturnsAnother", as_liar), {},
        "from_prepared to return a ReturnsAnother, .* a Liar"),
    "nothing": (lying("ReturnsNothing", lambda *_: None), {},
        "from_prepared to return a ReturnsNothing, .* a NoneType"),
    "a tensor more": (changed("HasMore", lambda layer: layer.register_buffer("surplus", X)), {},
        "HasMore to have the tensors .*, but it has surplus"),
    "a tensor less": (changed("HasLess", lambda layer: delattr(layer, "gain")), {},
        "HasLess to have the tensors .*, but gain is missing"),
    "a name more": (QuantizedGained, {"tensors": registered_layer.TENSORS | {"bias": True}},
        "QuantizedGained to have the tensors .*, but bias is missing"),
    "a name less": (QuantizedGained, {"tensors": {"qweight": True, "weight_scale": True}},
        "QuantizedGained to have the tensors .*, but it has gain"),
    "an option that is none": (changed("HasNoPower", lambda layer: delattr(layer, "power")), {},
        "HasNoPower to have an attribute power"),
    "no width": (changed("HasNoWidth", lambda layer: delattr(layer, "weight_bits")), {},
        "HasNoWidth to have an attribute weight_bits"),
    "an error": (lying("Breaks", breaks), {}, "expected a better day"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_registrations_that_lie(name: str) -> None:
    inference, changes, message = LIES[name]
    register(inference, **changes)
    model = model_of()
    refused(baraquant.quantize_, rf"baraquant\.quantize_: 0\.0: .*{message}", model, W8A8())
    prepare_(model, W8A8())
    refused(convert_, rf"baraquant\.qat\.convert_: 0\.0: .*{message}", model)


class MakesAnother(FakeQuantizedGained):
    @classmethod
    def from_float(cls, module: Any, config: QuantConfig) -> Any:
        return copy.deepcopy(module)


def test_a_training_form_that_lies() -> None:
    baraquant.register_layer(Gained, MakesAnother, QuantizedGained)
    message = r"_: 0\.0: expected from_float to return a MakesAnother, but it returned a Gained"
    for call in (prepare_, baraquant.quantize_):
        refused(call, message, model_of(), W8A8())


def test_an_option_that_the_constructor_does_not_take(tmp_path: Path) -> None:
    """It is found at the latest when a file is read, before the model changes."""
    register(options=["input_fake_quant", "group_size"])
    model = model_of()
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    message, error = r"load_: a: 0\.0: .*power", (TypeError, ValueError)
    refused(baraquant.load_, message, model_of(), tmp_path / "a", error=error)


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


FAKE, BASE = baraquant.nn.FakeQuantizedLinear, baraquant.nn.HoldsIntegers


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((Gained, FakeQuantizedGained, Liar), ValueError, "Gained is registered already"),
        ((nn.Linear, FakeQuantizedGained, Liar), ValueError, "Linear is registered already"),
        ((Other, FakeQuantizedGained, Liar), ValueError, "classes of its own for Other, but"),
        ((Other, FAKE, Liar), ValueError, "classes of its own for Other, but another"),
        ((3, FakeQuantizedGained, Liar), TypeError, "float_type to be a class of modules, .* 3"),
        ((int, FakeQuantizedGained, Liar), TypeError, "float_type to be a class of modules"),
        ((nn.Module, FakeQuantizedGained, Liar), TypeError, "float_type to be a class of modules"),
        ((Other, nn.Linear, Liar), TypeError, "training to be a subclass of QuantizesWeight"),
        ((Other, FakeQuantizedOther, Liar), TypeError, "to have a class method from_float"),
        ((Other, MakesAnother, nn.Linear), TypeError, "inference to be a subclass of HoldsInteg"),
        ((Other, MakesAnother, BASE), TypeError, "HoldsIntegers to have a class method from_prep"),
        ((Other, MakesAnother, QuantizedGained), ValueError, "for Other, but another kind"),
        ((Other, MakesAnother, QuantizedLinear), ValueError, "a name of its own for QuantizedLin"),
    ],
)
def test_what_cannot_be_registered(arguments: Any, error: type[Exception], message: str) -> None:
    register()
    known = list(LAYERS)
    with pytest.raises(error, match=f"^baraquant.register_layer: expected .*{message}|{message}"):
        baraquant.register_layer(*arguments)
    assert known == LAYERS
