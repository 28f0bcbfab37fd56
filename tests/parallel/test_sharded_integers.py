# SPDX-License-Identifier: BSD-3-Clause
"""``fully_shard`` shards the integers of converted layers, and the model keeps its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.torch_version import TorchVersion

from baraquant.parallel import ColwiseParallel, RowwiseParallel
from baraquant.qat import convert_
from tests.nn.test_nothing_stale import KINDS, WAYS, example, made, tensors
from tests.parallel import models
from tests.parallel.models import SCHEMES
from tests.support.ranks import DEVICES, RANKS, results_of, skip_without_devices, spawn


def run(rank: int) -> dict[str, Any]:
    """The outputs of models, whole and then sharded, and this process's share of the integers.

    A process computes both: the static range of an expert follows a floating product, whose last
    bits depend on the number of threads.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = init_device_mesh(device, (RANKS,))
    results: dict[str, Any] = {}
    for kind in KINDS:
        model, x = made(kind, 1, device), example(kind).to(device)
        whole = sum(p.numel() for p in model.parameters())
        with torch.no_grad():
            results[f"{kind} whole"] = model(x)
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with torch.no_grad():
            results[kind] = model(x)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        own = sum(p.to_local().numel() for p in model.parameters())
        results[f"{kind} share"] = torch.tensor([own, whole])
    model = made("dynamic", 1, device).bfloat16()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    x = example("dynamic").to(device, torch.bfloat16).requires_grad_()
    model(x).float().sum().backward()
    results["gradient"] = x.grad
    return results


@pytest.mark.process
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 12),
    reason="fully_shard of torch 2.11 takes no integer parameters: it lets them require gradients",
)
def test_fully_shard(device: str, tmp_path: Path) -> None:
    skip_without_devices(device)
    spawn(tmp_path, run, device=device)
    found = results_of(tmp_path)
    for kind in KINDS:
        for result in found:
            assert torch.equal(result[kind], result[f"{kind} whole"]), kind
            own, whole = result[f"{kind} share"].tolist()
            assert own < whole, kind
    model = made("dynamic", 1, device).bfloat16()
    x = example("dynamic").to(device, torch.bfloat16).requires_grad_()
    model(x).float().sum().backward()
    assert all(torch.equal(result["gradient"], x.grad.cpu()) for result in found)


# --- new tensors of layers that are split ---------------------------------------------------------


# NB: a DTensor, of a floating layer too, ignores what its `data` is set to, and cannot be detached
# in inference mode.
PLACED = sorted(WAYS.keys() - {"set_data", "copy_in_inference_mode"})
SPLIT = ("w8a8_asymmetric", "input_per_tensor", "static", "weight_with_zero_points", "groups")


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


def put(rank: int) -> dict[str, Tensor]:
    """Whether a model has the bits of another whose tensors were put into it."""
    found = {}
    for number, kind in enumerate(SPLIT):
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
    spawn(tmp_path, put, device=device)
    for result in results_of(tmp_path):
        assert [name for name, is_right in result.items() if not is_right] == []
