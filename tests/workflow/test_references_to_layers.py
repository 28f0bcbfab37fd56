# SPDX-License-Identifier: BSD-3-Clause
"""What a model keeps of a layer beside its registration, and what a user has put into a layer."""

import collections
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant


@dataclass(frozen=True)
class Frozen:
    layer: nn.Module


class Slotted:
    __slots__ = ("layer",)

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer


def _closure(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x)


def _default(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x, layer=layer: layer(x)


def _call(value: Any, x: Tensor) -> Tensor:
    result: Tensor = value(x)
    return result


# How a model keeps a layer, and how it calls what it has kept.
KEPT: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, Tensor], Tensor]]] = {
    "forward": (lambda layer: layer.forward, _call),
    "call": (lambda layer: layer.__call__, _call),
    "partial": (functools.partial, _call),
    "partial of a method": (lambda layer: functools.partial(layer.forward), _call),
    "ordered": (lambda layer: collections.OrderedDict(f=layer), lambda held, x: held["f"](x)),
    "key": (lambda layer: {layer: 1}, lambda held, x: next(iter(held))(x)),
    "set": (lambda layer: {layer}, lambda held, x: next(iter(held))(x)),
    "frozenset": (lambda layer: frozenset([layer]), lambda held, x: next(iter(held))(x)),
    "deque": (lambda layer: collections.deque([layer]), lambda held, x: held[0](x)),
    "nested": (lambda layer: [({"f": (layer.forward,)},)], lambda held, x: held[0][0]["f"][0](x)),
    "namespace": (lambda layer: types.SimpleNamespace(f=layer), lambda held, x: held.f(x)),
    "dataclass": (Frozen, lambda held, x: held.layer(x)),
    "slots": (Slotted, lambda held, x: held.layer(x)),
    "closure": (_closure, _call),
    "default": (_default, _call),
    "proxy": (lambda layer: [weakref.proxy(layer)], lambda held, x: held[0](x)),
    "ref": (weakref.ref, lambda held, x: held()(x)),
    "weak set": (lambda layer: weakref.WeakSet([layer]), lambda held, x: next(iter(held))(x)),
    "get": (lambda layer: {"f": layer}.get, lambda held, x: held("f")(x)),
}


class Keeps(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        keep, self._call_kept = KEPT[name]
        self.kept = keep(self.fc)

    def forward(self, x: Tensor) -> Tensor:
        return self._call_kept(self.kept, x)


def _quantize(model: nn.Module) -> None:
    baraquant.quantize_(model, baraquant.W8A8())


def _prepare(model: nn.Module) -> None:
    baraquant.qat.prepare_(model, baraquant.W8A8())


def _convert(model: nn.Module) -> None:
    _prepare(model)
    baraquant.qat.convert_(model)


def _load(model: nn.Module) -> None:
    served = nn.Module()
    served.fc = nn.Linear(16, 16)
    _quantize(served)
    with TemporaryDirectory() as folder:
        baraquant.save(served, Path(folder) / "file")
        baraquant.load_(model, Path(folder) / "file")


@pytest.mark.parametrize("tool", [_quantize, _prepare, _convert, _load])
@pytest.mark.parametrize("name", KEPT)
def test_what_a_model_keeps_of_a_layer_is_replaced(
    name: str, tool: Callable[[nn.Module], None]
) -> None:
    model = Keeps(name).eval()
    x = torch.randn(4, 16)
    before = model(x)
    tool(model)
    assert torch.equal(model(x), model.fc(x))
    assert not torch.equal(model(x), before)


def test_a_hook_that_captures_a_layer_calls_the_new_one() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).eval()
    first = model[0]
    model[1].register_forward_hook(lambda module, args, output: output + first(args[0]))
    x = torch.randn(4, 16)
    _quantize(model)
    assert torch.equal(model(x), model[1].forward(model[0](x)) + model[0](model[0](x)))


def _generator(layer: nn.Module) -> Iterator[Tensor]:
    while True:
        yield layer(torch.ones(1, 16))


def test_an_error_leaves_containers_alone() -> None:
    model = Keeps("nested")
    before = model.kept
    with pytest.raises(ValueError, match="calibration data"):
        baraquant.quantize_(model, baraquant.W8A8Static())
    assert model.kept is before and model.kept[0][0]["f"][0].__self__ is model.fc


def test_what_cannot_be_replaced_is_named_in_the_report() -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    model.steps = _generator(model[0])
    next(model.steps)
    report = baraquant.quantize_(model, baraquant.W8A8())
    assert report.changed["0"] == "QuantizedLinear; steps still refers to the layer before"


@pytest.mark.parametrize("tool", [_quantize, _prepare, _convert])
@pytest.mark.parametrize("layer", [nn.Linear(16, 16), nn.Conv1d(16, 16, 1), nn.Embedding(16, 16)])
def test_attributes_of_the_user_are_copied(
    layer: nn.Module, tool: Callable[[nn.Module], None]
) -> None:
    model = nn.Sequential(layer, nn.Linear(16, 16))
    model[0].tag, model[0].next = "first", [model[1]]
    tool(model)
    assert model[0].tag == "first"
    assert model[0].next[0] is model[1]


def test_a_forward_that_was_replaced_stays() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Conv1d(16, 16, 1))
    model[0].forward = lambda x: x
    model[2]._conv_forward = lambda x, weight, bias: x
    report = baraquant.quantize_(model, baraquant.W8A8())
    reason = "its forward was replaced by another"
    assert report.left_out == {"0": reason, "2": reason}


def test_the_fused_ops_follow_references_too() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
    model.norm_of = model[1].forward
    baraquant.use_fused_ops_(model)
    assert model.norm_of.__self__ is model[1]
