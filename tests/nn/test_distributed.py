# SPDX-License-Identifier: BSD-3-Clause
"""Observed ranges over processes: two of them train one model on other data."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from baraquant import ops
from baraquant.nn import FakeQuantize
from tests.support import cases
from tests.support.ranks import results_fixture

STEPS = 4
OBSERVED = ("1", "3")  # the names of the observed modules of `network`
INF, NAN = math.inf, math.nan
# The ranges of five channels as each rank has seen them, and their union.
RANGES = [
    ([-1.0, -3.0, -2.0, INF, -5.0], [2.0, 1.0, 3.0, -INF, INF]),
    ([-4.0, NAN, INF, INF, -INF], [1.0, NAN, -INF, -INF, 7.0]),
]
UNION = ([-4.0, -3.0, -2.0, INF, INF], [2.0, 1.0, 3.0, -INF, -INF])
SEEN = [0, 1, 2]  # the channels with a finite range
SKIPPED = [2, 5]  # batches that each rank has left out


def device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5),
        FakeQuantize(mode="observed", symmetric=False, averaging_constant=0.5),
        nn.Linear(5, 3),
        FakeQuantize(granularity="per_channel", axis=1, channels=3, mode="observed"),
    )


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, 6, generator=cases.generator(10 * rank + step)) * (rank + 1) + rank


def train(rank: int, broadcast_buffers: bool) -> dict[str, Any]:
    """A few steps of the parallel model; its states before and after the ranges are joined."""
    model = DistributedDataParallel(network().to(device()), broadcast_buffers=broadcast_buffers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(rank, step).to(device())).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    before = copy.deepcopy(model.module.state_dict())
    for name in OBSERVED:
        model.module.get_submodule(name).sync_qparams()
    return {"losses": losses, "before": before, "after": model.module.state_dict()}


def with_range(rank: int) -> FakeQuantize:
    module = FakeQuantize(granularity="per_channel", axis=0, channels=5, mode="observed")
    module.min_val.copy_(torch.tensor(RANGES[rank][0]))
    module.max_val.copy_(torch.tensor(RANGES[rank][1]))
    module.skipped_batches.fill_(SKIPPED[rank])
    return module


def join(rank: int) -> dict[str, Any]:
    """Given ranges, joined: by a module, one of float64, a scripted one, and in a group of one."""
    alone = dist.new_group([0])
    modules = {"module": with_range(rank), "double": with_range(rank).double()}
    modules["scripted"] = torch.jit.script(with_range(rank))
    for module in modules.values():
        module.to(device()).sync_qparams()
    modules["again"] = copy.deepcopy(modules["module"])
    modules["again"].skipped_batches += 1 + rank
    for _ in range(2):
        modules["again"].sync_qparams()
    modules["alone"] = with_range(rank).to(device())
    if rank == 0:
        modules["alone"].sync_qparams(alone)
    return {name: module.state_dict() for name, module in modules.items()}


def compute(rank: int) -> dict[str, Any]:
    return {"train": train(rank, False), "broadcast": train(rank, True), "join": join(rank)}


results = results_fixture("distributed", compute)


def qparams(low: Tensor, high: Tensor, quantizer: FakeQuantize) -> tuple[Tensor, Tensor]:
    where = cases.PER_TENSOR if quantizer.granularity == "per_tensor" else cases.per_channel(1)
    choose = where.op("choose_qparams", ops)
    return choose(torch.stack([low, high]), *where.args, symmetric=quantizer.symmetric)


@pytest.mark.process
@pytest.mark.parametrize("scenario", ["train", "broadcast"])
def test_ranges_of_a_parallel_model_agree(scenario: str, results: list[dict[str, Any]]) -> None:
    before = [result[scenario]["before"] for result in results]
    after = [result[scenario]["after"] for result in results]
    assert after[0].keys() == after[1].keys()
    assert [name for name in after[0] if not torch.equal(after[0][name], after[1][name])] == []
    assert all(math.isfinite(loss) for result in results for loss in result[scenario]["losses"])
    assert not torch.equal(after[0]["0.weight"], network()[0].weight), "it was trained"
    for name in OBSERVED:
        low, high = ([state[f"{name}.{end}"] for state in before] for end in ("min_val", "max_val"))
        assert not torch.equal(*low) and not torch.equal(*high), "each has its own before"
        assert not torch.equal(*(state[f"{name}.scale"] for state in before))
        union = torch.minimum(*low), torch.maximum(*high)
        wanted = *union, *qparams(*union, network().get_submodule(name))
        for end, tensor in zip(("min_val", "max_val", "scale", "zero_point"), wanted, strict=True):
            assert torch.equal(after[0][f"{name}.{end}"], tensor)


@pytest.mark.process
@pytest.mark.parametrize("name", ["module", "double", "scripted"])
def test_union_of_given_ranges(name: str, results: list[dict[str, Any]]) -> None:
    """What is not finite adds nothing; and where one rank or none has seen a channel."""
    for result in results:
        state = result["join"][name]
        dtype = torch.float64 if name == "double" else torch.float32
        low, high = (torch.tensor(end, dtype=dtype) for end in UNION)
        torch.testing.assert_close(state["min_val"], low, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(state["max_val"], high, rtol=0, atol=0, equal_nan=True)
        scale, zero_point = ops.choose_qparams_per_channel(torch.stack([low, high])[:, SEEN], 1)
        assert torch.equal(state["scale"][SEEN], scale)
        assert torch.equal(state["zero_point"][SEEN], zero_point)
        assert (state["scale"][3:] == 1).all(), "nothing seen"
        assert state["skipped_batches"] == sum(SKIPPED)
        # Joined again, those of the last time do not count a second time.
        assert result["join"]["again"]["skipped_batches"] == sum(SKIPPED) + 1 + 2


@pytest.mark.process
@pytest.mark.smoke
def test_union_over_a_group(results: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(results):
        low, high = (torch.tensor(end) for end in RANGES[rank])
        state = result["join"]["alone"]
        assert state["skipped_batches"] == SKIPPED[rank]
        if rank == 0:
            low[4], high[4] = INF, -INF  # -5 to infinity is no range
        torch.testing.assert_close(state["min_val"], low, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(state["max_val"], high, rtol=0, atol=0, equal_nan=True)
