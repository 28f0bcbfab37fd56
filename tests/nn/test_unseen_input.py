# SPDX-License-Identifier: BSD-3-Clause
"""A prepared layer whose input needs data, in evaluation before it has seen any."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import baraquant
from baraquant import QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_

LAYERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "linear": (lambda: nn.Linear(16, 8), (2, 16)),
    "conv": (lambda: nn.Conv2d(16, 8, 3), (2, 16, 4, 4)),
    "floating conv": (lambda: nn.Conv2d(16, 8, 3, groups=4), (2, 16, 4, 4)),
    "transposed conv": (lambda: nn.ConvTranspose1d(16, 8, 3), (2, 16, 4)),
    "LSTM": (lambda: nn.LSTM(16, 8), (3, 2, 16)),
}
STATIC = TensorConfig(8, "per_tensor", dynamic=False)
SCHEMES = {
    "static": baraquant.W8A8Static(),
    "moving average": QuantConfig(TensorConfig(8), STATIC, observer="moving_average"),
    "weight only": QuantConfig(TensorConfig(8, symmetric=False), STATIC),
    "learned": QuantConfig(
        TensorConfig(8), TensorConfig(8, "per_tensor", dynamic=False, learned=True)
    ),
}
OBSERVED = ["static", "moving average", "weight only"]
UNSEEN = "expected the range of its input to be known, but it has seen no data: run batches in"
by_layer = pytest.mark.parametrize("layer", LAYERS)


def prepared(layer: str, scheme: str = "static") -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[layer]
    torch.manual_seed(0)
    model = nn.Sequential(make())
    prepare_(model, SCHEMES[scheme], progress=False)
    return model, torch.randn(*shape)


def refused(model: nn.Module, x: Tensor) -> None:
    with pytest.raises(ValueError, match=f"FakeQuantize: {UNSEEN}"):
        model.eval()(x)


FORMS: dict[str, Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]] = {
    "eager": lambda model, x: model,
    "no grad": lambda model, x: torch.no_grad()(model.forward),
    "trace": lambda model, x: torch.jit.trace(model, (x,), check_trace=False),
    "compiled": lambda model, x: torch.compile(model, backend="aot_eager"),
    "fullgraph": lambda model, x: torch.compile(model, backend="aot_eager", fullgraph=True),
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True).module(),
}
GRAPHS = ("compiled", "fullgraph", "strict export")


@by_layer
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.pairs
@pytest.mark.cover(("layer", "form"))
def test_evaluation_before_the_first_batch(layer: str, scheme: str, form: str) -> None:
    if scheme == "learned" and form in GRAPHS:
        pytest.skip("a learned scale starts outside of graphs")
    torch._dynamo.reset()
    model, x = prepared(layer, scheme)
    said = "LearnedFakeQuantize: expected" if scheme == "learned" else f"FakeQuantize: {UNSEEN}"
    program = None
    with pytest.raises((ValueError, RuntimeError), match=said):
        program = FORMS[form](model.eval(), x)
        program(x)
    if form == "trace" and scheme != "learned":
        torch.jit.trace(model.train(), (x,), check_trace=False)
    model.train()(x)
    wanted = model.eval()(x)
    got = (FORMS[form](model, x) if program is None else program)(x)
    assert all(map(torch.equal, pytree.tree_leaves(got), pytree.tree_leaves(wanted)))


@by_layer
@pytest.mark.parametrize("scheme", OBSERVED)
def test_the_sentence_is_that_of_conversion(layer: str, scheme: str) -> None:
    """And counts the batches that took no part."""
    for batches in (0, 1):
        model, x = prepared(layer, scheme)
        counted = f"{UNSEEN}.*; 1 batch with a NaN or infinity took no part" if batches else UNSEEN
        for _ in range(batches):
            model(x * float("inf"))
        script = torch.jit.script(copy.deepcopy(model).eval())
        for error, call in ((ValueError, model.eval()), (torch.jit.Error, script)):
            with pytest.raises(error, match=f"FakeQuantize: {counted}"):
                call(x)
        with pytest.raises(ValueError, match=counted):
            convert_(model)


def test_copies_and_states() -> None:
    """A copy knows what its model knew; a state brings what its model knows."""
    unseen, x = prepared("linear")
    blank = copy.deepcopy(unseen.state_dict())
    copied = copy.deepcopy(unseen)
    unseen(x)
    expected = unseen.eval()(x)
    assert torch.equal(copy.deepcopy(unseen)(x), expected)
    refused(copied, x)
    copied.load_state_dict(unseen.state_dict())
    assert torch.equal(copied(x), expected)
    copied.load_state_dict(blank)
    refused(copied, x)


def test_a_module_of_its_own_starts_with_the_scale_1() -> None:
    quantizer = baraquant.nn.FakeQuantize(mode="observed").eval()
    assert torch.equal(quantizer.round(torch.tensor([1.4])), torch.tensor([1.0]))


def test_the_values_are_read_until_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read waits for a GPU."""
    model, x = prepared("linear")
    model(x)
    model.eval()(x)

    def no_read(tensor: Tensor) -> bool:
        raise AssertionError("a value was read")

    monkeypatch.setattr(Tensor, "__bool__", no_read)
    model(x)


@by_layer
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_script_checks_as_it_runs(layer: str, scheme: str) -> None:
    model, x = prepared(layer, scheme)
    said = "LearnedFakeQuantize: expected" if scheme == "learned" else f"FakeQuantize: {UNSEEN}"
    script = torch.jit.script(model)
    with pytest.raises(torch.jit.Error, match=said):
        script.eval()(x)
    script.train()(x)
    assert all(y.isfinite().all() for y in pytree.tree_leaves(script.eval()(x)))


def test_no_graph_of_a_known_range_holds_the_check() -> None:
    model, x = prepared("linear")
    model(x)
    wanted = model.eval()(x)
    traced = torch.jit.trace(model, (x,))
    frozen = torch.jit.freeze(torch.jit.script(copy.deepcopy(model)))
    exported = torch.export.export(model, (x,), strict=True)
    assert "isnan" not in str(traced.inlined_graph) + exported.graph_module.code
    assert torch.equal(traced(x), wanted) and torch.equal(frozen(x), wanted)


def test_a_non_strict_export_has_no_values() -> None:
    """Nor does its graph hold the check: what it returns is NaN."""
    model, x = prepared("linear")
    program = torch.export.export(model.eval(), (x,), strict=False)
    assert program.module()(x).isnan().all()
