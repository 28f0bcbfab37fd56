# SPDX-License-Identifier: BSD-3-Clause
"""One model with many sizes of layers is compiled once, in DistributedDataParallel too.

Blocks that ``fully_shard`` wraps are one graph for all of the same sizes.
Of a forward that Dynamo does not compile, such as one whose loop over the layers breaks the graph,
each layer is compiled as code of its own: of as many sizes as the limit allows, and the others run
as they are, with the same bits.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from baraquant import W4A8, W4A16, W8A8, W8A8Static
from baraquant.parallel import quantize_all_gather
from baraquant.qat import convert_, prepare_

# What DDP itself does is not all traced.
pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore")]
SIZES = range(8, 8 + 4 * 13, 4)  # of more layers than code may be recompiled for
SCHEMES = {"w8a8": W8A8(), "static": W8A8Static(), "groups": W4A16(4), "factors": W4A8(4)}


class Chain(nn.Module):
    """A loop over the layers; where it breaks the graph, Dynamo leaves such a frame to Python."""

    def __init__(self, is_broken: bool = False, sizes: Sequence[int] = SIZES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in itertools.pairwise(sizes))
        self.is_broken = is_broken

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if self.is_broken:
                torch._dynamo.graph_break()
        return x


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# A converted layer has no parameter that DDP could train.
@pytest.mark.parametrize("form", ["prepared", "wrapped", "wrapped container", "converted"])
@pytest.mark.parametrize("name", SCHEMES)
def test_many_sizes_are_one_graph(name: str, form: str) -> None:
    """Dynamo looks into no container of PyTorch that is not called from a frame that it compiles.

    So a container is compiled before it is wrapped. Wrapped first, each layer would be code of its
    own: of eight sizes at most, and a layer of PyTorch would not be compiled at all.
    """
    model: nn.Module = Chain()
    if form == "wrapped container":
        model = nn.Sequential(*model.layers)
    prepare_(model, SCHEMES[name])
    with torch.no_grad():
        model(torch.randn(4, SIZES[0]))
    if form == "converted":
        convert_(model.eval())
    counter = CompileCounter()
    run = DistributedDataParallel(model) if form == "wrapped" else model
    run = torch.compile(run, backend=counter)
    run = DistributedDataParallel(run) if form == "wrapped container" else run
    counters.clear()
    for _ in range(3):
        run(torch.randn(4, SIZES[0], requires_grad=True)).square().sum().backward()
    assert counter.frame_count == 1 and not counters["recompiles"]


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("name", ["w8a8", "factors"])
def test_compiled_beside_eager(name: str, is_broken: bool) -> None:
    """One graph for all sizes; where the frame is left to Python, up to the limit, and no error."""
    model = Chain(is_broken)
    prepare_(model, SCHEMES[name])
    eager, ours = (DistributedDataParallel(copy.deepcopy(model)) for _ in range(2))
    compiled, results = torch.compile(ours, backend="aot_eager"), []
    counters.clear()
    for run, parallel in ((eager, eager), (compiled, ours)):
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            y = run(torch.randn(4, SIZES[0]))
            y.square().sum().backward()
            found.append(y.detach())
        results.append([*found, *(p.grad.clone() for p in parallel.parameters())])
    assert all(map(torch.equal, *results))
    graphs = counters["stats"]["unique_graphs"]
    assert graphs <= torch._dynamo.config.recompile_limit if is_broken else graphs == 1


def trained_in_blocks(name: str, gathers: bool, is_compiled: bool) -> list[Tensor]:
    """What two steps compute, and the parameters after them."""
    model = nn.Sequential(*(Chain(sizes=(8, 16, 24, 8)) for _ in range(3)))
    prepare_(model, SCHEMES[name])
    if gathers:
        quantize_all_gather(model)
    for block in model:
        if is_compiled:
            block.compile(backend="aot_eager")
        fully_shard(block, mesh=dist.init_device_mesh("cpu", (1,)))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for seed in range(2):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        y = model(x)
        y.square().sum().backward()
        optimizer.step()
        found.append(y.detach())
    return [*found, *(parameter.full_tensor().detach() for parameter in model.parameters())]


@pytest.mark.parametrize("name", ["w8a8", "factors"])
def test_sharded_blocks_are_one_graph(name: str) -> None:
    eager = trained_in_blocks(name, False, False)
    for gathers, is_compiled in ((True, False), (False, True), (True, True)):
        torch._dynamo.reset()
        counters.clear()
        found = trained_in_blocks(name, gathers, is_compiled)
        assert all(map(torch.equal, found, eager))
        assert counters["stats"]["unique_graphs"] == (1 if is_compiled else 0)
