# SPDX-License-Identifier: BSD-3-Clause
"""`layer.weight.div_(4)` in evaluation, as RWKV has it: the layer follows, a graph refuses it."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_
from tests.support.models.one_layer import (
    AFTERWARDS,
    PAIRS,
    converted,
    holder,
    inputs,
    quantized,
    trained,
)
from tests.support.optional_packages import package

PRODUCTS: dict[str, Callable[[Tensor], object]] = {
    "div_": lambda w: w.div_(4),
    "mul_": lambda w: w.mul_(0.25),
    "tensor": lambda w: w.divide_(torch.tensor(4.0)),
    "data": lambda w: w.data.mul_(0.25),
    "detach": lambda w: w.detach().true_divide_(4.0),
}
FIXED = ("learned", "observed")  # scales that do not follow


def without_bias(model: Any) -> nn.Module:
    if getattr(model.child, "bias", None) is not None:
        nn.init.zeros_(model.child.bias)
    return model


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_a_served_layer(layer: str, scheme: str, product: str) -> None:
    """By a power of two the output has the bits of the exact quotient; the integers stay."""
    model, x = without_bias(converted(trained(layer, scheme))), inputs(layer)
    with torch.no_grad():
        wanted, weight = model(x) / 4, model.child.weight.clone() / 4
        integers = model.child.qweight.clone()
        PRODUCTS[product](model.child.weight)
        assert torch.equal(model(x), wanted) and torch.equal(model.child.weight, weight)
        model.child.weight *= 4
        model.child.weight.data /= 4
        assert torch.equal(model(x), wanted)
    assert torch.equal(model.child.qweight, integers)


@pytest.mark.parametrize("scheme", AFTERWARDS)
def test_after_quantize(scheme: str) -> None:
    model = without_bias(quantized(without_bias(holder("linear")), scheme, x := inputs("linear")))
    wanted = model(x) * 8
    model.child.weight.mul_(8)
    assert torch.equal(model(x), wanted)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("layer", "scheme"), [p for p in PAIRS if not p[1].startswith(FIXED)])
def test_a_prepared_layer(layer: str, scheme: str, product: str) -> None:
    """The parameter is changed, which training goes on with, and conversion keeps."""
    model, x = without_bias(trained(layer, scheme)), inputs(layer)
    parameter = model.child.float_weight()
    with torch.no_grad():
        wanted, weight = model(x) / 4, parameter.clone() / 4
        PRODUCTS[product](model.child.weight)
        assert torch.equal(model(x), wanted) and torch.equal(parameter, weight)
        assert torch.equal(converted(model)(x), wanted)
        model.child.weight *= 4
        model.child.weight.data /= 2
        assert model.child._parameters["weight"] is parameter and torch.equal(parameter, 2 * weight)


@pytest.mark.parametrize("scheme", ["learned", "learned_asymmetric", "observed"])
def test_a_scale_that_does_not_follow_is_an_error(scheme: str) -> None:
    child = trained("linear", scheme).child
    before = child.float_weight().detach().clone()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"would not follow.*rescale_every = 0"):
        child.weight.div_(4)
    assert torch.equal(child.float_weight(), before)


@pytest.mark.parametrize("number", [0, -1.0, float("inf"), float("nan"), torch.tensor([[-2.0]])])
def test_only_positive_numbers(number: Any) -> None:
    for model in (trained("linear", "w8a8"), converted(trained("linear", "w8a8"))):
        before = model.child.weight.clone()
        with torch.no_grad(), pytest.raises(RuntimeError, match="by a positive number, but got"):
            model.child.weight.mul_(number)
        with torch.no_grad(), pytest.raises(RuntimeError, match="read only"):
            model.child.weight.mul_(torch.ones(8, 1))
        assert torch.equal(model.child.weight, before)


def test_a_parameter_that_trains_refuses_it_as_in_pytorch() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        trained("linear", "w8a8").child.weight.div_(4)


def test_tied_weights_stay_tied() -> None:
    model = nn.ModuleDict({"rows": nn.Embedding(8, 8), "head": nn.Linear(8, 8, bias=False)})
    model["head"].weight = model["rows"].weight
    baraquant.quantize_(model, W8A8())
    model["rows"].weight.div_(2)
    assert torch.equal(model["rows"].weight, model["head"].weight)


@pytest.mark.parametrize(
    "scheme", [W8A8(), W8A8(symmetric=False), baraquant.W4A8(16), baraquant.W4A16(16)], ids=str
)
def test_rwkv(scheme: Any) -> None:
    """A model that rescales itself in its first evaluation, and back in training."""
    package("transformers")
    from transformers import RwkvConfig, RwkvForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 4}
    config = RwkvConfig(vocab_size=50, rescale_every=2, context_length=32, **sizes)
    model, x = RwkvForCausalLM(config), torch.randint(0, 50, (1, 9))
    plain = copy.deepcopy(model)
    plain.config.rescale_every = 0
    with torch.no_grad():
        wanted = copy.deepcopy(model).eval()(x).logits
        unscaled = copy.deepcopy(plain).eval()(x).logits
        baraquant.quantize_(plain, scheme)
        error = (plain.eval()(x).logits - unscaled).norm() / unscaled.norm()
        served, prepared = copy.deepcopy(model), copy.deepcopy(model)
        baraquant.quantize_(served, scheme)
        prepare_(prepared, scheme)
        results = []
        for one in (served, prepared):
            results += [one.eval()(x).logits]
            one.train()(x)
            results += [one.eval()(x).logits]
        convert_(prepared)
        results += [prepared(x).logits]
    assert torch.equal(results[0], results[1]) and torch.equal(results[2], results[3])
    assert torch.equal(results[3], results[4])
    assert (results[0] - wanted).norm() / wanted.norm() < 2 * error  # without a division: 10 × it
    if scheme == W8A8():
        assert torch.equal(results[0], results[2])
    unscaled = prepare_(plain := copy.deepcopy(model), QuantConfig(TensorConfig(8, learned=True)))
    plain.config.rescale_every = 0  # as the error says
    assert unscaled.changed and plain.eval()(x).logits.isfinite().all()


# --- while a graph is made ------------------------------------------------------------------------

WRITES: dict[str, Callable[[Tensor], object]] = {
    "div_": lambda w: w.div_(4),
    "mul_ of data": lambda w: w.data.mul_(0.25),
    "*=": lambda w: operator.imul(w, 0.25),
    "copy_": lambda w: w.copy_(w / 4),
    "a row": lambda w: w[0].div_(4),
}
GRAPH_LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(8, 8, bias=False), torch.linspace(-1, 1, 24).reshape(3, 8)),
    "conv": (lambda: nn.Conv1d(8, 8, 1, bias=False), torch.linspace(-1, 1, 24).reshape(1, 8, 3)),
    "embedding": (lambda: nn.Embedding(8, 8), torch.arange(3)),
}


class Rescaling(nn.Module):
    """It writes once, as RWKV does."""

    def __init__(self, child: nn.Module, write: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.child, self.write, self.is_done = child, write, False

    def forward(self, x: Tensor) -> Any:
        if not self.is_done:
            with torch.no_grad():
                self.write(self.child.weight)
            self.is_done = True
        return self.child(x)


def rescaling(layer: str, form: str, write: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, x = GRAPH_LAYERS[layer]
    model = Rescaling(make(), WRITES[write]).eval()
    if form == "prepared":
        prepare_(model, baraquant.W8A8(), progress=False)
    else:
        baraquant.quantize_(model, baraquant.W8A8(), progress=False)
    return model.eval(), x


def compiled(model: nn.Module, x: Tensor) -> Any:
    torch.compiler.reset()
    return torch.compile(model, backend="eager")(x)


GRAPHS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "compile": compiled,
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True).module()(x),
    "export": lambda model, x: torch.export.export(model, (x,), strict=False).module()(x),
    "trace": lambda model, x: torch.jit.trace(model, (x,))(x),
}


@pytest.mark.parametrize("form", ["prepared", "quantized"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("layer", "write"),
    [*(("linear", write) for write in WRITES), ("conv", "div_"), ("embedding", "div_")],
)
def test_a_write_is_refused(layer: str, write: str, graph: str, form: str) -> None:
    model, x = rescaling(layer, form, write)
    # PyTorch has its own error for `.data` in an export without Dynamo, and Dynamo wraps errors.
    with pytest.raises(Exception, match=r"read only while a graph is made|fake tensor"):
        GRAPHS[graph](model, x)


@pytest.mark.parametrize("form", ["prepared", "quantized"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", GRAPH_LAYERS)
def test_evaluated_once_before_it_is_right(layer: str, graph: str, form: str) -> None:
    model, x = rescaling(layer, form, "div_")
    before = model.child(x)
    wanted = model(x)
    assert torch.equal(wanted, before / 4)
    assert torch.equal(GRAPHS[graph](model, x), wanted)
