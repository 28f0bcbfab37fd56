# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallelism within FSDP: four processes, two for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from baraquant import nn as bnn
from baraquant.parallel import ColwiseParallel, RowwiseParallel
from tests.parallel import models
from tests.parallel.models import SCHEMES
from tests.parallel.test_layouts import near, place
from tests.support.ranks import results_fixture

RANKS, STEPS = 4, 3
NAMES = ("w8a8_asymmetric", "static", "observed_weight", "groups")


def train(name: str, parallel: bool, evaluated_first: bool) -> dict[str, Tensor]:
    model: Any = models.prepared(SCHEMES[name].config, device=place())
    if parallel:
        mesh = init_device_mesh(place(), (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model.up, mesh=mesh["dp"])
        fully_shard(model.down, mesh=mesh["dp"])
        for module in model.modules():
            if isinstance(module, bnn.FakeQuantize) and module.is_observed:
                module.sync_qparams(mesh["dp"].get_group())
    x = models.features(models.SIZE, torch.float32).to(place())
    found: dict[str, Tensor] = {}
    optimizer = torch.optim.SGD([*model.up.parameters(), *model.down.parameters()], lr=1e-6)
    before = models.state(model)["up.weight"]
    if evaluated_first:
        with torch.no_grad():
            found["evaluated"] = model.eval().mlp(x)
        model.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        y = model.mlp(x)
        y.square().sum().backward()
        if step == 0:
            found |= {"y": y.detach(), **models.gradients(model)}
        optimizer.step()
    assert not torch.equal(models.state(model)["up.weight"], before), "it trains"
    return found | {f"state {key}": value for key, value in models.state(model).items()}


def compute(rank: int) -> dict[str, Any]:
    return {
        f"{name} {first}": [train(name, parallel, first) for parallel in (False, True)]
        for name in NAMES
        for first in (False, True)
    }


results = results_fixture("two_dimensions", compute, RANKS)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_both_together(name: str, first: bool, results: list[dict[str, Any]]) -> None:
    """Every process sees the same batch, so that the mean over them is what one computes."""
    for result in results:
        alone, ours = result[f"{name} {first}"]
        assert ours.keys() == alone.keys()
        if SCHEMES[name].trains_exactly:
            assert torch.equal(ours["y"], alone["y"])
        if SCHEMES[name].serves_exactly and first:
            assert torch.equal(ours["evaluated"], alone["evaluated"])
        for key, expected in alone.items():
            if expected.is_floating_point():
                near(ours[key], expected, 1e-4 if key.startswith("state") else 1e-5)
