# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: data that it refuses or leaves out, under every scheme that needs calibration."""

import copy
import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, SmoothQuant, W8A8Static
from tests.support.checks.refused import refused
from tests.support.models import outlier_models
from tests.support.models.outlier_models import Block, batches, seeded

CALIBRATED = [*outlier_models.CALIBRATED, AWQ(W4A16(8), steps=2), GPTQ(W8A8())]
by_config = pytest.mark.parametrize("config", CALIBRATED, ids=str)


@by_config
def test_bad_calibration_leaves_the_model_alone(config):
    model = seeded(Block).train()
    poisoned = [x.fill_(math.nan) for x in batches()]

    def fails(given, message, kind=ValueError):
        refused(baraquant.quantize_, message, model, config, calibration=given, error=kind)

    is_named = isinstance(config, (SmoothQuant, AWQ, GPTQ))
    what = type(config).__name__ if is_named else "a static input"
    fails(None, f"expected calibration data for {what}, but got None")
    fails([], "expected calibration data, but got no batch")
    fails(lambda m: None, "query: expected the calibration data to reach the module")
    fails([torch.zeros(0, 5, 16)], "query: expected the calibration data to reach the module")
    fails(poisoned, "quantize_: query: expected finite calibration data, but every batch gives")
    fails(lambda m: [m(x) for x in poisoned], "query: expected finite calibration data")
    fails(3, "expected calibration to be an iterable", TypeError)
    fails([torch.randn(2, 5, 7)], "normalized_shape", RuntimeError)


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        (SmoothQuant("search"), "2 times"),
        (SmoothQuant(0.5, W8A8Static("mse")), "2 times"),
        (SmoothQuant("search", W8A8Static("percentile")), "3 times"),
        (AWQ(W4A16(8)), "several times for AWQ"),
        (GPTQ(W8A8()), "several times for GPTQ"),
        (GPTQ(W8A8Static()), "several times for GPTQ"),
    ],
    ids=str,
)
def test_data_that_is_gone_after_one_run(config, runs):
    message = f"data that can be gone through {runs}"
    refused(baraquant.quantize_, message, seeded(Block), config, calibration=iter(batches()))
    for once in (SmoothQuant(0.5), SmoothQuant(0.5, W8A8Static())):
        baraquant.quantize_(seeded(Block), once, calibration=iter(batches()))


@by_config
def test_a_poisoned_batch_is_left_out(config):
    """The model is that of the other batches, and the warning names the layers."""
    clean, poisoned = batches(), batches()
    poisoned.insert(1, torch.full_like(clean[0], math.nan))
    model, expected = seeded(Block).eval(), seeded(Block).eval()
    with pytest.warns(UserWarning, match=r"^baraquant.quantize_: inputs with .* query \(1\), "):
        baraquant.quantize_(model, config, calibration=poisoned)
    baraquant.quantize_(expected, config, calibration=clean)
    assert torch.equal(model(clean[0]), expected(clean[0]))


@by_config
def test_batches_with_labels(config):
    pairs = [(x, torch.zeros(len(x), dtype=torch.int64)) for x in batches()]
    loader = torch.utils.data.DataLoader(pairs, batch_size=None)
    model = seeded(Block)
    original = copy.deepcopy(model)
    message = (
        r"quantize_: batch 0: expected the batch, a (tuple|list) of 2, to be the arguments of "
        r"Block, but model\(\*batch\) raised: .*positional.* pass a function"
    )
    wrong = functools.partial(refused, baraquant.quantize_, error=TypeError)
    assert isinstance(wrong(message, model, config, calibration=loader).__cause__, TypeError)
    named = [{"input": x, "labels": y} for x, y in pairs]
    message = r"a dict of 2, .* model\(\*\*batch\) raised: .*labels"
    wrong(message, model, config, calibration=named)

    def run(model):  # what the message tells to pass
        for x, _ in loader:
            model(x)

    wanted, model = original, model.train()
    baraquant.quantize_(model, config, calibration=run)
    baraquant.quantize_(wanted, config, calibration=batches())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    for (name, got), value in zip(
        model.state_dict().items(), wanted.state_dict().values(), strict=True
    ):
        assert torch.equal(got, value), name


def test_other_errors_of_the_model_are_its_own():
    model = nn.Sequential(nn.Linear(16, 4))
    for data in (["text"], [(torch.ones(2, 16),), (1, 2)]):
        with pytest.raises(TypeError) as raised:
            baraquant.quantize_(model, W8A8Static(), calibration=data)
        assert raised.value.__cause__ is None and "batch 0" not in str(raised.value)


@by_config
def test_a_layer_that_no_data_reaches_is_named(config):
    model = nn.ModuleDict({"used": nn.Linear(8, 8), "unused": nn.Linear(8, 8)})
    model.forward = lambda x: model["used"](x)
    original, data = copy.deepcopy(model), [torch.randn(3, 8)]
    message = r": unused: .* it saw no input; leave it out with filter"
    only = {"calibration": data, "filter_fn": lambda _, name: name == "unused"}
    refused(baraquant.quantize_, message, model, config, **only)
    report = baraquant.quantize_(model, config, calibration=data)
    assert report.changed["unused"].endswith("as the calibration data does not reach it")
    assert "reach" not in report.changed["used"]
    wanted = F.linear(data[0], original["unused"].weight, original["unused"].bias)
    assert (model["unused"](data[0]) - wanted).norm() < 0.2 * wanted.norm()
