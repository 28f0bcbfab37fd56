# SPDX-License-Identifier: BSD-3-Clause
"""Conversion, saving and loading keep the memory format of a convolution's weight."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import baraquant
from baraquant.qat import convert_, prepare_
from tests.nn.test_nothing_stale import GROUPS, PLAIN, STATIC, TENSOR, both
from tests.support import cases

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Of each: the class, its options, and the shape of an image without the batch.
CONVS: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "line": (nn.Conv1d, {"kernel_size": 3, "padding": 1}, (16, 9)),
    "image": (nn.Conv2d, {"kernel_size": 3, "padding": 1}, (16, 7, 9)),
    "pointwise": (nn.Conv2d, {"kernel_size": 1}, (16, 7, 9)),
    "depthwise": (nn.Conv2d, {"kernel_size": 3, "groups": 16}, (16, 7, 9)),
    "groups": (nn.Conv2d, {"kernel_size": 3, "groups": 2}, (16, 7, 9)),
    "space": (nn.Conv3d, {"kernel_size": 2}, (16, 3, 4, 5)),
    "transposed": (nn.ConvTranspose2d, {"kernel_size": 3}, (16, 5, 6)),
    "transposed space": (nn.ConvTranspose3d, {"kernel_size": 2}, (16, 3, 4, 3)),
}
CONFIGS = {
    "weight only": both(PLAIN),
    "groups": both(GROUPS),
    "dynamic": both(PLAIN, TENSOR),
    "static": both(PLAIN, STATIC),
}
by_conv = pytest.mark.parametrize("name", CONVS)
by_config = pytest.mark.parametrize("config", CONFIGS)


def floating(name: str, is_last: bool = True) -> nn.Sequential:
    kind, options, shape = CONVS[name]
    torch.manual_seed(0)
    model = nn.Sequential(kind(16, 32, **options)).eval()
    rank = len(shape) + 1
    return model.to(memory_format=LAST[rank]) if is_last and rank in LAST else model


def inputs(name: str) -> list[torch.Tensor]:
    shape = CONVS[name][2]
    x = torch.randn(2, *shape, generator=cases.generator(1))
    rank = len(shape) + 1
    more = [x.contiguous(memory_format=LAST[rank])] if rank in LAST else []
    return [x, *more, x[0]]


def outputs(model: nn.Module, name: str) -> list[torch.Tensor]:
    found = []
    for x in inputs(name):
        leaf = x.detach().requires_grad_()
        y = model(leaf)
        (grad,) = torch.autograd.grad(y.square().sum(), leaf)
        found += [y.detach(), grad]
    return found


def check(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


@by_conv
@by_config
@pytest.mark.cover(("name", "config"))
@pytest.mark.parametrize("is_last", (True, False))
def test_bits_and_strides(name: str, config: str, is_last: bool, tmp_path: Path) -> None:
    if (name, config) == ("depthwise", "groups"):
        pytest.skip("a depthwise convolution has no groups of inputs")
    prepared = prepare_model(name, config, is_last)
    model = copy.deepcopy(prepared)
    convert_(model)
    wanted = outputs(prepared, name)
    check(outputs(model, name), wanted)
    assert model[0].weight.stride() == (model[0].weight + 0).stride()
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    save_file(model.state_dict(), tmp_path / "state")
    baraquant.save(model, tmp_path / "model")
    loaded = baraquant.load_(floating(name, is_last=False), tmp_path / "model")
    check(outputs(loaded, name), wanted)
    check(outputs(copy.deepcopy(model), name), wanted)
    model.load_state_dict(copy.deepcopy(loaded.state_dict()), assign=True)
    check(outputs(model, name), wanted)


def prepare_model(name: str, config: str, is_last: bool) -> nn.Module:
    model = floating(name, is_last)
    prepare_(model, CONFIGS[config])
    model.train()
    model(inputs(name)[0])
    return model.eval()


@pytest.mark.parametrize("config", ("weight only", "static"))
def test_a_conversion_to_a_format(config: str, tmp_path: Path) -> None:
    """``to(memory_format=...)`` of a converted model is that of its float weights."""
    first = prepare_model("image", config, True)
    model = prepare_model("image", config, False)
    convert_(first)
    convert_(model)
    plain = outputs(model, "image")
    model.to(memory_format=torch.channels_last)
    assert model[0].channels_last and model[0].qweight.is_contiguous()
    check(outputs(model, "image"), outputs(first, "image"))
    model.double().float()
    assert model[0].channels_last
    save_file(model.state_dict(), tmp_path / "state")
    model.to(memory_format=torch.contiguous_format)
    assert not model[0].channels_last
    check(outputs(model, "image"), plain)
