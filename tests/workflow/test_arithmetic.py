# SPDX-License-Identifier: BSD-3-Clause
"""A report says which layers multiply integers, and a scheme that speeds up nothing is said."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import AWQ, W4A8, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static
from baraquant.nn import FakeQuantize
from baraquant.qat import convert_, prepare_
from baraquant.workflow.report import FLOATS, INTEGERS, ROWS
from tests.support.checks.refused import refused
from tests.support.models.training_models import TiedHead
from tests.support.schemes import all_described
from tests.workflow.registered_layer import Gained, QuantizedGained, forgotten, register

__all__ = ["forgotten"]  # a fixture


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv1d(16, 16, 3), nn.ReLU(), nn.ConvTranspose1d(16, 16, 3))


DATA = [torch.randn(2, 16, 9)]


@pytest.mark.parametrize(
    ("scheme", "how"),
    [(scheme, INTEGERS) for scheme in (W8A8(), W8A8Static(), W4A8(16))]
    + [(scheme, FLOATS) for scheme in (W4A8(16, group_factors=False), W8A16(), W4A16(16))],
    ids=str,
)
@pytest.mark.parametrize("trained", [True, False])
def test_linear_layers(scheme: Any, how: str, trained: bool) -> None:
    model = nn.Sequential(nn.Embedding(5, 16), nn.Linear(16, 16))
    data = [torch.arange(5)]
    if trained:
        prepared = prepare_(model, scheme, calibration=data)
        report = convert_(model)
        assert prepared.computes == report.computes
        assert prepared.integer_products == report.integer_products
    else:
        report = baraquant.quantize_(model, {nn.Linear: scheme, "*": W8A16()}, calibration=data)
    assert report.computes["1"] == how and report.computes["0"] == ROWS
    assert report.integer_products == (1.0 if how == INTEGERS else 0.0)
    assert any(row[1].endswith(f": {how}") for row in report.rows())
    assert "of multiply-adds of weights by integers" in report.summary()


NO_FASTER: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "convolutions": (convolutions, W8A8()),
    "groups": (lambda: nn.Sequential(nn.Linear(16, 16)), W4A8(16, group_factors=False)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose1d(16, 16, 3)),
        W8A8Static(conv_inputs=True)),
    "a small head": (lambda: nn.Sequential(nn.Conv1d(16, 32, 3), nn.Flatten(0, 1),
        nn.Linear(7, 4)), W8A8()),
    "a rule": (lambda: nn.Sequential(nn.Conv1d(16, 32, 3), nn.Linear(7, 4)),
        {nn.Conv1d: W8A8(symmetric=False), nn.Linear: W8A8()}),
}  # fmt: skip
ROUTES: dict[str, Any] = {"quantize_": partial(baraquant.quantize_, calibration=DATA),
    "prepare_": prepare_}  # fmt: skip


@pytest.mark.parametrize("name", NO_FASTER)
@pytest.mark.parametrize("route", ROUTES)
def test_training_says_the_same_and_nothing_changes_before(name: str, route: str) -> None:
    build, scheme = NO_FASTER[name]
    with pytest.warns(UserWarning, match="expected layers that multiply integers with") as found:
        ROUTES[route](build(), scheme)
    text = str(found[0].message).partition(": ")[2]
    with pytest.warns(UserWarning) as other:
        ROUTES["prepare_" if route == "quantize_" else "quantize_"](build(), scheme)
    assert [str(one.message).partition(": ")[2] for one in other] == [text]
    assert all(one.filename == __file__ for one in (*found, *other))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(ROUTES[route], "no faster", build(), scheme, error=UserWarning)


@pytest.mark.filterwarnings("error")
def test_layers_that_training_has_not_reached_are_said_by_conversion() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(16, 16)})
    prepare_(model, W8A8Static())
    model["used"](torch.randn(3, 4))
    before = dict(model.named_modules())
    with pytest.raises(UserWarning, match=r"qat\.convert_: expected layers that multiply"):
        convert_(model)
    assert dict(model.named_modules()) == before


def everything() -> nn.Module:
    return nn.ModuleDict({
        "linear": nn.Linear(16, 16), "table": nn.Embedding(5, 16), "conv": nn.Conv2d(16, 16, 3),
        "depthwise": nn.Conv1d(16, 16, 3, groups=16), "grouped": nn.Conv1d(16, 16, 3, groups=4),
        "transposed": nn.ConvTranspose1d(16, 16, 3), "lstm": nn.LSTM(16, 16),
        "gru": nn.GRU(16, 16), "attention": nn.MultiheadAttention(16, 2),
    })  # fmt: skip


@pytest.mark.parametrize(
    "scheme",
    [
        W8A8(), W8A8(False), W8A8Static(), W8A8Static(conv_inputs=True),
        W4A8(16), W4A8(16, group_factors=False), W4A8(16, learned=True), W8A16(), W4A16(16),
        *all_described("int8 asymmetric, int8 per_token", "int8, int8 per_tensor asymmetric",
            "int4, int8 per_group(16)").values(),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*no faster")
def test_what_preparation_says_is_what_conversion_gives(scheme: Any) -> None:
    model = everything()
    prepared = prepare_(model, scheme)
    for module in model.modules():
        for quantizer in getattr(module, "input_quantizers", dict)().values():
            if isinstance(quantizer, FakeQuantize) and not quantizer.is_dynamic:
                quantizer.train()(torch.randn(16))
    converted = convert_(model)
    assert prepared.computes == converted.computes
    assert prepared.computes.keys() == prepared.changed.keys()
    assert prepared.multiply_adds == converted.multiply_adds


class Multiplies(QuantizedGained):
    is_integer = True


@pytest.mark.parametrize(
    ("inference", "scheme", "how"),
    [
        (QuantizedGained, W8A8(), FLOATS),
        (QuantizedGained, W8A16(), FLOATS),
        (Multiplies, W8A8(), INTEGERS),
    ],
)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("ignore:.*no faster")
def test_registered_layers(inference: Any, scheme: Any, how: str) -> None:
    register(inference)
    model = nn.Sequential(Gained(8, 8))
    assert prepare_(model, scheme).computes == {"0": how}
    assert convert_(model).computes == {"0": how}
    assert baraquant.quantize_(nn.Sequential(Gained(8, 8)), scheme).computes == {"0": how}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scheme", [W8A16(), W8A8Static(conv_inputs=True)], ids=str)
def test_others_are_not(scheme: Any) -> None:
    report = baraquant.quantize_(convolutions(), scheme, calibration=DATA)
    assert report.integer_products == (0.5 if scheme.activation is not None else 0.0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_shared_weight_counts_for_each_of_its_modules(tied: bool) -> None:
    report = baraquant.quantize_(TiedHead(100, 16, tied=tied), {"body": W8A8(), "*": W8A16()})
    assert report.integer_products == pytest.approx(256 / (256 + 1600))


@pytest.mark.parametrize("left_out", [True, False])
def test_embeddings_do_not_count(left_out: bool) -> None:
    rules = {nn.Embedding: None if left_out else W8A8(), "*": W8A8()}
    assert baraquant.quantize_(TiedHead(100, 16, tied=False), rules).integer_products == 1


def test_smoothing_is_not_mistaken_for_another_scheme() -> None:
    model = nn.Sequential(nn.Conv1d(16, 16, 1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 16))
    model[2].weight.data[3] = 100.0  # AWQ scales the linear layer
    rules = {nn.Conv1d: SmoothQuant(0.5), "*": AWQ(W4A16(16))}
    with pytest.warns(UserWarning, match="expected SmoothQuant to smooth a layer"):
        report = baraquant.quantize_(model, rules, calibration=[torch.randn(4, 16, 1)])
    assert "alpha" in report.changed["3"]
