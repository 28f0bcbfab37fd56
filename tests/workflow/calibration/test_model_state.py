# SPDX-License-Identifier: BSD-3-Clause
"""Runs that only look leave a model as it was, whatever its calls change."""

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, SmoothQuant, W8A8Static
from baraquant.qat import prepare_

KINDS = (
    "buffer", "new buffer", "attribute", "list", "counter", "record", "statistics", "generator",
    "random",
)  # fmt: skip


class Cache:
    def __init__(self) -> None:
        self.layers: list[Any] = []


class Stateful(nn.Module):
    """A model whose output depends on what its former calls have left."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("memory", torch.zeros(8))
        self.state: Any = None
        self.states: list[Tensor] = []
        self.position = 0
        self.cache = Cache()
        self.generator = torch.Generator().manual_seed(0)

    def past(self, y: Tensor) -> Tensor:
        kind, now = self.kind, y.mean(0).detach()
        zero = torch.zeros_like(now)
        if kind == "buffer":
            old = self.memory.clone()
            self.memory.mul_(0.5).add_(now)
        elif kind == "new buffer":
            old = getattr(self, "late", zero)
            self.register_buffer("late", now)
        elif kind == "attribute":
            old, self.state = zero if self.state is None else self.state, now
        elif kind == "list":
            old = sum(self.states, zero)
            self.states.append(now)
        elif kind == "counter":
            old = zero + self.position
            self.position += 1
        elif kind == "record":
            old = sum((one.keys for one in self.cache.layers), zero)
            self.cache.layers.append(SimpleNamespace(keys=now))
        elif kind == "statistics":
            self.norm.train()
            old = self.norm.running_mean.clone()
            self.norm(y)
        elif kind == "generator":
            old = torch.rand(8, generator=self.generator)
        else:
            old = torch.rand(8) * random.random() * float(np.random.rand())  # noqa: NPY002
        return old

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.second(y + self.past(y))


def built(kind: str) -> Stateful:
    torch.manual_seed(0)
    return Stateful(kind).train()


def data() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 8, generator=generator) for _ in range(2)]


def holds(model: Stateful) -> Any:
    """Return what a model holds beside its layers, and the states of all generators."""
    kept = [*model.states, *(one.keys for one in model.cache.layers)]
    numbers = np.random.get_state()  # noqa: NPY002
    return (
        {name: tensor.tolist() for name, tensor in model.named_buffers()},
        {name: module.training for name, module in model.named_modules()},
        [len(module._forward_hooks) for module in model.modules()],
        (None if model.state is None else model.state.tolist(), [one.tolist() for one in kept]),
        (model.position, model.generator.get_state().tolist()),
        (torch.get_rng_state().tolist(), random.getstate(), numbers[1].tolist(), numbers[2]),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", ["layer", "output"])
def test_each_call_that_is_measured_starts_as_the_float_call_did(kind: str, of: str) -> None:
    model = built(kind)
    model(data()[0])
    before = holds(model)
    found = baraquant.sensitivity(model, [W8A8(), W4A16(8)], data(), of=of, progress=False)
    assert holds(model) == before
    again = baraquant.sensitivity(model, [W4A16(8), W8A8()], data(), of=of, progress=False)
    for one, other in zip(found.layers, again.layers, strict=True):
        assert one.errors == other.errors


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("position", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.position += 1
        return super().forward(x * self.position)


def test_a_layer_with_state_of_its_own() -> None:
    model = nn.Sequential(Counting(), nn.Linear(8, 8))
    found = baraquant.sensitivity(model, [W8A8()], data(), progress=False)
    assert found.layers[0].path == "0" and found.layers[0].errors["W8A8"] < 1e-3
    assert model[0].position == 0


CALLS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "static": lambda model, xs: baraquant.quantize_(model, W8A8Static(), calibration=xs),
    "smoothed": lambda model, xs: baraquant.quantize_(model, SmoothQuant(0.5), calibration=xs),
    "AWQ": lambda model, xs: baraquant.quantize_(model, AWQ(W4A16(8)), calibration=xs),
    "GPTQ": lambda model, xs: baraquant.quantize_(model, GPTQ(W4A16(8)), calibration=xs),
    "prepared": lambda model, xs: prepare_(model, W8A8Static(), calibration=xs),
    "measured": lambda model, xs: baraquant.sensitivity(model, [W8A8()], xs, of="output"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calibration_leaves_the_state(kind: str, call: Any) -> None:
    model = built(kind)
    model(data()[0])
    before = holds(model)
    call(model, data())
    names = {name for name, _ in model.named_buffers() if not name.startswith(("first", "second"))}
    after = holds(model)
    assert {name: after[0][name] for name in names} == before[0]
    assert after[3:] == before[3:]
    assert all(module.training for module in model.modules() if module is not model.norm)


@pytest.mark.parametrize("of", ["layer", "output"])
def test_so_does_a_run_that_fails(of: str) -> None:
    model = built("buffer")
    before = holds(model)
    with pytest.raises(RuntimeError):
        baraquant.sensitivity(model, [W8A8()], [*data(), torch.ones(3, 7)], of=of, progress=False)
    assert holds(model) == before


class Divides(nn.Module):
    """It divides its weight once, in its first call in evaluation, and remembers that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.is_divided = nn.Linear(8, 8), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_divided:
            with torch.no_grad():
                self.layer.weight.div_(2)
            self.is_divided = True
        return self.layer(x)


def test_attributes_stay_that_tell_of_changed_parameters() -> None:
    model = Divides()
    wanted = copy.deepcopy(model)(data()[0])
    baraquant.sensitivity(model, [W8A8()], data(), of="output", progress=False)
    assert model.is_divided and torch.equal(model(data()[0]), wanted)
