# SPDX-License-Identifier: BSD-3-Clause
"""Layouts of inputs and outputs, other kinds of layers, other tools: on two processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

from baraquant import W8A8, QuantConfig, SmoothQuant, W8A8Static, quantize_
from baraquant import nn as bnn
from baraquant.parallel import ColwiseParallel, RowwiseParallel
from baraquant.qat import convert_, prepare_
from tests.parallel import models
from tests.parallel.models import SCHEMES
from tests.support.ranks import RANKS, results_fixture

FORMS = ("prepared", "converted")
Found = dict[str, Tensor]


def mesh() -> Any:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return init_device_mesh(device, (dist.get_world_size(),))


def place() -> str:
    return str(mesh().device_type)


def mlp(name: str, form: str) -> Any:
    model = models.prepared(SCHEMES[name].config, device=place())
    model.eval()
    if form == "converted":
        convert_(model)
    return model


def pair(alone: Any, **plan: Any) -> dict[str, Any]:
    """The model that is split, and the one of this process."""
    both = {"y": models.twin(alone), "expected": alone}
    parallelize_module(
        both["y"], mesh(), plan or {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    return both


def features() -> Tensor:
    return models.features(models.SIZE, torch.float32).to(place())


def trained(both: dict[str, Callable[[Tensor], Tensor]]) -> Found:
    """The outputs of both, and the gradients of their inputs."""
    found = {}
    for key, run in both.items():
        x = features().requires_grad_()
        y = run(x)
        y.square().sum().backward()
        found |= {key: y.detach(), f"{key} dx": x.grad}
    return found


def sequence_parallel(name: str, form: str, layout: Any) -> Found:
    """The whole block: inputs and outputs in parts, as norms between blocks take them."""
    both = pair(
        mlp(name, form),
        up=ColwiseParallel(input_layouts=layout),
        down=RowwiseParallel(output_layouts=layout),
    )
    rank, found = dist.get_rank(), {}
    for key, model in both.items():
        part = features()
        part = part.chunk(RANKS, layout.dim)[rank].clone() if key == "y" else part
        y = model.mlp(part.requires_grad_())
        y.square().sum().backward()
        found |= {key: y.detach(), f"{key} dx": part.grad}
    for key in ("expected", "expected dx"):
        found[key] = found[key].chunk(RANKS, layout.dim)[rank]
    return found


def dtensors(form: str) -> Found:
    """DTensors from layer to layer, and an output of an odd size, gathered."""
    both = pair(
        mlp("w8a8", form),
        up=ColwiseParallel(use_local_output=False),
        down=RowwiseParallel(use_local_output=False),
        out=ColwiseParallel(output_layouts=Replicate(), use_local_output=False),
    )
    with torch.no_grad():
        found = {key: model.out(model.mlp(features())) for key, model in both.items()}
    assert isinstance(found["y"], DTensor) and found["y"].placements == (Replicate(),)
    return {key: models.whole(y) for key, y in found.items()}


def rounded_sums(form: str) -> Found:
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel(reduce="bfloat16")}
    both = pair(mlp("w8a8_asymmetric", form), **styles)
    with torch.no_grad():
        found = {key: model.mlp(features()) for key, model in both.items()}
    assert not torch.equal(found["y"], found["expected"])
    return found


def smoothed(config: QuantConfig) -> Found:
    """Layers that divide their inputs, split by inputs: of a model quantized after training."""
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 12)).to(place())
    x = features()
    quantize_(alone, SmoothQuant(activation=config), calibration=[x, x / 2], progress=False)
    names = ("smooth", "smooth_scale")
    assert any(getattr(layer, name, None) is not None for layer in alone for name in names)
    return trained(pair(alone, **{"0": ColwiseParallel(), "2": RowwiseParallel()}))


def transposed(kind: Any, form: str) -> Found:
    """The ``Conv1D`` of transformers, whose weight is the other way round, and its served form."""
    torch.manual_seed(0)
    layer = bnn.FakeQuantizedConv1D(12, 16, config=W8A8(symmetric=False)).to(place())
    alone = nn.ModuleDict({"layer": layer})
    if form == "converted":
        convert_(alone)
    where = "output_layouts" if kind is ColwiseParallel else "input_layouts"
    both = pair(alone, layer=kind(**{where: Replicate()}))
    with torch.no_grad():
        return {key: model["layer"](features()) for key, model in both.items()}


class Scaled(nn.Embedding):
    """An embedding with a forward of its own, as Gemma has one."""

    def forward(self, index: Tensor) -> Tensor:
        return super().forward(index) * 3


def tied(form: str) -> Found:
    """A table that the output layer shares, with a forward of its own: they stay one parameter."""
    torch.manual_seed(0)
    alone = nn.ModuleDict({"table": Scaled(21, 16), "out": nn.Linear(16, 21, bias=False)})
    alone["out"].weight = alone["table"].weight
    prepare_(alone.to(place()), W8A8())
    if form == "converted":
        convert_(alone)
    both = pair(alone, table=RowwiseParallel(), out=ColwiseParallel(output_layouts=Replicate()))
    found, index = {}, torch.arange(21, device=place())
    for key, model in both.items():
        y = model["out"](model["table"](index))
        found[key] = y.detach()
        if form == "prepared":
            y.square().sum().backward()
            assert len(list(model.parameters())) == 1
            found[f"{key} dx"] = models.gradients(model)["table.weight"]
    return found


def in_autocast() -> Found:
    found = {}
    for key, model in pair(models.prepared(W8A8(symmetric=False), device=place())).items():
        with torch.autocast(place(), torch.bfloat16):
            y = model.mlp(features())
        y.float().square().sum().backward()
        found |= {key: y.detach(), f"{key} dx": models.gradients(model)["down.weight"]}
        with torch.autocast(place(), torch.bfloat16), torch.no_grad():
            found[f"{key} evaluated"] = model.eval().mlp(features())
    return found


def compiled(form: str) -> Found:
    ours = pair(mlp("w8a8_asymmetric", form))["y"]
    run = torch.compile(ours.mlp, backend="aot_eager", fullgraph=True)
    return trained({"y": run, "expected": ours.mlp})


def recomputed() -> Found:
    """What is computed again is not observed again."""
    found, split = {}, [
        pair(models.prepared(SCHEMES["static"].config, device=place()))["y"] for _ in range(2)
    ]  # fmt: skip
    again = partial(checkpoint, split[0].mlp, use_reentrant=False)
    found = trained({"y": again, "expected": split[1].mlp})
    for key, model in zip(("y", "expected"), split, strict=True):
        state = models.state(model)
        found |= {f"{key} {name}": tensor for name, tensor in state.items() if "min_" in name}
    return found


class Scenario(NamedTuple):
    """What a process computes, and how near gradients and outputs are; None: they are equal."""

    run: Callable[[], Found]
    gradient: float | None = 2e-6
    output: float | None = None


SCENARIOS: dict[str, Scenario] = {
    **{
        f"sequence {form} {name} {layout}": Scenario(
            partial(sequence_parallel, name, form, layout),
            output=None if SCHEMES[name].serves_exactly else 2e-6,
        )
        for form in FORMS
        for name in ("w8a8_asymmetric", "static", "groups")
        for layout in (Shard(0), Shard(1), Shard(-1))
    },
    **{
        f"{run.__name__} {form}": Scenario(partial(run, form), *near)
        for form in FORMS
        for run, near in (
            (dtensors, ()), (rounded_sums, (None, 1e-2)), (tied, ()), (compiled, (None,)),
        )
    },
    "smoothed dynamic": Scenario(partial(smoothed, W8A8(symmetric=False))),
    "smoothed static": Scenario(partial(smoothed, W8A8Static(symmetric=False))),
    **{
        f"transposed {kind.__name__} {form}": Scenario(partial(transposed, kind, form))
        for kind in (ColwiseParallel, RowwiseParallel)
        for form in FORMS
    },
    "autocast": Scenario(in_autocast, 2e-2),
    "recomputed": Scenario(recomputed, None),
}  # fmt: skip


def compute(rank: int) -> dict[str, Any]:
    return {name: scenario.run() for name, scenario in SCENARIOS.items()}


results = results_fixture("parallel_layouts", compute)


def equal(found: dict[str, Tensor], *keys: str) -> None:
    for key in keys:
        ours, expected = found[key], found[key.replace("y", "expected", 1)]
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, msg=lambda m, k=key: f"{k}: {m}")


def near(ours: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    size = expected.abs().amax().item()
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance * size)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name", SCENARIOS)
def test_split_layers_beside_whole_ones(name: str, results: list[dict[str, Any]]) -> None:
    scenario = SCENARIOS[name]
    for result in results:
        found = result[name]
        for key in (key for key in found if key.startswith("y")):
            tolerance = scenario.gradient if key == "y dx" else scenario.output
            if tolerance is None:
                equal(found, key)
            else:
                near(found[key], found[key.replace("y", "expected", 1)], tolerance)
