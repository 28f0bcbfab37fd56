# SPDX-License-Identifier: BSD-3-Clause
"""Layers that are split over two and four processes, beside the whole ones of one process.

Linear layers and embeddings of every scheme; layouts of inputs and outputs, other kinds of layers
and other tools; within FSDP; files.
"""

import copy
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
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

from baraquant import W8A8, QuantConfig, SmoothQuant, W8A8Static, quantize_, save
from baraquant import nn as bnn
from baraquant.parallel import ColwiseParallel, RowwiseParallel
from baraquant.qat import convert_, prepare_
from tests.parallel import models
from tests.parallel.models import LINEAR, SCHEMES, features, mesh, place
from tests.support.ranks import RANKS, results_fixture

pytestmark = [pytest.mark.exhaustive, pytest.mark.process]
FORMS = ("prepared", "converted")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
ROUNDING = {"float32": 2e-6, "bfloat16": 2e-2, "float64": 1e-14}
# Each scheme in float32, and those of an integer product in the others.
CASES = [(name, "float32") for name in LINEAR]
CASES += [(name, d) for name in ("w8a8_asymmetric", "static") for d in ("bfloat16", "float64")]
TABLES = {"features": ColwiseParallel, "rows": RowwiseParallel}
Found = dict[str, Tensor]
Pair = list[Found]  # what the whole model gives, and what it gives when it is split


def split(model: Any, **styles: Any) -> Any:
    """A copy that is split: the layers that are named, or both of the block."""
    plan = styles or {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(copy.deepcopy(model), mesh(), plan)


def check(pair: Pair, tolerance_of: Callable[[str], float], equal_nan: bool = False) -> None:
    """Near, measured by the largest number; without a tolerance the same bits."""
    whole, ours = pair
    assert ours.keys() == whole.keys()
    for key, expected in whole.items():
        near = tolerance_of(key)
        size = expected.abs().nan_to_num(0, 0, 0).amax().item() if expected.numel() else 0.0
        torch.testing.assert_close(
            ours[key], expected, rtol=near, atol=near * size, equal_nan=equal_nan,
            msg=lambda m, k=key: f"{k}: {m}",
        )  # fmt: skip


def trained(run: Callable[[Tensor], Tensor], x: Tensor) -> Found:
    """The output, and the gradient of the input."""
    y = run(x.requires_grad_())
    y.square().sum().backward()
    return {"y": y.detach(), "dx": x.grad}


# --- every scheme, on two processes and on four --------------------------------------------------


def weighted(y: Tensor) -> Tensor:
    return (y.float() * torch.linspace(-1, 1, y.numel(), device=y.device).reshape(y.shape)).sum()


def mlp_of(name: str, dtype: str) -> dict[str, Pair]:
    """Two linear layers, first by outputs and then by inputs, in each phase of their life."""
    plain, special = (features(DTYPES[dtype], special) for special in (False, True))
    whole = models.prepared(name, DTYPES[dtype])
    found: dict[str, Pair] = {}

    def look(phase: str, compute: Callable[[Any], Found]) -> None:
        found[phase] = [compute(model) for model in (whole, ours)]

    def train(model: Any) -> Found:
        x = plain.clone().requires_grad_()
        y = model.mlp(x)
        weighted(y).backward()
        return {"y": y.detach(), "dx": x.grad, **models.gradients(model)}

    def evaluated(model: Any) -> Found:
        with torch.no_grad():
            return {"y": model.eval().mlp(special)}

    for form in FORMS:
        if form == "converted":
            convert_(whole)
        ours = split(whole)
        if form == "prepared":
            look("train", train)
            look("prepared state", models.state)
        look(f"{form} y", evaluated)
        look(f"{form} gradient", lambda model: trained(model.mlp, plain.clone()))
    for layer in ("up", "down"):  # a split layer holds int8
        one = getattr(whole, layer)
        setattr(whole, layer, one.as_int8() if hasattr(one, "as_int8") else one)
    look("converted state", models.state)
    return found


def table_of(name: str, style: str) -> dict[str, Pair]:
    index, whole = models.indices(), models.prepared(name)
    found: dict[str, Pair] = {}

    def train(model: Any) -> Found:
        y = model.table(index)
        weighted(y).backward()
        return {"y": y.detach(), "grad": models.gradients(model)["table.weight"]}

    for form in FORMS:
        if form == "converted":
            convert_(whole)
        both = (whole, split(whole, table=TABLES[style](output_layouts=Replicate())))
        if form == "prepared":
            found["train"] = [train(model) for model in both]
        found[form] = [{"y": model.eval().table(index).detach()} for model in both]
    return found | {"state": [models.state(model) for model in both]}


def compute(rank: int) -> dict[str, Any]:
    results = {f"{name} {dtype}": mlp_of(name, dtype) for name, dtype in CASES}
    tables = {f"{name} {style}": table_of(name, style) for name in SCHEMES for style in TABLES}
    return results | tables


results = results_fixture("tensor_parallel", compute, 2, 4)


@pytest.mark.parametrize("name, dtype", CASES)
def test_layers_that_are_split(name: str, dtype: str, results: list[dict[str, Any]]) -> None:
    """The bits of integer products; other numbers to the rounding of sums."""
    scheme, near = LINEAR[name], ROUNDING[dtype]
    exact = {"train": ("y",) * scheme.trains_exactly, "y": ("y",) * scheme.serves_exactly}
    for result in results:
        for phase, pair in result[f"{name} {dtype}"].items():
            keys = pair[0] if phase.endswith("state") else exact.get(phase.split()[-1], ())
            check(pair, lambda key, keys=keys: 0 if key in keys else near, equal_nan=True)


@pytest.mark.parametrize("style", TABLES)
@pytest.mark.parametrize("name", SCHEMES)
def test_embeddings_that_are_split(name: str, style: str, results: list[dict[str, Any]]) -> None:
    """The bits of one process, in each phase; gradients are sums in the same order."""
    for result in results:
        for pair in result[f"{name} {style}"].values():
            check(pair, lambda key: 0, equal_nan=True)


# --- layouts, other kinds of layers, other tools: on two processes -------------------------------


def mlp(name: str, form: str) -> Any:
    model = models.prepared(name).eval()
    if form == "converted":
        convert_(model)
    return model


def sequence_parallel(name: str, form: str, layout: Any) -> Pair:
    """The whole block: inputs and outputs in parts, as norms between blocks take them."""
    whole, styles = mlp(name, form), {"up": ColwiseParallel(input_layouts=layout)}
    ours = split(whole, **styles, down=RowwiseParallel(output_layouts=layout))

    def part(tensor: Tensor) -> Tensor:
        return tensor.chunk(RANKS, layout.dim)[dist.get_rank()].clone()

    expected = {key: part(tensor) for key, tensor in trained(whole.mlp, features()).items()}
    return [expected, trained(ours.mlp, part(features()))]


def dtensors(form: str) -> Pair:
    """DTensors from layer to layer, and an output of an odd size, gathered."""
    whole, local = mlp("w8a8", form), {"use_local_output": False}
    out = ColwiseParallel(output_layouts=Replicate(), **local)
    ours = split(whole, up=ColwiseParallel(**local), down=RowwiseParallel(**local), out=out)
    with torch.no_grad():
        expected, y = (model.out(model.mlp(features())) for model in (whole, ours))
    assert isinstance(y, DTensor) and y.placements == (Replicate(),)
    return [{"y": expected}, {"y": models.whole(y)}]


def rounded_sums(form: str) -> Pair:
    whole = mlp("w8a8_asymmetric", form)
    ours = split(whole, up=ColwiseParallel(), down=RowwiseParallel(reduce="bfloat16"))
    with torch.no_grad():
        found = [{"y": model.mlp(features())} for model in (whole, ours)]
    assert not torch.equal(found[0]["y"], found[1]["y"])
    return found


def smoothed(config: QuantConfig) -> Pair:
    """Layers that divide their inputs, split by inputs: of a model quantized after training."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 12)).to(place())
    x = features()
    quantize_(whole, SmoothQuant(activation=config), calibration=[x, x / 2], progress=False)
    names = ("smooth", "smooth_scale")
    assert any(getattr(layer, name, None) is not None for layer in whole for name in names)
    ours = split(whole, **{"0": ColwiseParallel(), "2": RowwiseParallel()})
    return [trained(model, features()) for model in (whole, ours)]


def transposed(kind: Any, form: str) -> Pair:
    """The ``Conv1D`` of transformers, whose weight is the other way round, and its served form."""
    torch.manual_seed(0)
    layer = bnn.FakeQuantizedConv1D(12, 16, config=W8A8(symmetric=False)).to(place())
    whole = nn.ModuleDict({"layer": layer})
    if form == "converted":
        convert_(whole)
    where = "output_layouts" if kind is ColwiseParallel else "input_layouts"
    ours = split(whole, layer=kind(**{where: Replicate()}))
    with torch.no_grad():
        return [{"y": model["layer"](features())} for model in (whole, ours)]


class Scaled(nn.Embedding):
    """An embedding with a forward of its own, as Gemma has one."""

    def forward(self, index: Tensor) -> Tensor:
        return super().forward(index) * 3


def tied(form: str) -> Pair:
    """A table that the output layer shares, with a forward of its own: they stay one parameter."""
    torch.manual_seed(0)
    whole = nn.ModuleDict({"table": Scaled(21, 16), "out": nn.Linear(16, 21, bias=False)})
    whole["out"].weight = whole["table"].weight
    prepare_(whole.to(place()), W8A8())
    if form == "converted":
        convert_(whole)
    ours = split(whole, table=RowwiseParallel(), out=ColwiseParallel(output_layouts=Replicate()))
    found: Pair = []
    for model in (whole, ours):
        y = model["out"](model["table"](torch.arange(21, device=place())))
        found.append({"y": y.detach()})
        if form == "prepared":
            y.square().sum().backward()
            assert len(list(model.parameters())) == 1
            found[-1]["dx"] = models.gradients(model)["table.weight"]
    return found


def in_autocast() -> Pair:
    whole, found = models.prepared("w8a8_asymmetric"), []
    for model in (whole, split(whole)):
        with torch.autocast(place(), torch.bfloat16):
            y = model.mlp(features())
        y.float().square().sum().backward()
        with torch.autocast(place(), torch.bfloat16), torch.no_grad():
            evaluated = model.eval().mlp(features())
        dx = models.gradients(model)["down.weight"]
        found.append({"y": y.detach(), "dx": dx, "evaluated": evaluated})
    return found


def compiled(form: str) -> Pair:
    ours = split(mlp("w8a8_asymmetric", form))
    run = torch.compile(ours.mlp, backend="aot_eager", fullgraph=True)
    return [trained(one, features()) for one in (ours.mlp, run)]


def recomputed() -> Pair:
    """What is computed again is not observed again."""
    found = []
    for recomputes in (False, True):
        model = split(models.prepared("static"))
        again = partial(checkpoint, model.mlp, use_reentrant=False)
        one = trained(again if recomputes else model.mlp, features())
        found.append(one | {k: t for k, t in models.state(model).items() if "min_" in k})
    return found


class Scenario(NamedTuple):
    """What a process computes, and how near gradients and outputs are; 0: they are equal."""

    run: Callable[[], Pair]
    gradient: float = 2e-6
    output: float = 0


SCENARIOS: dict[str, Scenario] = {
    **{
        f"sequence {form} {name} {layout}": Scenario(
            partial(sequence_parallel, name, form, layout),
            output=0 if SCHEMES[name].serves_exactly else 2e-6,
        )
        for form in FORMS
        for name in ("w8a8_asymmetric", "static", "groups")
        for layout in (Shard(0), Shard(1), Shard(-1))
    },
    **{
        f"{run.__name__} {form}": Scenario(partial(run, form), *near)
        for form in FORMS
        for run, near in ((dtensors, ()), (rounded_sums, (0, 1e-2)), (tied, ()), (compiled, (0,)))
    },
    "smoothed dynamic": Scenario(partial(smoothed, W8A8(symmetric=False))),
    "smoothed static": Scenario(partial(smoothed, W8A8Static(symmetric=False))),
    **{
        f"transposed {kind.__name__} {form}": Scenario(partial(transposed, kind, form))
        for kind in TABLES.values()
        for form in FORMS
    },
    "autocast": Scenario(in_autocast, 2e-2),
    "recomputed": Scenario(recomputed, 0),
}


def compute_layouts(rank: int) -> dict[str, Any]:
    return {name: scenario.run() for name, scenario in SCENARIOS.items()}


layouts = results_fixture("parallel_layouts", compute_layouts)


@pytest.mark.parametrize("name", SCENARIOS)
def test_split_layers_beside_whole_ones(name: str, layouts: list[dict[str, Any]]) -> None:
    _, gradient, output = SCENARIOS[name]
    for result in layouts:
        check(result[name], lambda key: gradient if key == "dx" else output)


# --- tensor parallelism within FSDP: four processes, two for each --------------------------------

STEPS = 3
TWICE = ("w8a8_asymmetric", "static", "observed_weight", "groups")


def train_both(name: str, parallel: bool, evaluated_first: bool) -> Found:
    model: Any = models.prepared(name)
    if parallel:
        mesh = init_device_mesh(place(), (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model.up, mesh=mesh["dp"])
        fully_shard(model.down, mesh=mesh["dp"])
        for module in model.modules():
            if isinstance(module, bnn.FakeQuantize) and module.is_observed:
                module.sync_qparams(mesh["dp"].get_group())
    found: Found = {}
    optimizer = torch.optim.SGD([*model.up.parameters(), *model.down.parameters()], lr=1e-6)
    before = models.state(model)["up.weight"]
    if evaluated_first:
        with torch.no_grad():
            found["evaluated"] = model.eval().mlp(features())
        model.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        y = model.mlp(features())
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


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_both_together(name: str, first: bool, on_four: list[dict[str, Any]]) -> None:
    """Every process sees the same batch, so that the mean over them is what one computes."""
    scheme = SCHEMES[name]
    exact = {"y": scheme.trains_exactly, "evaluated": scheme.serves_exactly}
    for result in on_four:
        pair = result[f"{name} {first}"]
        assert pair[0].keys() == pair[1].keys()
        pair = [{k: t for k, t in one.items() if t.is_floating_point()} for one in pair]
        check(pair, lambda k: 0 if exact.get(k) else 1e-4 if k.startswith("state") else 1e-5)


# --- files of models that are split, and of models that are whole --------------------------------


def emptied(model: nn.Module) -> Any:
    empty = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.zero_()
    return empty


def stored(form: str) -> list[Tensor]:
    """Whole files: written by a parallel model and read by one process, and the other way round."""
    model = models.prepared("static")
    if form == "converted":
        convert_(model.eval())
    empty, table = emptied(model), RowwiseParallel()
    styles = {"table": table, "out": ColwiseParallel(output_layouts=Replicate())}
    styles |= {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallel, parallel_too = split(model, **styles), split(empty, **styles)
    options = state_dict.StateDictOptions(full_state_dict=True)
    state = state_dict.get_model_state_dict(parallel, options=options)
    empty.load_state_dict(state)
    state_dict.set_model_state_dict(parallel_too, state, options=options)
    with torch.no_grad():
        return [one.eval()(models.indices()) for one in (parallel, empty, parallel_too)]


def distributed_checkpoint() -> list[Tensor]:
    model = mlp("groups", "converted")
    empty = emptied(model)
    with tempfile.TemporaryDirectory() as folder:
        folders: list[Any] = [folder]
        dist.broadcast_object_list(folders)
        dcp.save(split(model).state_dict(), checkpoint_id=folders[0])
        whole = copy.deepcopy(empty)
        for name in ("up", "down"):  # split layers have int8, which the others pack
            setattr(whole, name, getattr(whole, name).as_int8())
        state = whole.state_dict()
        dcp.load(state, checkpoint_id=folders[0])
        dist.barrier()
    empty.load_state_dict(state)
    with torch.no_grad():
        return [one(models.indices()) for one in (model, empty)]


TOOLS: dict[str, Callable[[Any], Any]] = {
    "convert_": convert_,
    "prepare_": lambda model: prepare_(model, W8A8()),
    "quantize_": lambda model: quantize_(model, W8A8()),
    "save": lambda model: save(model, "never_written.safetensors"),
}


def refusals() -> dict[str, str]:
    """What tools say that take whole models only."""
    ours = {form: split(mlp("w8a8", form), up=ColwiseParallel()) for form in FORMS}
    said, items = models.message_of, TOOLS.items()
    return {f"{form} {name}": said(tool, ours[form]) for form in FORMS for name, tool in items}


def compute_files(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {form: stored(form) for form in FORMS}
    return found | {"checkpoint": distributed_checkpoint(), "refusals": refusals()}


files = results_fixture("parallel_files", compute_files)


@pytest.mark.parametrize("form", [*FORMS, "checkpoint"])
def test_files(form: str, files: list[dict[str, Any]]) -> None:
    for result in files:
        expected, *others = result[form]
        assert others and all(torch.equal(other, expected) for other in others)


def test_tools_for_whole_models_refuse_others(files: list[dict[str, Any]]) -> None:
    messages = files[0]["refusals"]
    assert len(messages) == 8
    for name, message in messages.items():
        assert "up: expected a model before it is split over processes, but got" in message, name
        assert "gather its state" in message
    assert not Path("never_written.safetensors").exists()
