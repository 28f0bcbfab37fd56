# SPDX-License-Identifier: BSD-3-Clause
"""Quantization-aware training by two processes beside one that has the whole batch."""

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from baraquant import W8A8Static
from baraquant import nn as bnn
from baraquant.configs import Config
from baraquant.qat import convert_, prepare_
from tests.support.models import training_models
from tests.support.ranks import RANKS, results_fixture

STEPS = 4
OBSERVED = W8A8Static("min_max")
CONFIGS: dict[str, Config] = {
    "w8a8": training_models.SCHEMES["w8a8"],
    "w8a8_asymmetric": training_models.SCHEMES["w8a8_asymmetric"],
    "w4a8": training_models.FOUR_BITS,
    "groups": training_models.GROUPS,
    "learned": training_models.LEARNED,
    "learned_factors": training_models.SCHEMES["learned_factors"],
    "observed": OBSERVED,
}
# Each configuration in both wrappers; compiled, which takes most of the time, learned and observed
# scales in both, and the others in one.
CASES = [(wrapper, name) for wrapper in ("ddp", "fsdp") for name in CONFIGS]
CASES += [("ddp compiled", name) for name in ("w8a8", "w4a8", "learned", "observed")]
CASES += [
    ("fsdp compiled", name)
    for name in ("w8a8_asymmetric", "groups", "learned", "learned_factors", "observed")
]


def device() -> str:
    return "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"


def batch(step: int) -> Tensor:
    return training_models.data(2 * RANKS, 3, 16, seed=step).to(device())


def part(x: Tensor, rank: int | None) -> Tensor:
    return x if rank is None else x.chunk(RANKS)[rank]


def model_for(config: Config, rank: int | None) -> nn.Module:
    """A prepared block whose scales are known: each process has seen its part of a batch."""
    model = training_models.block().to(device())
    prepare_(model, config)
    if config == training_models.LEARNED:
        with torch.no_grad():
            model(batch(0))  # the same one everywhere
    if config == OBSERVED:
        model.apply(bnn.disable_fake_quant)
        with torch.no_grad():
            model(part(batch(0), rank))
        if rank is not None:
            model.apply(bnn.sync_qparams)
        model.apply(bnn.disable_observer)
        model.apply(bnn.enable_fake_quant)
    return model


def wrap(model: nn.Module, wrapper: str) -> nn.Module:
    is_compiled = wrapper.endswith("compiled")
    torch._dynamo.reset()
    if wrapper.startswith("ddp"):
        parallel = DistributedDataParallel(model)
        return torch.compile(parallel, backend="aot_eager") if is_compiled else parallel
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device(), (RANKS,))
    if is_compiled:
        model.compile(backend="aot_eager")
    for layer in (model.up, model.attention):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(config: Config, rank: int | None, wrapper: str = "") -> dict[str, Any]:
    model = model_for(config, rank)
    parallel = model if rank is None else wrap(model, wrapper)
    # A step of this size changes what rounding to integers gives, and no more.
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = parallel(part(batch(step), rank)).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if rank is not None:
            dist.all_reduce(total)
            total = total / RANKS
        losses.append(total.item())
    state = {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu()
        for name, tensor in model.state_dict().items()
    }
    return {"losses": losses, "state": copy.deepcopy(state)}


def mean_of_learned(rank: int) -> dict[str, Tensor]:
    module = bnn.LearnedFakeQuantize(symmetric=False)
    module.initialize(training_models.data(8, seed=rank))
    module.scale.data.mul_(-1 if rank else 1)
    module.to(device()).apply(bnn.sync_qparams)
    return {name: tensor.cpu() for name, tensor in module.state_dict().items()}


def compute(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {
        f"{wrapper} {name}": train(CONFIGS[name], rank, wrapper) for wrapper, name in CASES
    }
    results |= {f"alone {name}": train(config, None) for name, config in CONFIGS.items()}
    results["mean"] = mean_of_learned(rank)
    return results


results = results_fixture("qat_distributed", compute)


@pytest.mark.process
@pytest.mark.parametrize(("wrapper", "name"), CASES)
def test_two_processes_train_as_one(wrapper: str, name: str, results: list[dict[str, Any]]) -> None:
    alone = results[0][f"alone {name}"]
    ours, theirs = (result[f"{wrapper} {name}"] for result in results)
    assert ours["losses"] == theirs["losses"]
    assert len(set(alone["losses"])) == STEPS, "it learns"
    assert ours["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert ours["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-6)
    assert ours["state"].keys() == alone["state"].keys()
    for key, tensor in ours["state"].items():
        assert torch.equal(tensor, theirs["state"][key]), f"{key}: the processes agree"
        torch.testing.assert_close(tensor, alone["state"][key], rtol=1e-2, atol=2e-3)
    model = training_models.block()
    prepare_(model, CONFIGS[name])
    model.load_state_dict(ours["state"])
    y = model.eval()(batch(0))
    convert_(model)
    assert torch.equal(model(batch(0)), y), "what they trained is converted"


@pytest.mark.process
def test_mean_of_learned_scales(results: list[dict[str, Any]]) -> None:
    states = []
    for rank in range(RANKS):
        module = bnn.LearnedFakeQuantize(symmetric=False)
        module.initialize(training_models.data(8, seed=rank))
        states.append(module.state_dict())
    for key, result in itertools.product(("scale", "zero_point"), results):
        mean = (states[0][key] + states[1][key]) / 2
        torch.testing.assert_close(result["mean"][key], mean)
