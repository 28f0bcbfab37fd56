# SPDX-License-Identifier: BSD-3-Clause
"""Integers are parameters: the tools that handle a model's weights handle them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_file, save_model
from torch import Tensor, nn

import baraquant
from baraquant import W8A8
from tests.nn.test_nothing_stale import KINDS, both, example, made
from tests.nn.test_nothing_stale import STATIC as OF_INPUT
from tests.support import cases

accelerate = pytest.importorskip("accelerate")
CPU = torch.device("cpu")
by_kind = pytest.mark.parametrize("kind", KINDS)


class Pair(nn.Module):
    """Two layers, since accelerate reads a map of one device in another way."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self.one, self.other = made(kind, seed), made(kind, seed + 1)

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(input), self.other(input)


def cpu_offload(model: nn.Module, folder: Path) -> nn.Module:
    return accelerate.cpu_offload(model, execution_device=CPU)


def disk_offload(model: nn.Module, folder: Path) -> nn.Module:
    return accelerate.disk_offload(model, folder, execution_device=CPU)


def dispatch_model(model: nn.Module, folder: Path) -> nn.Module:
    places = {"one": "cpu", "other": "disk"}
    return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder)


def load_checkpoint_and_dispatch(model: nn.Module, folder: Path) -> nn.Module:
    save_file(model.state_dict(), folder / "all.safetensors")
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (*fresh.parameters(), *fresh.buffers()):
            tensor.zero_()
    return accelerate.load_checkpoint_and_dispatch(
        fresh,
        str(folder / "all.safetensors"),
        device_map={"one": "cpu", "other": "disk"},
        offload_folder=folder / "offloaded",
        offload_buffers=True,  # else it loads no buffer of what goes to the disk
    )


OFFLOADS: dict[str, Callable[[nn.Module, Path], nn.Module]] = {
    way.__name__: way
    for way in (cpu_offload, disk_offload, dispatch_model, load_checkpoint_and_dispatch)
}


@by_kind
@pytest.mark.parametrize("way", OFFLOADS)
def test_offloaded(kind: str, way: str, tmp_path: Path) -> None:
    model, x = Pair(kind, 1), example(kind)
    with torch.no_grad():
        wanted = model(x)
        placed = OFFLOADS[way](model, tmp_path)
        away = [name for name, tensor in placed.named_parameters() if tensor.is_meta]
        assert any(name.endswith(("qweight", "packed")) for name in away)
        for _ in range(2):
            assert all(map(torch.equal, placed(x), wanted))


@by_kind
def test_copies_and_places(kind: str) -> None:
    model, x = made(kind, 1), example(kind)
    with torch.no_grad():
        wanted = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(x), wanted)
        empty = copy.deepcopy(model).to("meta")
        assert all(tensor.is_meta for tensor in empty.state_dict().values())
        filled = copy.deepcopy(empty).to_empty(device="cpu")
        filled.load_state_dict(model.state_dict())
        empty.load_state_dict(model.state_dict(), assign=True)
        assert torch.equal(filled(x), wanted) and torch.equal(empty(x), wanted)
    assert not any(parameter.requires_grad for parameter in empty.parameters())


@by_kind
def test_frozen_parameters(kind: str) -> None:
    """Calls for all parameters of a model leave integers as they are."""
    model, x = made(kind, 1), example(kind)
    with torch.no_grad():
        wanted = model(x)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        optimizer.step()
        optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        assert torch.equal(average(x), wanted)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])


@by_kind
def test_a_moving_average_that_leaves_integers(kind: str) -> None:
    """PyTorch's own function for it moves them; the page about serving has this one."""
    model = made(kind, 1)
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda old, new, n: old.lerp(new, 0.1) if old.is_floating_point() else new
    )
    for _ in range(3):
        average.update_parameters(model)
    for name, tensor in average.module.state_dict().items():
        if not tensor.is_floating_point():
            assert torch.equal(tensor, model.state_dict()[name])


@pytest.mark.parametrize("to", (torch.float16, torch.bfloat16, torch.float64))
@by_kind
def test_conversions_leave_integers_and_scales(kind: str, to: torch.dtype) -> None:
    """Of the floating tensors a bias alone is rounded; scales become float64 at most."""
    model = made(kind, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.to(to)
    for name, tensor in model.state_dict().items():
        if name.endswith("bias"):
            assert tensor.dtype == to
        elif to == torch.float64 and before[name].is_floating_point():
            assert torch.equal(tensor, before[name].double())
        else:
            assert tensor.dtype == before[name].dtype and torch.equal(tensor, before[name]), name


def test_tied_integers_are_one_parameter(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
            self.head.weight = self.table.weight

        def forward(self, input: Tensor) -> Tensor:
            return self.head(self.table(input))

    model = Tied()
    report = baraquant.quantize_(model, W8A8())
    assert len(list(model.parameters())) == 1
    assert report.bytes_after == 12 * 8 + 12 * 4
    baraquant.save(model, tmp_path / "a")
    loaded = baraquant.load_(Tied(), tmp_path / "a")
    save_model(model, str(tmp_path / "b"))
    fresh = copy.deepcopy(model)
    fresh.head.qweight.zero_()
    load_model(fresh, str(tmp_path / "b"))
    assert torch.equal(fresh.table.qweight, model.table.qweight)
    for one in (model, loaded, fresh, copy.deepcopy(model), copy.deepcopy(model).to("meta")):
        assert one.head.qweight is one.table.qweight


def test_a_plain_tensor_takes_the_place_of_integers() -> None:
    model = made("dynamic", 1)
    model[0].qweight = torch.zeros_like(model[0].qweight.detach())
    assert type(model[0].qweight) is nn.Parameter and not model[0].qweight.requires_grad
    assert torch.equal(model(example("dynamic")), model[0].bias.expand(3, 24))


def test_a_static_input_has_no_scalar_parameter() -> None:
    """``fully_shard`` refuses scalars."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8))
    calibration = [torch.randn(3, 16, generator=cases.generator(0))]
    baraquant.quantize_(model, both(baraquant.TensorConfig(8), OF_INPUT), calibration=calibration)
    assert all(parameter.dim() > 0 for parameter in model.parameters())


REPRS = {
    "smoothed": "QuantizedLinear(in_features=16, out_features=24, bias=True, weight=int8 per_"
    "channel, input=int8 per_token asymmetric dynamic, smooth)",
    "static": "StaticQuantizedLinear(in_features=16, out_features=24, bias=True, weight=int8 per_"
    "channel, input=int8 per_tensor asymmetric static)",
    "weight_only": "weight=int8 per_group(4) asymmetric",
}


@pytest.mark.parametrize("kind", REPRS)
def test_repr(kind: str) -> None:
    assert REPRS[kind] in repr(made(kind, 1))
