# SPDX-License-Identifier: BSD-3-Clause
"""A prepared model computes what the float model did, whatever its parameters have become."""

import copy
from pathlib import Path

import pytest
import torch

import baraquant
from baraquant import W4A16, QuantConfig, TensorConfig
from baraquant.workflow.reconstruction.batch_cache import BatchCache
from baraquant.workflow.reconstruction.float_values import FloatValues
from tests.workflow.reconstruction.models import made, outputs


@pytest.mark.parametrize("rotate", [None, 16])
def test_values_that_preparation_or_learning_has_changed(
    rotate: int | None, tmp_path: Path
) -> None:
    model, batches = made("mlp", dtype=torch.float64)
    wanted = outputs(model, batches)
    cache = BatchCache(1 << 20, tmp_path)
    floats = FloatValues(cache)
    before = {id(one): cache.put(one) for one in model.parameters()}
    baraquant.qat.prepare_(model, QuantConfig(TensorConfig(4), rotate=rotate))
    with torch.no_grad():
        model[0]._parameters["weight"] *= 2  # as an algorithm does
        model[4].bias += 1
    floats.keep_changed(model, before)
    floats.keep([model[2]._parameters["weight"]])
    model[2]._parameters["weight"].data.zero_()
    prepared, state = outputs(model, batches), copy.deepcopy(model.state_dict())
    with floats.within(model):
        for got, one in zip(outputs(model, batches), wanted, strict=True):
            torch.testing.assert_close(got, one)
    assert all(map(torch.equal, outputs(model, batches), prepared))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_weight_without_finite_values_is_refused() -> None:
    model, batches = made("mlp")
    with torch.no_grad():
        model[2].weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="2: expected a finite weight"):
        baraquant.reconstruct_(model, W4A16(16), calibration=batches, progress=False)
    assert type(model[2]) is torch.nn.Linear
