# SPDX-License-Identifier: BSD-3-Clause
"""Parents that read a child's weight, under PyTorch's tools: the same numbers, or a clear error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baraquant.qat import convert_, prepare_
from tests.nn.test_quantizer_modules import saved
from tests.support.models.one_layer import (
    TRAINED,
    converted,
    inputs,
    prepared,
    served,
)


class Functional(nn.Module):
    """Computes with its child's weight and bias, not with the child."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(F.linear(x.to(self.a.weight.dtype), self.a.weight, self.a.bias)))


class Rows(nn.Module):
    """An embedding whose rows are indexed, and whose table is the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.h = nn.Embedding(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        i = x.argmax(-1)
        h = self.h(self.e.weight[i].to(x.dtype) + self.e(i))
        return h @ self.e.weight.transpose(0, 1)


class Kernel(nn.Module):
    """A convolution whose kernel is squeezed and used by hand, as state space models do."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.p = nn.Conv1d(16, 16, 3, groups=16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        window = F.pad(x, (0, 0, 2, 0)).unfold(0, 3, 1)
        kernel = self.c.weight.squeeze(1)
        bias = self.c.bias
        assert bias is not None
        return self.p(((window * kernel).sum(-1) + bias).to(x.dtype))


class Convolved(nn.Module):
    """The dtype of the input follows the projection's, as in ViT and CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.h = nn.Conv2d(1, 8, 4, stride=4), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 1, 4, 4).to(dtype=self.c.weight.dtype, device=self.c.weight.device)
        return self.h(self.c(image).flatten(1))


PARENTS: dict[str, type[nn.Module]] = {
    "functional": Functional,
    "rows": Rows,
    "kernel": Kernel,
    "convolved": Convolved,
}


# The layers that a parent reads, and never calls.
ONLY_READ = {"functional": "a", "kernel": "c"}


def parent(name: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return PARENTS[name]().to(**more).eval() if more else PARENTS[name]().eval()


X = inputs("linear", seed=9)


@pytest.mark.parametrize("scheme", TRAINED)
@pytest.mark.parametrize("name", PARENTS)
def test_evaluated_is_served(name: str, scheme: str) -> None:
    """Bit for bit, where the parent computes with the weight of a child too."""
    model = prepared(parent(name), scheme, X)
    evaluated = model(X)
    report = convert_(model)
    if name in ONLY_READ and scheme in ("static", "learned"):
        # Nothing calls this layer: its input has no range, and stays floating.
        assert report.changed[ONLY_READ[name]].endswith("as training never called it")
    assert torch.equal(model(X), evaluated)
    wanted = parent(name)(X)
    limit = 0.6 if "3" in scheme else 0.4 if "4" in scheme or "learned" in scheme else 0.05
    assert (evaluated - wanted).norm() < limit * wanted.norm()


def rows_of(name: str) -> Any:
    """Any number of them, where the parent allows it."""
    return None if name == "kernel" else ({0: torch.export.Dim("rows")},)


FORMS: dict[str, Callable[[nn.Module, str], Any]] = {
    **{
        backend: lambda model, name, b=backend: torch.compile(model, fullgraph=True, backend=b)
        for backend in ("eager", "aot_eager")
    },
    **{
        f"export, {strict=}": lambda model, name, strict=strict: torch.export.export(
            model, (X,), dynamic_shapes=rows_of(name), strict=strict
        ).module()
        for strict in (True, False)
    },
    "trace": lambda model, name: torch.jit.trace(model, (X,)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.pairs
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", ["w8a8", "static", "w4_channel"])
@pytest.mark.parametrize("name", PARENTS)
def test_in_every_kind_of_graph(name: str, scheme: str, form: str) -> None:
    """A graph of a prepared model in evaluation, and of a converted one."""
    if name in ONLY_READ and scheme == "static":
        scheme = "w4a8"  # a layer that is never called has no static range
    ready = prepared(parent(name), scheme, X)
    for model in (ready, converted(ready)):
        torch._dynamo.reset()
        with torch.no_grad():
            graph = FORMS[form](model, name)
            for x in (X, X[:3]) if name != "kernel" or "export" not in form else (X,):
                torch.testing.assert_close(graph(x), model(x), rtol=1e-5, atol=1e-6)


def test_compiled_training_of_a_reading_parent() -> None:
    """In training a reader gets the parameter: its gradient is whole, compiled too."""
    torch._dynamo.reset()
    model = parent("rows")
    prepare_(model, TRAINED["w8a8"])
    model.train()
    other = copy.deepcopy(model)
    model(X).square().mean().backward()
    torch.compile(other, fullgraph=True, backend="aot_eager")(X).square().mean().backward()
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


@pytest.mark.parametrize("scheme", ["w8a8", "w4_channel"])
@pytest.mark.parametrize("name", PARENTS)
def test_an_exported_program_holds_integers(name: str, scheme: str) -> None:
    """And not a floating copy of the weight that is read; stored, it is the same."""
    model = converted(prepared(parent(name), scheme, X))
    program = torch.export.export(model, (X,), dynamic_shapes=rows_of(name))
    held = [*program.state_dict.values(), *program.constants.values()]
    held = [t for t in held if isinstance(t, Tensor) and t.dim() >= 2]
    assert held and {t.dtype for t in held} <= {torch.int8, torch.uint8}
    loaded = torch.export.load(saved(torch.export.save, program)).module()
    torch.testing.assert_close(loaded(X), model(X), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("scheme", ["w8a8", "w4_channel"])
@pytest.mark.parametrize("name", PARENTS)
def test_scripted(name: str, scheme: str) -> None:
    """The numbers, or an error: a scripted parent never computes with raw integers."""
    model = converted(prepared(parent(name), scheme, X))
    try:
        scripted = torch.jit.script(model)
    except Exception as error:
        assert "weight" in str(error), error
        return
    for one in (scripted, torch.jit.load(saved(torch.jit.save, scripted))):
        torch.testing.assert_close(one(X), model(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", ["linear", "embedding", "conv1d"])
def test_vmap(layer: str) -> None:
    """Over rows of the weight, and over inputs of a parent that computes with it."""
    child = served(layer, "w8a8").child
    rows = torch.tensor([0, 3, 5])
    got = torch.vmap(lambda i: child.weight.index_select(0, i[None])[0])(rows)
    assert torch.equal(got, child.weight[rows])
    if layer == "linear":
        x = inputs("linear")
        got = torch.vmap(lambda v: F.linear(v, child.weight, child.bias))(x)
        torch.testing.assert_close(got, F.linear(x, child.weight, child.bias))
        batched = torch.vmap(lambda w: w.sum())(child.weight)
        torch.testing.assert_close(batched, child.weight.sum(1))


@pytest.mark.parametrize("name", PARENTS)
def test_functional_call(name: str) -> None:
    """`torch.func.functional_call` with the state of another model takes its integers."""
    model = converted(prepared(parent(name), "w8a8", X))
    torch.manual_seed(1)
    other = converted(prepared(PARENTS[name]().eval(), "w8a8", X))
    state = {n: t.detach() for n, t in other.state_dict().items()}
    got = torch.func.functional_call(model, state, (X,))
    assert torch.equal(got, other(X)) and not torch.equal(got, model(X))


def test_the_gradient_of_a_reading_parent_reaches_the_input() -> None:
    """`F.linear(x, child.weight)` of a served child: dx = dy @ W, of the numbers it reads."""
    child = served("linear", "w8a8").child
    x = inputs("linear").requires_grad_()
    dy = torch.randn(5, 8)
    F.linear(x, child.weight, child.bias).backward(dy)
    torch.testing.assert_close(x.grad, dy @ child.weight)
