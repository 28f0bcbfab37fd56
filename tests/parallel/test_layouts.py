# SPDX-License-Identifier: BSD-3-Clause
"""Layouts of inputs and outputs, other kinds of layers, other tools, files: on two processes."""

import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

import baraquant
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


def message_of(call: Callable[..., Any], *arguments: Any) -> str:
    try:
        call(*arguments)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


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


# --- tensor parallelism within FSDP: four processes, two for each --------------------------------

STEPS = 3
TWICE = ("w8a8_asymmetric", "static", "observed_weight", "groups")


def train_both(name: str, parallel: bool, evaluated_first: bool) -> dict[str, Tensor]:
    model: Any = models.prepared(SCHEMES[name].config, device=place())
    if parallel:
        mesh = init_device_mesh(place(), (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model.up, mesh=mesh["dp"])
        fully_shard(model.down, mesh=mesh["dp"])
        for module in model.modules():
            if isinstance(module, bnn.FakeQuantize) and module.is_observed:
                module.sync_qparams(mesh["dp"].get_group())
    x = models.features(models.SIZE, torch.float32).to(place())
    found: dict[str, Tensor] = {}
    optimizer = torch.optim.SGD([*model.up.parameters(), *model.down.parameters()], lr=1e-6)
    before = models.state(model)["up.weight"]
    if evaluated_first:
        with torch.no_grad():
            found["evaluated"] = model.eval().mlp(x)
        model.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        y = model.mlp(x)
        y.square().sum().backward()
        if step == 0:
            found |= {"y": y.detach(), **models.gradients(model)}
        optimizer.step()
    assert not torch.equal(models.state(model)["up.weight"], before), "it trains"
    return found | {f"state {key}": value for key, value in models.state(model).items()}


def compute_on_four(rank: int) -> dict[str, Any]:
    return {
        f"{name} {first}": [train_both(name, parallel, first) for parallel in (False, True)]
        for name in TWICE
        for first in (False, True)
    }


on_four = results_fixture("two_dimensions", compute_on_four, 4)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_both_together(name: str, first: bool, on_four: list[dict[str, Any]]) -> None:
    """Every process sees the same batch, so that the mean over them is what one computes."""
    for result in on_four:
        alone, ours = result[f"{name} {first}"]
        assert ours.keys() == alone.keys()
        if SCHEMES[name].trains_exactly:
            assert torch.equal(ours["y"], alone["y"])
        if SCHEMES[name].serves_exactly and first:
            assert torch.equal(ours["evaluated"], alone["evaluated"])
        for key, expected in alone.items():
            if expected.is_floating_point():
                near(ours[key], expected, 1e-4 if key.startswith("state") else 1e-5)


# --- files of models that are split, and of models that are whole --------------------------------


def stored(form: str) -> dict[str, Any]:
    """Whole files: written by a parallel model and read by one process, and the other way round."""
    parallel = models.prepared(SCHEMES["static"].config, device=place())
    if form == "converted":
        convert_(parallel.eval())
    empty = models.twin(parallel)
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.zero_()
    plan = {
        "table": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel(),
        "out": ColwiseParallel(output_layouts=Replicate()),
    }  # fmt: skip
    parallelize_module(parallel, mesh(), plan)
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(parallel, options=options)
    read = models.twin(empty)
    read.load_state_dict(state)
    parallelize_module(empty, mesh(), plan)
    set_model_state_dict(empty, state, options=options)
    index = models.indices().to(place())
    file = io.BytesIO()
    torch.save({name: models.whole(t) for name, t in state.items()}, file)
    with torch.no_grad():
        return {
            "expected": parallel.eval()(index), "y": read.eval()(index),
            "loaded": empty.eval()(index), "bytes": len(file.getvalue()),
        }  # fmt: skip


def distributed_checkpoint(folder: str) -> dict[str, Tensor]:
    model = mlp("groups", "converted")
    empty = models.twin(model)
    with torch.no_grad():
        for tensor in empty.buffers():
            tensor.zero_()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallel = parallelize_module(models.twin(model), mesh(), plan)
    folders: list[Any] = [folder]
    dist.broadcast_object_list(folders)
    dcp.save(parallel.state_dict(), checkpoint_id=folders[0])
    whole = models.twin(empty)
    for name in plan:  # split layers have int8, which the others pack
        setattr(whole, name, getattr(whole, name).as_int8())
    state = whole.state_dict()
    dcp.load(state, checkpoint_id=folders[0])
    empty.load_state_dict(state)
    index = models.indices().to(place())
    with torch.no_grad():
        return {"y": empty(index), "expected": model(index)}


TOOLS: dict[str, Callable[[Any], Any]] = {
    "convert_": convert_,
    "prepare_": lambda model: prepare_(model, baraquant.W8A8()),
    "quantize_": lambda model: baraquant.quantize_(model, baraquant.W8A8()),
    "save": lambda model: baraquant.save(model, "never_written.safetensors"),
}


def refusals() -> dict[str, str]:
    """What tools say that take whole models only."""
    messages = {}
    for form in FORMS:
        model = mlp("w8a8", form)
        parallelize_module(model, mesh(), {"up": ColwiseParallel()})
        messages |= {f"{form} {name}": message_of(tool, model) for name, tool in TOOLS.items()}
    return messages


def compute_files(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {f"stored {form}": stored(form) for form in FORMS}
    with tempfile.TemporaryDirectory() as folder:
        results["checkpoint"] = distributed_checkpoint(folder)
        dist.barrier()
    results["refusals"] = refusals()
    return results


files = results_fixture("parallel_files", compute_files)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("form", FORMS)
def test_whole_files(form: str, files: list[dict[str, Any]]) -> None:
    for result in files:
        found = result[f"stored {form}"]
        equal(found, "y")
        assert torch.equal(found["loaded"], found["expected"])


@pytest.mark.exhaustive
@pytest.mark.process
def test_distributed_checkpoints(files: list[dict[str, Any]]) -> None:
    for result in files:
        equal(result["checkpoint"], "y")


@pytest.mark.exhaustive
@pytest.mark.process
def test_tools_for_whole_models_refuse_others(files: list[dict[str, Any]]) -> None:
    messages = files[0]["refusals"]
    assert len(messages) == 8
    for name, message in messages.items():
        assert "up: expected a model before it is split over processes, but got" in message, name
        assert "gather its state" in message
    assert not Path("never_written.safetensors").exists()
