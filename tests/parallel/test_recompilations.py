# SPDX-License-Identifier: BSD-3-Clause
"""One model with many sizes of layers is compiled once, in DistributedDataParallel too.

Of a forward that Dynamo does not compile, such as one whose loop over the layers breaks the graph,
each layer is compiled as code of its own: of as many sizes as the limit allows, and the others run
as they are, with the same bits.
"""

import copy
import itertools
import warnings
from collections.abc import Iterator

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

SIZES = range(8, 8 + 4 * 13, 4)  # of more layers than code may be recompiled for
SCHEMES: dict[str, Config] = {
    "w8a8": W8A8(), "static": W8A8Static(), "groups": W4A16(group_size=4), "factors": W4A8(4)
}  # fmt: skip


class Chain(nn.Module):
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
@pytest.mark.parametrize(
    ("form", "wrapped"),
    # A converted layer has no parameter that DDP could train.
    [("prepared", False), ("prepared", True), ("converted", False)],
)
@pytest.mark.parametrize("name", SCHEMES)
def test_many_sizes_are_one_graph(name: str, form: str, wrapped: bool, one_process: None) -> None:
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


class Broken(Chain):
    """A loop over the layers that breaks the graph: Dynamo leaves such a frame to Python."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            torch._dynamo.graph_break()
        return x


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [Chain, Broken])
@pytest.mark.parametrize("name", ["w8a8", "factors"])
def test_compiled_beside_eager(name: str, kind: type[Chain], one_process: None) -> None:
    """One graph for all sizes; where the frame is left to Python, up to the limit, and no error."""
    torch._dynamo.reset()
    model = kind()
    prepare_(model, SCHEMES[name])
    eager, ours = (DistributedDataParallel(copy.deepcopy(model)) for _ in range(2))
    compiled, results = torch.compile(ours, backend="aot_eager"), []
    counters.clear()
    for run, parallel in ((eager, eager), (compiled, ours)):
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y = run(torch.randn(4, SIZES[0]))
            y.square().sum().backward()
            found.append(y.detach())
        results.append([*found, *(p.grad.clone() for p in parallel.parameters())])
    assert all(map(torch.equal, *results))
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1 if kind is Chain else graphs <= torch._dynamo.config.recompile_limit
