# SPDX-License-Identifier: BSD-3-Clause
"""One model with many sizes of layers is compiled once, in DistributedDataParallel too.

Of a forward that Dynamo does not compile, such as one whose loop over the layers breaks the graph,
each layer is compiled as code of its own: of as many sizes as the limit allows, and the others run
as they are, with the same bits.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from baraquant import W4A8, W4A16, W8A8, W8A8Static
from baraquant.configs import Config
from baraquant.qat import convert_, prepare_
from tests.support.ranks import results_of, spawn

SIZES = range(8, 8 + 4 * 13, 4)  # of more layers than code may be recompiled for
SCHEMES: dict[str, Config] = {
    "w8a8": W8A8(), "static": W8A8Static(), "groups": W4A16(group_size=4), "factors": W4A8(4)
}  # fmt: skip


class Chain(nn.Module):
    """Linear layers of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in itertools.pairwise(SIZES))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_of(config: Config, form: str, kind: str) -> nn.Module:
    model: nn.Module = Chain()
    if kind == "sequential":
        model = nn.Sequential(*model.layers)
    prepare_(model, config)
    with torch.no_grad():
        model(torch.randn(4, SIZES[0]))
    if form == "converted":
        convert_(model.eval())
    return model


def graphs_of(model: nn.Module, counter: CompileCounter) -> int:
    """How many graphs a few steps compile; that no code is compiled a second time."""
    counters.clear()
    for _ in range(3):
        x = torch.randn(4, SIZES[0], requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what DDP itself does is not all traced
            model(x).square().sum().backward()
    assert not counters["recompiles"]
    return int(counter.frame_count)


@pytest.mark.exhaustive
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("form", ["prepared", "converted"])
@pytest.mark.parametrize("name", SCHEMES)
def test_layers_of_many_sizes_are_one_graph(
    name: str, form: str, wrapped: bool, one_process: None
) -> None:
    if wrapped and form == "converted":
        form = "prepared"  # a converted layer has no parameter that DDP could train
    torch._dynamo.reset()
    model = model_of(SCHEMES[name], form, "chain")
    counter = CompileCounter()
    parallel = DistributedDataParallel(model) if wrapped else model
    assert graphs_of(torch.compile(parallel, backend=counter), counter) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEMES)
def test_a_container_is_compiled_before_it_is_wrapped(name: str, one_process: None) -> None:
    """Dynamo looks into no container of PyTorch that is not called from a frame that it compiles.

    Wrapped first, each layer would be code of its own: of eight sizes at most, and a layer of
    PyTorch would not be compiled at all.
    """
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model_of(SCHEMES[name], "prepared", "sequential"), backend=counter)
    assert graphs_of(DistributedDataParallel(compiled), counter) == 1


# --- two processes -------------------------------------------------------------------------------


class Broken(Chain):
    """A loop over the layers that breaks the graph: Dynamo leaves such a frame to Python."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            torch._dynamo.graph_break()
        return x


def trained(model: nn.Module, step: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The outputs of a few steps, and the gradients."""
    outputs = []
    model.zero_grad()
    for seed in range(3):
        torch.manual_seed(seed + 10 * dist.get_rank())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = step(torch.randn(4, SIZES[0]))
        y.square().sum().backward()
        outputs.append(y.detach())
    return [*outputs, *(p.grad.clone() for p in model.parameters())]


def compute(rank: int) -> dict[str, Any]:
    """What each process does: compiled beside eager, both in DistributedDataParallel."""
    results: dict[str, Any] = {}
    for name, kind in itertools.product(("w8a8", "factors"), (Chain, Broken)):
        torch._dynamo.reset()
        counters.clear()
        model = kind()
        prepare_(model, SCHEMES[name])
        eager, ours = (DistributedDataParallel(copy.deepcopy(model)) for _ in range(2))
        expected = trained(eager, eager)
        found = trained(ours, torch.compile(ours, backend="aot_eager"))
        results[f"{name} {kind.__name__}"] = {
            "graphs": counters["stats"]["unique_graphs"],
            "same": all(map(torch.equal, found, expected)),
        }
    return results


@pytest.mark.exhaustive
@pytest.mark.process
def test_two_processes(tmp_path: Path) -> None:
    """One graph for all sizes; where the frame is left to Python, up to the limit, and no error."""
    spawn(tmp_path, compute)
    for result in results_of(tmp_path):
        for name in ("w8a8", "factors"):
            chain, broken = result[f"{name} Chain"], result[f"{name} Broken"]
            assert chain == {"graphs": 1, "same": True}
            assert broken["same"] and broken["graphs"] <= torch._dynamo.config.recompile_limit
