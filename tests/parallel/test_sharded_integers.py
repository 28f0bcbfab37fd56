# SPDX-License-Identifier: BSD-3-Clause
"""``fully_shard`` shards the integers of converted layers, and the model keeps its bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.torch_version import TorchVersion

from tests.nn.test_nothing_stale import KINDS, example, made
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
    spawn(tmp_path, partial(run), device=device)
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
