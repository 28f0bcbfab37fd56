# SPDX-License-Identifier: BSD-3-Clause
"""Integers are parameters: the tools that handle a model's weights handle them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.nn.test_nothing_stale import KINDS, example, made

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


def test_a_plain_tensor_takes_the_place_of_integers() -> None:
    model = made("dynamic", 1)
    model[0].qweight = torch.zeros_like(model[0].qweight.detach())
    assert type(model[0].qweight) is nn.Parameter and not model[0].qweight.requires_grad
    assert torch.equal(model(example("dynamic")), model[0].bias.expand(3, 24))


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
