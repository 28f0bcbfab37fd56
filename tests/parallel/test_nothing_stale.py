# SPDX-License-Identifier: BSD-3-Clause
"""Split layers keep nothing that they derive from their tensors, as whole ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from baraquant.parallel import ColwiseParallel, RowwiseParallel
from baraquant.qat import convert_
from tests.nn.test_nothing_stale import WAYS, tensors
from tests.parallel import models
from tests.parallel.models import SCHEMES
from tests.support.ranks import DEVICES, results_of, skip_without_devices, spawn

# NB: a DTensor, of a floating layer too, ignores what its `data` is set to, and cannot be detached
# in inference mode.
PLACED = sorted(WAYS.keys() - {"set_data", "copy_in_inference_mode"})
KINDS = ("w8a8_asymmetric", "input_per_tensor", "static", "weight_with_zero_points", "groups")


def split(kind: str, factor: float) -> Any:
    """A converted model, split: the outputs of one layer, the inputs of the other."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    model = models.prepared(SCHEMES[kind].config, device=device).eval()
    del model.table, model.out
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor).add_(factor - 1)
    convert_(model)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model.forward = model.mlp
    return model


def run(rank: int) -> dict[str, Tensor]:
    """Whether a model has the bits of another whose tensors were put into it."""
    found = {}
    for number, kind in enumerate(KINDS):
        new = split(kind, 1.7)
        x = models.features(models.SIZE, torch.float32).to(new.up.qweight.device)
        with torch.no_grad():
            wanted = new(x)
            for way in PLACED[number % 2 :: 2]:
                model = split(kind, 1)
                assert not torch.equal(model(x), wanted)
                WAYS[way](model, new.state_dict())
                found[f"{kind} {way}"] = torch.equal(model(x), wanted)
            model = split(kind, 1)
            state = {name: tensor.detach() for name, tensor in tensors(new).items()}
            y = torch.func.functional_call(model, state, (x,))
            found[f"{kind} functional_call"] = torch.equal(y, wanted)
    return {key: torch.tensor(value) for key, value in found.items()}


@pytest.mark.process
@pytest.mark.parametrize("device", DEVICES)
def test_new_tensors_count_at_once(device: str, tmp_path: Path) -> None:
    skip_without_devices(device)
    spawn(tmp_path, run, device=device)
    for result in results_of(tmp_path):
        assert [name for name, is_right in result.items() if not is_right] == []
