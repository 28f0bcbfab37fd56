# SPDX-License-Identifier: BSD-3-Clause
"""What two processes train is what is served: DDP under autocast, and ``fully_shard``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from baraquant import W4A8, W4A16, W8A8, QuantConfig, TensorConfig, W8A8Static
from baraquant import nn as bnn
from baraquant.parallel import quantize_all_gather
from baraquant.qat import convert_, prepare_
from tests.parallel.test_layouts import mesh, place
from tests.support.ranks import results_fixture

# Those whose forward pass in training is the integer product that is served.
EXACT = {
    "w8a8": W8A8(), "w8a8_asymmetric": W8A8(symmetric=False), "w4a8": W4A8(8), "w4a8_learned":
    W4A8(8, learned=True), "rotated": W8A8(rotate=16),
}  # fmt: skip
OTHERS = {"static": W8A8Static("min_max"), "w4a16": W4A16(8)}
SCHEMES = EXACT | OTHERS
LEARNED = QuantConfig(TensorConfig(4, learned=True), TensorConfig(8, "per_tensor", learned=True))
STEPS = 3


class Table(nn.Module):
    """A vector that starts each row, looked up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((x[..., 0] * 0).long() + 3).to(x.dtype)


def network(config: QuantConfig) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(Table(), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 6))
    prepare_(model, config)
    with torch.no_grad():
        model(batch(0, torch.float32).cpu())
    return model.to(place())


def batch(seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 5, 16, generator=generator).to(place(), dtype)


def train(model: nn.Module, autocast: bool = False) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(place(), torch.bfloat16, enabled=autocast):
            loss = model(batch(10 * step + dist.get_rank())).float().square().mean()
        loss.backward()
        optimizer.step()


def outputs(model: nn.Module) -> dict[str, Tensor]:
    """The output of a model in training mode and in evaluation, for the same input."""
    with torch.no_grad():
        model.apply(bnn.disable_observer)
        trained = model.train()(batch(99))
        evaluated = model.eval()(batch(99))
    return {"trained": trained, "evaluated": evaluated}


def served(state: dict[str, Any], config: QuantConfig) -> nn.Module:
    """A model of one process, with the masters of all: converted."""
    whole = network(config)
    whole.load_state_dict(state)
    convert_(whole.eval())
    return whole


def by_ddp(config: QuantConfig) -> dict[str, Tensor]:
    """Trained under autocast; evaluated and served for the input that autocast makes."""
    model = DistributedDataParallel(network(config), broadcast_buffers=False)
    train(model, autocast=True)
    with torch.autocast(place(), torch.bfloat16):
        found = outputs(model)
    state = {name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()}
    whole = served(state, config)
    with torch.no_grad():
        found["served"] = whole(batch(99))
        with torch.autocast(place(), torch.bfloat16):
            found["served under autocast"] = whole(batch(99))
    return found


def by_fsdp(config: QuantConfig, gathers: bool = False) -> dict[str, Tensor]:
    """Trained with rounded copies of the parameters, which ``master`` makes everywhere."""
    config = replace(config, master="bfloat16")
    model = network(config)
    if gathers:
        quantize_all_gather(model)
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh(), mp_policy=policy)
    fully_shard(model, mesh=mesh(), mp_policy=policy)
    train(model)
    found = outputs(model)
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    whole = served(state, config)
    with torch.no_grad():
        found["served"] = whole(batch(99))
        model[1].unshard()
        found["unsharded"] = model[1](batch(98))
        model[1].reshard()
        found["unsharded, served"] = whole[1](batch(98))
    return found


def refusals() -> dict[str, str]:
    """What a layer says whose wrapper rounds its parameters."""
    found = {}
    policy = MixedPrecisionPolicy(torch.bfloat16)
    for name, config in (SCHEMES | {"learned": LEARNED}).items():
        model = fully_shard(network(config), mesh=mesh(), mp_policy=policy)
        for mode in ("train", "eval"):
            try:
                getattr(model, mode)()(batch(0))
                found[f"{name} {mode}"] = "no error"
            except RuntimeError as error:
                found[f"{name} {mode}"] = str(error)
    whole = fully_shard(network(W8A8()).bfloat16(), mesh=mesh(), mp_policy=policy)
    whole(batch(0))  # its parameters are bfloat16: nothing is rounded
    return found


def compute(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {"refusals": refusals()}
    for name, config in SCHEMES.items():
        found[f"ddp {name}"] = by_ddp(config)
        found[f"fsdp {name}"] = by_fsdp(config)
    found["ddp learned"] = by_ddp(LEARNED)
    found["fsdp learned"] = by_fsdp(LEARNED)
    found["fsdp gathered"] = by_fsdp(W8A8(), gathers=True)
    return found


results = results_fixture("master", compute)


@pytest.mark.process
@pytest.mark.parametrize("name", (*SCHEMES, "learned", "gathered"))
@pytest.mark.parametrize("wrapper", ("ddp", "fsdp"))
def test_what_is_trained_is_evaluated_and_served(
    wrapper: str, name: str, results: list[dict[str, Any]]
) -> None:
    for result in results:
        found = result.get(f"{wrapper} {name}", result[f"{wrapper} w8a8"])
        assert found["served"].dtype == torch.bfloat16
        for other in {"evaluated", "served under autocast"} & found.keys():
            assert torch.equal(found[other], found["served"]), other
        if name in EXACT:
            assert torch.equal(found["trained"], found["served"])
        if wrapper == "fsdp":
            assert torch.equal(found["unsharded"], found["unsharded, served"])


@pytest.mark.process
def test_a_wrapper_that_rounds_is_no_secret(results: list[dict[str, Any]]) -> None:
    for result in results:
        for name, message in result["refusals"].items():
            expected = "in float32, as the optimizer holds them, but got bfloat16: a wrapper"
            assert expected in message, name
