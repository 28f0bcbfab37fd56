# SPDX-License-Identifier: BSD-3-Clause
"""Parents that read a child's weight, under PyTorch's tools: the same numbers, or a clear error.

Parents that write it, `layer.weight.div_(4)` in evaluation, as RWKV does: the layer follows, and a
graph refuses it.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baraquant import W4A8, W4A16, W8A8, quantize_
from baraquant.qat import convert_, prepare_
from tests.nn.test_quantizer_modules import saved
from tests.support.models import one_layer
from tests.support.models.one_layer import PAIRS, TRAINED, converted, inputs, prepared, trained
from tests.support.optional_packages import package
from tests.support.schemes import described


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
        return self.p(((window * kernel).sum(-1) + self.c.bias).to(x.dtype))


class Convolved(nn.Module):
    """The dtype of the input follows the projection's, as in ViT and CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.h = nn.Conv2d(1, 8, 4, stride=4), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 1, 4, 4).to(dtype=self.c.weight.dtype, device=self.c.weight.device)
        return self.h(self.c(image).flatten(1))


PARENTS = {"functional": Functional, "rows": Rows, "kernel": Kernel, "convolved": Convolved}
# The layers that a parent reads, and never calls.
ONLY_READ = {"functional": "a", "kernel": "c"}


def parent(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return PARENTS[name]().eval()


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
    child = one_layer.served(layer, "w8a8").child
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
    other = converted(prepared(parent(name, seed=1), "w8a8", X))
    state = {n: t.detach() for n, t in other.state_dict().items()}
    got = torch.func.functional_call(model, state, (X,))
    assert torch.equal(got, other(X)) and not torch.equal(got, model(X))


def test_the_gradient_of_a_reading_parent_reaches_the_input() -> None:
    """`F.linear(x, child.weight)` of a served child: dx = dy @ W, of the numbers it reads."""
    child = one_layer.served("linear", "w8a8").child
    x = inputs("linear").requires_grad_()
    dy = torch.randn(5, 8)
    F.linear(x, child.weight, child.bias).backward(dy)
    torch.testing.assert_close(x.grad, dy @ child.weight)


# --- who writes it -------------------------------------------------------------------------------

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
def test_a_product_with_a_served_weight(layer: str, scheme: str, product: str) -> None:
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


@pytest.mark.parametrize("scheme", one_layer.AFTERWARDS)
def test_a_product_after_quantize(scheme: str) -> None:
    model, x = without_bias(one_layer.holder("linear")), inputs("linear")
    model = without_bias(one_layer.quantized(model, scheme, x))
    wanted = model(x) * 8
    model.child.weight.mul_(8)
    assert torch.equal(model(x), wanted)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("layer", "scheme"), [p for p in PAIRS if not p[1].startswith(FIXED)])
def test_a_product_with_a_prepared_weight(layer: str, scheme: str, product: str) -> None:
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
    quantize_(model, W8A8())
    model["rows"].weight.div_(2)
    assert torch.equal(model["rows"].weight, model["head"].weight)


@pytest.mark.parametrize("scheme", [W8A8(), W8A8(False), W4A8(16), W4A16(16)], ids=str)
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
        quantize_(plain, scheme)
        error = (plain.eval()(x).logits - unscaled).norm() / unscaled.norm()
        served, prepared = copy.deepcopy(model), copy.deepcopy(model)
        quantize_(served, scheme)
        prepare_(prepared, scheme)
        results = []
        for one in (served, prepared):
            results.append(one.eval()(x).logits)
            one.train()(x)
            results.append(one.eval()(x).logits)
        convert_(prepared)
        results += [prepared(x).logits]
    assert torch.equal(results[0], results[1]) and torch.equal(results[2], results[3])
    assert torch.equal(results[3], results[4])
    assert (results[0] - wanted).norm() / wanted.norm() < 2 * error  # without a division: 10 × it
    if scheme == W8A8():
        assert torch.equal(results[0], results[2])
    unscaled = prepare_(plain := copy.deepcopy(model), described("int8 learned"))
    plain.config.rescale_every = 0  # as the error says
    assert unscaled.changed and plain.eval()(x).logits.isfinite().all()


# --- while a graph is made -----------------------------------------------------------------------

WRITES: dict[str, Callable[[Tensor], object]] = {
    "div_": lambda w: w.div_(4),
    "mul_ of data": lambda w: w.data.mul_(0.25),
    "*=": lambda w: operator.imul(w, 0.25),
    "copy_": lambda w: w.copy_(w / 4),
    "a row": lambda w: w[0].div_(4),
}
WRITTEN = [*(("linear", write) for write in WRITES), ("conv", "div_"), ("embedding", "div_")]
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
    torch.compiler.reset()
    make, x = GRAPH_LAYERS[layer]
    model = Rescaling(make(), WRITES[write]).eval()
    (prepare_ if form == "prepared" else quantize_)(model, W8A8(), progress=False)
    return model.eval(), x


GRAPHS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "compile": lambda model, x: torch.compile(model, backend="eager")(x),
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True).module()(x),
    "export": lambda model, x: torch.export.export(model, (x,), strict=False).module()(x),
    "trace": lambda model, x: torch.jit.trace(model, (x,))(x),
}


@pytest.mark.parametrize("form", ["prepared", "quantized"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("layer", "write"), WRITTEN)
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
