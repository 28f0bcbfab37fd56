# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: what it refuses, in which words, and that the model is then as it was."""

import copy
import math
import re

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W4A16, W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from tests.support.models.outlier_models import (
    CALIBRATED,
    SCHEMES,
    Block,
    batches,
    seeded,
    unchanged,
)


@pytest.mark.parametrize("config", SCHEMES, ids=str)
@pytest.mark.parametrize("empty", [nn.ReLU(), nn.Sequential(nn.Bilinear(2, 2, 1), nn.Dropout())])
def test_a_model_without_a_layer_to_quantize(empty, config):
    with pytest.raises(ValueError, match=r"quantize_: expected a model with a Linear, Conv1d"):
        baraquant.quantize_(empty, config, calibration=batches())
    model = seeded(Block)
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"Block has none \(query: filter_fn; key: filter_fn"):
        baraquant.quantize_(
            model, config, calibration=batches(), filter_fn=lambda module, name: False
        )
    assert unchanged(model, original)


def test_a_layer_by_itself():
    for layer in (nn.Linear(4, 4), nn.Embedding(4, 4)):
        with pytest.raises(ValueError, match=r"itself; wrap it in nn\.Sequential"):
            baraquant.quantize_(layer, W8A8())


@pytest.mark.parametrize(
    "config, got",
    [
        (None, "NoneType"),
        ("w8a8", "str"),
        (W8A8, r"the function W8A8; write W8A8\(\)"),
        (W4A16, r"the function W4A16; write W4A16\(\)"),
        (SmoothQuant, r"the class SmoothQuant; write SmoothQuant\(\)"),
        (QuantConfig, r"the class QuantConfig; write QuantConfig\(\.\.\.\)"),
        (int, "the class int"),
        (["w8a8"], "list"),
        (TensorConfig(), "TensorConfig"),
    ],
)
def test_what_is_no_scheme(config, got):
    model = seeded(Block)
    original = copy.deepcopy(model)
    message = f"^baraquant.quantize_: expected config to be a QuantConfig, but got {got}$"
    with pytest.raises(TypeError, match=message):
        baraquant.quantize_(model, config, calibration=batches())
    if config is not None:  # in a dictionary None leaves layers floating
        rules = {"query": W8A8(), "*": config}
        with pytest.raises(TypeError, match=rf"quantize_: '\*': expected config .* got {got}$"):
            baraquant.quantize_(model, rules, calibration=batches())
    assert unchanged(model, original)


@pytest.mark.parametrize("config", [W8A8(), SmoothQuant()], ids=str)
@pytest.mark.parametrize("filter_fn", ["query", 0, ["query"]])
def test_what_is_no_filter(filter_fn, config):
    model = seeded(Block)
    original = copy.deepcopy(model)
    message = f"quantize_: expected filter_fn to be a function .*{type(filter_fn).__name__}$"
    with pytest.raises(TypeError, match=message):
        baraquant.quantize_(model, config, calibration=batches(), filter_fn=filter_fn)
    assert unchanged(model, original)


def test_what_is_no_model():
    with pytest.raises(TypeError, match="expected model to be a Module, but got str"):
        baraquant.quantize_("model", W8A8())
    with pytest.raises(TypeError, match="expected a model in Python"):
        baraquant.quantize_(torch.jit.trace(seeded(Block), batches()[0]), W8A8())


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_bad_calibration_leaves_the_model_alone(config):
    model = seeded(Block).train()
    original = copy.deepcopy(model)
    poisoned = [x.fill_(math.nan) for x in batches()]

    def fails(given, message, kind=ValueError):
        with pytest.raises(kind, match=message):
            baraquant.quantize_(model, config, calibration=given)
        assert unchanged(model, original)

    what = "SmoothQuant" if isinstance(config, SmoothQuant) else "a static input"
    fails(None, f"expected calibration data for {what}, but got None")
    fails([], "expected calibration data, but got no batch")
    fails(lambda m: None, "query: expected the calibration data to reach the module")
    fails(poisoned, "quantize_: query: expected finite calibration data, but every batch gives")
    fails(lambda m: [m(x) for x in poisoned], "query: expected finite calibration data")
    fails(3, "expected calibration to be an iterable", TypeError)
    fails([torch.randn(2, 5, 7)], "normalized_shape", RuntimeError)


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_a_poisoned_batch_is_left_out(config):
    """The model is that of the other batches, and the warning names the layers."""
    clean, poisoned = batches(), batches()
    poisoned.insert(1, torch.full_like(clean[0], math.nan))
    model, expected = seeded(Block).eval(), seeded(Block).eval()
    with pytest.warns(UserWarning, match=r"^baraquant.quantize_: inputs with .* query \(1\), "):
        baraquant.quantize_(model, config, calibration=poisoned)
    baraquant.quantize_(expected, config, calibration=clean)
    assert torch.equal(model(clean[0]), expected(clean[0]))


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_batches_with_labels(config):
    pairs = [(x, torch.zeros(len(x), dtype=torch.int64)) for x in batches()]
    loader = torch.utils.data.DataLoader(pairs, batch_size=None)
    model = seeded(Block)
    original = copy.deepcopy(model)
    message = (
        r"quantize_: batch 0: expected the batch, a (tuple|list) of 2, to be the arguments of "
        r"Block, but model\(\*batch\) raised: .*positional.* pass a function"
    )
    with pytest.raises(TypeError, match=message) as raised:
        baraquant.quantize_(model, config, calibration=loader)
    assert isinstance(raised.value.__cause__, TypeError) and unchanged(model, original)
    named = [{"input": x, "labels": y} for x, y in pairs]
    with pytest.raises(TypeError, match=r"a dict of 2, .* model\(\*\*batch\) raised: .*labels"):
        baraquant.quantize_(model, config, calibration=named)
    assert unchanged(model, original)
    # What the message tells to pass.
    baraquant.quantize_(model, config, calibration=lambda model: [model(x) for x, _ in loader])
    baraquant.quantize_(original, config, calibration=batches())
    assert torch.equal(model(batches()[0]), original(batches()[0]))


def test_other_errors_of_the_model_are_its_own():
    model = nn.Sequential(nn.Linear(16, 4))
    with pytest.raises(TypeError) as raised:
        baraquant.quantize_(model, W8A8Static(), calibration=["text"])
    assert raised.value.__cause__ is None and "batch 0" not in str(raised.value)
    with pytest.raises(TypeError) as raised:
        baraquant.quantize_(model, W8A8Static(), calibration=[(torch.ones(2, 16),), (1, 2)])
    assert raised.value.__cause__ is None and "batch 0" not in str(raised.value)


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_a_layer_that_no_data_reaches_is_named(config):
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model.forward = lambda x: model["used"](x)
    before = copy.deepcopy(model["used"])
    with pytest.raises(ValueError, match=r": unused: .* it saw no input; leave it out with filter"):
        baraquant.quantize_(
            model,
            config,
            calibration=[torch.randn(3, 4)],
            filter_fn=lambda _, name: name == "unused",
        )
    assert torch.equal(model["used"].weight, before.weight) and type(model["unused"]) is nn.Linear
    report = baraquant.quantize_(model, config, calibration=[torch.randn(3, 4)])
    assert report.changed["unused"].endswith("does not reach it")
    assert type(model["used"]) is not nn.Linear
    x = torch.randn(3, 4)
    wanted = torch.nn.functional.linear(x, model["unused"].weight, model["unused"].bias)
    assert (model["unused"](x) - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_named(value):
    model = seeded(Block)
    with torch.no_grad():
        model.up.weight[3, 4] = value
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"quantize_: up: expected a finite weight"):
        baraquant.quantize_(model, W8A8())
    assert type(model.query) is type(original.query)


@pytest.mark.parametrize("features, symmetric", [(131_072, True), (65_537, False)])
def test_a_layer_too_wide_for_the_sums_is_named(features, symmetric):
    model = nn.Sequential(nn.Linear(features, 1), nn.Linear(1, 1))
    reason = (
        f"the configuration does not fit: expected in_features to be at most {features - 1} "
        f"for an exact int32 product.*, but got {features}"
    )
    with pytest.raises(ValueError, match=f"has none .0: {reason}"):
        baraquant.quantize_(model, W8A8(symmetric), filter_fn=lambda m, name: name == "0")
    report = baraquant.quantize_(model, W8A8(symmetric))
    assert set(report.changed) == {"1"} and re.fullmatch(reason, report.left_out["0"])


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        model = Block()
    with pytest.raises(ValueError, match="query: expected a weight with data, but it is on"):
        baraquant.quantize_(model, W8A8())


def test_a_second_time_finds_nothing():
    model = seeded(Block)
    baraquant.quantize_(model, W8A8())
    message = "quantize_: expected a float model, but Block is converted already"
    with pytest.raises(ValueError, match=message):
        baraquant.quantize_(model, W8A8())
    model = seeded(Block)
    baraquant.qat.prepare_(model, W8A8())
    message = "quantize_: expected a float model, but Block is prepared already"
    with pytest.raises(ValueError, match=message):
        baraquant.quantize_(model, W8A8())
