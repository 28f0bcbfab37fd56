# SPDX-License-Identifier: BSD-3-Clause
"""What a model keeps of a layer beside its registration, and what a user has put into a layer."""

import collections
import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import AWQ, GPTQ, W4A8, W4A16, W8A8, SmoothQuant

Frozen = make_dataclass("Frozen", ["layer"], frozen=True)
Slotted = make_dataclass("Slotted", ["layer"], slots=True)


def itself(held: Any) -> Any:
    return held


# How a model keeps a layer, and how it finds what it calls in what it has kept.
KEPT: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any], Callable[[Tensor], Tensor]]]] = {
    "forward": (lambda layer: layer.forward, itself),
    "call": (lambda layer: layer.__call__, itself),
    "partial": (functools.partial, itself),
    "partial of a method": (lambda layer: functools.partial(layer.forward), itself),
    "ordered": (lambda layer: collections.OrderedDict(f=layer), lambda held: held["f"]),
    "key": (lambda layer: {layer: 1}, lambda held: next(iter(held))),
    "set": (lambda layer: {layer}, lambda held: next(iter(held))),
    "frozenset": (lambda layer: frozenset([layer]), lambda held: next(iter(held))),
    "deque": (lambda layer: collections.deque([layer]), lambda held: held[0]),
    "nested": (lambda layer: [({"f": (layer.forward,)},)], lambda held: held[0][0]["f"][0]),
    "namespace": (lambda layer: types.SimpleNamespace(f=layer), lambda held: held.f),
    "dataclass": (Frozen, lambda held: held.layer),
    "slots": (Slotted, lambda held: held.layer),
    "closure": (lambda layer: lambda x: layer(x), itself),
    "default": (lambda layer: lambda x, layer=layer: layer(x), itself),
    "proxy": (lambda layer: [weakref.proxy(layer)], lambda held: held[0]),
    "ref": (weakref.ref, lambda held: held()),
    "weak set": (lambda layer: weakref.WeakSet([layer]), lambda held: next(iter(held))),
    "get": (lambda layer: {"f": layer}.get, lambda held: held("f")),
}


class Keeps(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        keep, self._find = KEPT[name]
        self.kept = keep(self.fc)

    def forward(self, x: Tensor) -> Tensor:
        return self._find(self.kept)(x)


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
def test_what_a_model_keeps_of_a_layer_is_replaced(name: str, tool: Any) -> None:
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


def test_the_fused_ops_follow_references_too() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
    model.norm_of = model[1].forward
    baraquant.use_fused_ops_(model)
    assert model.norm_of.__self__ is model[1]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(32, 32),
    "conv": lambda: nn.Conv1d(32, 32, 1),
    "transposed": lambda: nn.ConvTranspose1d(32, 32, 1),
    "embedding": lambda: nn.Embedding(32, 32),
}


def _hook(module: Any, args: Any, output: Tensor) -> Tensor:
    return output * module.mask * module.gain + module.scalar + module.bend(module.gain)[0]


def model_of(layer: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(LAYERS[layer](), nn.Linear(32, 32)).eval()
    first = model[0]
    first.register_buffer("mask", torch.full((32,), 0.5))
    first.register_buffer("scalar", torch.tensor(0.25), persistent=False)
    first.register_buffer("absent", None)
    first.gain = nn.Parameter(torch.full((32,), 2.0))
    first.bend = nn.Linear(32, 1)
    first.tag, first.next = "first", [model[1]]
    first.register_forward_hook(_hook)
    return model


def input_of(layer: str) -> Tensor:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    if layer == "embedding":
        return x.argsort(dim=1)[:, :8]
    return x if layer == "linear" else x.T.contiguous()[None].repeat(2, 1, 8)


SCHEMES = W8A8(), W4A16(16), W4A8(16), SmoothQuant(), AWQ(W4A16(16)), GPTQ(W4A16(16))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("tool", ["prepare_", "convert_", *SCHEMES], ids=str)
def test_carried_over(layer: str, tool: Any, tmp_path: Path) -> None:
    model, x = model_of(layer), input_of(layer)
    before, gain, bend = model(x), model[0].gain, model[0].bend
    if isinstance(tool, str):
        _convert(model) if tool == "convert_" else _prepare(model)
    else:
        baraquant.quantize_(model, tool, calibration=[x], progress=False)
    first = model[0]
    assert type(first) is not LAYERS[layer] and not type(first).__module__.startswith("torch.")
    assert first.gain is gain and first.bend is bend and first.absent is None
    assert first.tag == "first" and first.next[0] is model[1]
    assert "0.mask" in model.state_dict() and "0.scalar" not in model.state_dict()
    assert (model(x) - before).norm() < 0.5 * before.norm()
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    if tool != "prepare_":
        model[0].gain.data.fill_(3.0)
        baraquant.save(model, tmp_path / "model")
        loaded = baraquant.load_(model_of(layer), tmp_path / "model")
        assert torch.equal(loaded(x), model(x))
        assert not any(module.training for module in loaded.modules())


@pytest.mark.parametrize("name", ["weight_scale", "qweight", "input_fake_quant"])
def test_a_name_of_the_new_layer(name: str) -> None:
    """It is refused with the layer's path, and the model is as it was."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    model[0].register_buffer(name, torch.ones(32))
    with pytest.raises(ValueError, match=rf"0: expected a layer without '{name}'"):
        _convert(model)
        baraquant.quantize_(model, W8A8())
    assert torch.equal(getattr(model[0], name), torch.ones(32))


def test_a_layer_registered_in_another_is_the_new_one() -> None:
    """As long as it is replaced at all, all places get the same one."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].register_module("other", model[0])
    baraquant.quantize_(model, W8A8())
    assert model[1].other is model[0] and isinstance(model[0], baraquant.nn.QuantizedLinear)
