# SPDX-License-Identifier: BSD-3-Clause
"""Traced, exported, scripted, frozen layers: made with or without gradients, called with both."""

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import QuantConfig, TensorConfig
from baraquant.workflow.served import served_experts
from tests.nn import expert_models

LAYERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "linear": (lambda: nn.Linear(32, 16), (3, 4, 32)),
    "linear without bias": (lambda: nn.Linear(32, 16, bias=False), (2, 32)),
    "conv1d": (lambda: nn.Conv1d(32, 16, 3, padding=1), (2, 32, 8)),
    "depthwise, unbatched": (lambda: nn.Conv2d(32, 32, 3, stride=2, groups=32), (32, 9, 9)),
    "reflected": (
        lambda: nn.Conv2d(32, 16, 3, padding="same", padding_mode="reflect", bias=False),
        (2, 32, 6, 6),
    ),
    "even kernel": (lambda: nn.Conv2d(32, 16, 2, padding="same"), (2, 32, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(32, 16, 2, dilation=2), (2, 32, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(32, 16, 2), (2, 32, 3, 3)),
    "LSTM": (lambda: nn.LSTM(32, 16, batch_first=True), (2, 3, 32)),
}
STATIC = TensorConfig(8, "per_tensor", dynamic=False)
SCHEMES = {
    "W8A8": baraquant.W8A8(),
    "asymmetric": baraquant.W8A8(symmetric=False),
    "rotated": baraquant.W8A8(rotate=16),
    "static": baraquant.W8A8Static(),
    "per tensor": QuantConfig(TensorConfig(8), TensorConfig(8, "per_tensor")),
    "W8A16": baraquant.W8A16(),
    "W4A16": baraquant.W4A16(group_size=16),
    "W4A8": baraquant.W4A8(group_size=16),
    "ternary": QuantConfig(TensorConfig(2, ternary=True), TensorConfig(8, "per_token")),
    "W4A8 learned": baraquant.W4A8(group_size=16, learned=True),
    "rounded scales": QuantConfig(TensorConfig(8), STATIC, scale_dtype="bfloat16"),
    "learned": QuantConfig(
        TensorConfig(8, learned=True), TensorConfig(8, "per_tensor", dynamic=False, learned=True)
    ),
    "learned, asymmetric": QuantConfig(
        TensorConfig(8, learned=True, symmetric=False),
        TensorConfig(8, "per_tensor", dynamic=False, learned=True, symmetric=False),
    ),
}


def traced(model: nn.Module, x: Tensor) -> nn.Module:
    return torch.jit.trace(model, (x,))  # which makes the graph twice, and compares the two


MAKERS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "trace": traced,
    "frozen trace": lambda model, x: torch.jit.freeze(traced(model, x)),
    "script": lambda model, x: torch.jit.script(model),
    "frozen script": lambda model, x: torch.jit.freeze(torch.jit.script(model)),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True).module(),
}


class Residual(nn.Module):
    """A sum whose gradient exists without that of the layer, which can be lost without a word."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if isinstance(y, tuple):
            y = y[0]
        return x.square().mean() + y


def made(model: nn.Module, x: Tensor, scheme: str, form: str) -> nn.Module:
    """The model under a scheme, in evaluation, prepared or converted."""
    try:
        baraquant.qat.prepare_(model, SCHEMES[scheme], progress=False)
    except ValueError as error:  # groups of four bits are for linear layers
        pytest.skip(str(error))
    model(x)
    model.eval()
    if form == "converted":
        baraquant.qat.convert_(model)
    return model


def model_of(layer: str, scheme: str, form: str) -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[layer]
    torch.manual_seed(0)
    model, x = Residual(make()), torch.randn(*shape)
    return made(model, x, scheme, form), x


def value_and_gradient(model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = model(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y.detach(), gradient


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.pairs
@pytest.mark.parametrize("made_with", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("form", ["prepared", "converted"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_graph_has_the_gradient_of_eager_mode(
    layer: str, scheme: str, form: str, maker: str, made_with: bool
) -> None:
    model, x = model_of(layer, scheme, form)
    expected = value_and_gradient(model, x)
    with torch.set_grad_enabled(made_with):
        graph = MAKERS[maker](model, x)
    # Of the gates of an LSTM TorchScript makes code of its own, which differs in the last bits.
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if layer == "LSTM" else {"rtol": 0, "atol": 0}
    for _ in range(2):  # TorchScript runs another program from the second call on
        torch.testing.assert_close(value_and_gradient(graph, x), expected, **tolerance)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), expected[0], **tolerance)
    torch.testing.assert_close(graph(x).detach(), expected[0], **tolerance)


@pytest.mark.parametrize("layer", ["conv1d", "depthwise, unbatched", "linear"])
@pytest.mark.parametrize("form", ["prepared", "converted"])
def test_a_program_for_inference_computes_nothing_twice(layer: str, form: str) -> None:
    """AOTInductor and others decompose a program: what only a gradient needs is gone then."""
    model, x = model_of(layer, "static", form)
    program = torch.export.export(model, (x,)).run_decompositions()
    products = [
        str(node.target)
        for node in program.graph.nodes
        if node.op == "call_function" and re.search("conv|mm|linear", str(node.target))
    ]
    assert len(products) == 1 and products[0].startswith("baraquant."), products


@pytest.mark.parametrize("made_with", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("maker", ["trace", "export"])
@pytest.mark.parametrize("form", ["prepared", "converted"])
@pytest.mark.parametrize("inputs", ["W8A8", "static", "per tensor"])
def test_experts_keep_their_gradient(inputs: str, form: str, maker: str, made_with: bool) -> None:
    pytest.importorskip("transformers")
    x, *route = expert_models.inputs("mixtral")
    experts: nn.Module = baraquant.nn.FakeQuantizedExperts(expert_models.experts(), SCHEMES[inputs])
    experts(x, *route)
    if form == "converted":
        experts = served_experts(experts)
    experts.eval()
    with torch.set_grad_enabled(made_with):
        if maker == "trace":
            graph = torch.jit.trace(experts, (x, *route), check_trace=False)
        else:
            graph = torch.export.export(experts, (x, *route)).module()

    def run(experts: nn.Module) -> tuple[Tensor, Tensor]:
        # The sum keeps a gradient where that of the experts is lost.
        return value_and_gradient(lambda x: x.square().mean() + experts(x, *route), x)

    expected = run(experts)
    # Of the activation and the weighted sum TorchScript makes code of its own, which differs in the
    # last bits from the second call on.
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if maker == "trace" else {"rtol": 0, "atol": 0}
    for _ in range(2):
        torch.testing.assert_close(run(graph), expected, **tolerance)
