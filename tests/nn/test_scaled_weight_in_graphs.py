# SPDX-License-Identifier: BSD-3-Clause
"""A model that writes into a layer's weight in its first evaluation, which a graph is made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant.qat import prepare_

WRITES: dict[str, Callable[[Tensor], object]] = {
    "div_": lambda w: w.div_(4),
    "mul_ of data": lambda w: w.data.mul_(0.25),
    "*=": lambda w: operator.imul(w, 0.25),
    "copy_": lambda w: w.copy_(w / 4),
    "a row": lambda w: w[0].div_(4),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
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
    make, x = LAYERS[layer]
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
@pytest.mark.parametrize("layer", LAYERS)
def test_evaluated_once_before_it_is_right(layer: str, graph: str, form: str) -> None:
    model, x = rescaling(layer, form, "div_")
    before = model.child(x)
    wanted = model(x)
    assert torch.equal(wanted, before / 4)
    assert torch.equal(GRAPHS[graph](model, x), wanted)


class Reader(nn.Module):
    """It computes with the weight of a child, and writes into what it computed."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Tensor:
        weight = self.child.weight
        y = nn.functional.linear(x.to(weight.dtype), weight, weight[0])
        y += weight.T.sum(0)
        return (y / weight.shape[0]).add_(weight[:3] @ weight.detach())


@pytest.mark.parametrize("form", ["prepared", "quantized"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_reading_has_the_same_bits(graph: str, form: str) -> None:
    make, x = LAYERS["linear"]
    torch.manual_seed(0)
    model = Reader(make())
    if form == "prepared":
        prepare_(model, baraquant.W8A8(), progress=False)
    else:
        baraquant.quantize_(model, baraquant.W8A8(), progress=False)
    model.eval()
    with torch.no_grad():
        result = GRAPHS[graph](model, x)
        assert torch.equal(result, model(x)) and type(result) is Tensor
