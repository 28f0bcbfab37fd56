# SPDX-License-Identifier: BSD-3-Clause
"""``sensitivity``: what it refuses, in which words, and that the model is then as it was."""

import math

import pytest
import torch
from torch import nn

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, SmoothQuant, W8A8Static
from tests.support.models.outlier_models import Block, batches, seeded, unchanged

TWO = {"W4": W4A16(16), "W8": W8A8()}


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({"configs": W8A8()}, TypeError, "expected configs to be a list .* but got QuantConfig"),
        ({"configs": "W8A8"}, TypeError, "expected configs to be a list .* but got str"),
        ({"configs": []}, ValueError, "expected configs to have a configuration, but it is empty"),
        ({"configs": [W8A8]}, TypeError, r"the function W8A8; write W8A8\(\)"),
        ({"configs": [W8A8(), None]}, TypeError, "to hold QuantConfig, but got NoneType"),
        ({"configs": [W8A8(), W8A8()]}, ValueError, "expected different configurations"),
        ({"configs": [SmoothQuant()]}, ValueError, "a calibration of its own .* for the whole"),
        ({"configs": [AWQ(W4A16())]}, ValueError, "changes the layers before: measure weight="),
        ({"configs": [GPTQ(W4A16())]}, ValueError, "follows the layers before"),
        ({"configs": {"float": W8A8()}}, ValueError, "'float', which stands for a layer as it is"),
        ({"configs": {"": W8A8()}}, ValueError, "expected the name of a configuration, but got ''"),
        ({"configs": {3: W8A8()}}, TypeError, "the keys of configs to be names, but got 3"),
        ({"model": 3}, TypeError, "expected model to be a Module, but got int"),
        ({"model": nn.Linear(16, 2)}, ValueError, r"itself; wrap it in nn\.Sequential"),
        ({"model": nn.Sequential(nn.ReLU())}, ValueError, "expected a model with a Linear"),
        ({"calibration": torch.ones(2)}, TypeError, "an iterable of batches, but got one Tensor"),
        ({"calibration": 3}, TypeError, "expected calibration to be .* but got int"),
        ({"calibration": []}, ValueError, "expected calibration data, but got no batch"),
        ({"filter_fn": "query"}, TypeError, "expected filter_fn to be a function"),
        ({"filter_fn": lambda module, name: False}, ValueError, "has none .*filter_fn"),
        ({"together": "query"}, TypeError, "together to be a list of lists .* but got str"),
        ({"together": ["query"]}, TypeError, "together .* but an entry is a str"),
        ({"together": [[]]}, ValueError, "together .* but an entry is empty"),
        ({"together": [[nn.Linear]]}, TypeError, "together .* but a pattern is a type"),
        ({"together": [["q_proj"]]}, ValueError, "'q_proj' of together to match .* query, key"),
        (
            {"configs": [W8A8Static()], "calibration": iter(batches())},
            ValueError,
            r"gone through 2 times for static inputs \(W8A8 static\)",
        ),
    ],
)
def test_what_it_refuses(arguments, kind, message):
    given = {"model": seeded(Block), "configs": TWO, "calibration": batches(), **arguments}
    with pytest.raises(kind, match=f"^baraquant.sensitivity: .*{message}"):
        baraquant.sensitivity(**given, progress=False)
    if arguments.keys() != {"model"}:
        assert unchanged(given["model"], seeded(Block))


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({}, ValueError, "expected either budget_bytes or bits, but got neither"),
        ({"budget_bytes": 10**6, "bits": 4}, ValueError, "but got both"),
        ({"budget_bytes": 1e6}, TypeError, "expected budget_bytes to be an int, but got float"),
        ({"budget_bytes": True}, TypeError, "expected budget_bytes to be an int, but got bool"),
        ({"budget_bytes": -1}, ValueError, "expected budget_bytes to be at least"),
        ({"bits": "4"}, TypeError, "expected bits to be a number, but got str"),
        ({"bits": math.nan}, ValueError, "expected bits to be finite, but got nan"),
        ({"bits": 9, "floating": 1}, TypeError, "expected floating to be a bool, but got int"),
    ],
)
def test_what_a_choice_refuses(arguments, kind, message):
    with pytest.raises(kind, match=f"^baraquant.Sensitivity.choose: .*{message}"):
        baraquant.sensitivity(seeded(Block), TWO, batches(), progress=False).choose(**arguments)


def test_the_weight_has_to_be_finite():
    model = seeded(Block)
    with torch.no_grad():
        model.up.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="sensitivity: up: expected a finite weight"):
        baraquant.sensitivity(model, TWO, batches(), progress=False)
