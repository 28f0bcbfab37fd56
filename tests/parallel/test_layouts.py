# SPDX-License-Identifier: BSD-3-Clause
"""Layouts of inputs and outputs, other kinds of layers, other tools: on two processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from tests.support.ranks import DEVICES, RANKS, results_of, skip_without_devices, spawn

FORMS = ("prepared", "converted")
SEQUENCES = {"Shard(0)": Shard(0), "Shard(1)": Shard(1), "Shard(-1)": Shard(-1)}
KINDS = ("w8a8_asymmetric", "static", "groups")


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


def sequence_parallel(name: str, form: str, layout: Any) -> dict[str, Tensor]:
    """The whole block: inputs and outputs in parts, as norms between blocks take them."""
    alone = mlp(name, form)
    ours = models.twin(alone)
    plan = {
        "up": ColwiseParallel(input_layouts=layout),
        "down": RowwiseParallel(output_layouts=layout),
    }
    parallelize_module(ours, mesh(), plan)
    x = models.features(models.SIZE, torch.float32).to(place())
    part = x.chunk(RANKS, layout.dim)[dist.get_rank()].clone().requires_grad_()
    whole = x.clone().requires_grad_()
    y, expected = ours.mlp(part), alone.mlp(whole)
    y.square().sum().backward()
    expected.square().sum().backward()
    rank = dist.get_rank()
    return {
        "y": y.detach(), "expected": expected.detach().chunk(RANKS, layout.dim)[rank],
        "dx": part.grad, "expected dx": whole.grad.chunk(RANKS, layout.dim)[rank],
    }  # fmt: skip


def dtensors(form: str) -> dict[str, Tensor]:
    """DTensors from layer to layer, and an output of an odd size, gathered."""
    alone = mlp("w8a8", form)
    ours = models.twin(alone)
    plan = {
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(use_local_output=False),
        "out": ColwiseParallel(output_layouts=Replicate(), use_local_output=False),
    }
    parallelize_module(ours, mesh(), plan)
    x = models.features(models.SIZE, torch.float32).to(place())
    with torch.no_grad():
        y = ours.out(ours.mlp(x))
        assert isinstance(y, DTensor) and y.placements == (Replicate(),)
        return {"y": y.full_tensor(), "expected": alone.out(alone.mlp(x))}


def rounded_sums(form: str) -> dict[str, Tensor]:
    alone = mlp("w8a8_asymmetric", form)
    ours = models.twin(alone)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(reduce="bfloat16")}
    parallelize_module(ours, mesh(), plan)
    x = models.features(models.SIZE, torch.float32).to(place())
    with torch.no_grad():
        return {"y": ours.mlp(x), "expected": alone.mlp(x)}


def smoothed(config: QuantConfig) -> dict[str, Tensor]:
    """Layers that divide their inputs, split by inputs: of a model quantized after training."""
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 12)).to(place())
    x = models.features(models.SIZE, torch.float32).to(place())
    quantize_(alone, SmoothQuant(activation=config), calibration=[x, x / 2], progress=False)
    layers = [alone[0], alone[2]]
    ours = models.twin(alone)
    parallelize_module(ours, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    both = []
    for model in (ours, alone):
        given = x.clone().requires_grad_()
        y = model(given)
        y.square().sum().backward()
        both += [y.detach(), given.grad]
    divides = any(
        getattr(layer, name, None) is not None
        for layer in layers
        for name in ("smooth", "smooth_scale")
    )
    keys = ("y", "dx", "expected", "expected dx")
    return {**dict(zip(keys, both, strict=True)), "divides": torch.tensor(divides)}


def transposed(style: str) -> dict[str, Tensor]:
    """The ``Conv1D`` of transformers, whose weight is the other way round, and its served form."""
    torch.manual_seed(0)
    layer = bnn.FakeQuantizedConv1D(12, 16, config=W8A8(symmetric=False)).to(place())
    results = {}
    for form in FORMS:
        alone = nn.ModuleDict({"layer": models.twin(layer)})
        if form == "converted":
            convert_(alone)
        ours = models.twin(alone)
        kind = ColwiseParallel(output_layouts=Replicate())
        if style == "rows":
            kind = RowwiseParallel(input_layouts=Replicate())
        parallelize_module(ours, mesh(), {"layer": kind})
        x = models.features(16, torch.float32).to(place())
        with torch.no_grad():
            results |= {f"{form} y": ours["layer"](x), f"{form} expected": alone["layer"](x)}
    return results


class Scaled(nn.Embedding):
    """An embedding with a forward of its own, as Gemma has one."""

    def forward(self, index: Tensor) -> Tensor:
        return super().forward(index) * 3


def tied(form: str) -> dict[str, Tensor]:
    """A table that the output layer shares, with a forward of its own: they stay one parameter."""
    torch.manual_seed(0)
    alone = nn.ModuleDict({"table": Scaled(21, 16), "out": nn.Linear(16, 21, bias=False)})
    alone["out"].weight = alone["table"].weight
    alone.to(place())
    prepare_(alone, W8A8())
    if form == "converted":
        convert_(alone)
    ours = models.twin(alone)
    styles = {"table": RowwiseParallel(), "out": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(ours, mesh(), styles)
    results, index = {}, torch.arange(21, device=place())
    for key, model in (("y", ours), ("expected", alone)):
        y = model["out"](model["table"](index))
        results[key] = y.detach()
        if form == "prepared":
            y.square().sum().backward()
            assert len(list(model.parameters())) == 1
            results[f"{key} gradient"] = models.gradients(model)["table.weight"]
    return results


def in_autocast() -> dict[str, Tensor]:
    alone = models.prepared(W8A8(symmetric=False), device=place())
    ours = models.twin(alone)
    parallelize_module(ours, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    results = {}
    for key, model in (("y", ours), ("expected", alone)):
        x = models.features(models.SIZE, torch.float32).to(place()).requires_grad_()
        with torch.autocast(place(), torch.bfloat16):
            y = model.mlp(x)
        y.float().square().sum().backward()
        results |= {key: y.detach(), f"{key} gradient": models.gradients(model)["down.weight"]}
        model.eval()
        with torch.autocast(place(), torch.bfloat16), torch.no_grad():
            results[f"{key} evaluated"] = model.mlp(x)
        model.train()
    return results


def compiled(form: str) -> dict[str, Tensor]:
    alone = mlp("w8a8_asymmetric", form)
    ours = models.twin(alone)
    parallelize_module(ours, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    results = {}
    run = torch.compile(ours.mlp, backend="aot_eager", fullgraph=True)
    for key, function in (("y", run), ("expected", ours.mlp)):
        x = models.features(models.SIZE, torch.float32).to(place()).requires_grad_()
        y = function(x)
        y.square().sum().backward()
        results |= {key: y.detach(), f"{key} dx": x.grad}
    return results


def recomputed() -> dict[str, Tensor]:
    results = {}
    for key in ("y", "expected"):
        model = models.prepared(SCHEMES["static"].config, device=place())
        parallelize_module(model, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
        x = models.features(models.SIZE, torch.float32).to(place()).requires_grad_()
        y = checkpoint(model.mlp, x, use_reentrant=False) if key == "y" else model.mlp(x)
        y.square().sum().backward()
        results |= {key: y.detach(), f"{key} dx": x.grad}
        results |= {f"{key} {name}": t for name, t in models.state(model).items() if "min_" in name}
    return results


def compute(rank: int) -> dict[str, Any]:
    """What each process does."""
    results: dict[str, Any] = {}
    for form in FORMS:
        for name in KINDS:
            for key, layout in SEQUENCES.items():
                results[f"sequence {form} {name} {key}"] = sequence_parallel(name, form, layout)
        results[f"dtensors {form}"] = dtensors(form)
        results[f"rounded {form}"] = rounded_sums(form)
        results[f"tied {form}"] = tied(form)
        results[f"compiled {form}"] = compiled(form)
    results["smoothed dynamic"] = smoothed(W8A8(symmetric=False))
    results["smoothed static"] = smoothed(W8A8Static(symmetric=False))
    for style in ("columns", "rows"):
        results[f"transposed {style}"] = transposed(style)
    results["autocast"] = in_autocast()
    results["recomputed"] = recomputed()
    return results


@pytest.fixture(scope="session", params=DEVICES)
def results(
    request: pytest.FixtureRequest, made_once: Callable[[str, Callable[[Path], None]], Path]
) -> list[dict[str, Any]]:
    """What each rank brought home."""
    device = request.param
    skip_without_devices(device)
    name = f"parallel_layouts_{device}"
    return results_of(made_once(name, lambda folder: spawn(folder, compute, RANKS, device)))


def equal(found: dict[str, Tensor], *keys: str) -> None:
    for key in keys:
        ours, expected = found[key], found[key.replace("y", "expected", 1)]
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, msg=lambda m, k=key: f"{k}: {m}")


def near(ours: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    size = expected.abs().amax().item()
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance * size)


pytestmark = [pytest.mark.exhaustive, pytest.mark.process]


@pytest.mark.parametrize("layout", SEQUENCES)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_sequences_in_parts(
    form: str, name: str, layout: str, results: list[dict[str, Any]]
) -> None:
    for result in results:
        found = result[f"sequence {form} {name} {layout}"]
        if SCHEMES[name].serves_exactly:
            equal(found, "y")
        near(found["y"], found["expected"])
        near(found["dx"], found["expected dx"])


@pytest.mark.parametrize("form", FORMS)
def test_dtensors_pass_from_layer_to_layer(form: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        equal(result[f"dtensors {form}"], "y")


@pytest.mark.parametrize("form", FORMS)
def test_sums_in_bfloat16_are_near_and_not_equal(form: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result[f"rounded {form}"]
        assert not torch.equal(found["y"], found["expected"])
        near(found["y"], found["expected"], 1e-2)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_layers_that_divide_their_inputs(kind: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result[f"smoothed {kind}"]
        assert found["divides"], "the case has such a layer"
        equal(found, "y")
        near(found["dx"], found["expected dx"])


@pytest.mark.parametrize("style", ["columns", "rows"])
@pytest.mark.parametrize("form", FORMS)
def test_layers_whose_weight_is_transposed(
    form: str, style: str, results: list[dict[str, Any]]
) -> None:
    for result in results:
        found = result[f"transposed {style}"]
        assert torch.equal(found[f"{form} y"], found[f"{form} expected"])


@pytest.mark.parametrize("form", FORMS)
def test_tied_tables(form: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result[f"tied {form}"]
        equal(found, "y")
        if form == "prepared":
            near(found["y gradient"], found["expected gradient"])


def test_autocast(results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result["autocast"]
        equal(found, "y", "y evaluated")
        near(found["y gradient"], found["expected gradient"], 2e-2)


@pytest.mark.parametrize("form", FORMS)
def test_compiled(form: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        equal(result[f"compiled {form}"], "y", "y dx")


def test_checkpointing(results: list[dict[str, Any]]) -> None:
    """What is computed again is not observed again."""
    for result in results:
        found = result["recomputed"]
        ranges = [key for key in found if key.startswith("y ") and "min_" in key]
        assert ranges
        equal(found, "y", "y dx", *ranges)
