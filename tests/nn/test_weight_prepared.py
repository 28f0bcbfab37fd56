# SPDX-License-Identifier: BSD-3-Clause
"""`layer.weight` of a prepared layer: the parameter in training, what is served in evaluation."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from baraquant import W8A8
from baraquant.qat import convert_, prepare_
from tests.support.models.one_layer import PAIRS, converted, holder, inputs, trained

LEARNED = ("learned", "learned_asymmetric")


def parameter_of(model: nn.Module) -> nn.Parameter:
    return dict(model.named_parameters())["child.weight"]


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_in_training_it_is_the_parameter(layer: str, scheme: str) -> None:
    model = trained(layer, scheme).train()
    assert model.child.weight is parameter_of(model)
    assert isinstance(model.child.weight, nn.Parameter)


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_in_evaluation_it_is_what_is_served(layer: str, scheme: str) -> None:
    model = trained(layer, scheme)
    parameter, weight = parameter_of(model), model.child.weight
    assert isinstance(weight, Tensor) and torch.equal(
        weight.detach(), converted(model).child.weight
    )
    assert not torch.equal(weight.detach(), parameter.detach())
    assert weight.shape == parameter.shape and weight.dtype == parameter.dtype
    assert weight.device == parameter.device and weight.requires_grad == parameter.requires_grad
    assert weight.is_leaf == parameter.is_leaf and weight.grad is parameter.grad
    # Training goes on: the numbers follow the parameter.
    with torch.no_grad():
        parameter.mul_(2)
    if scheme not in (*LEARNED, "observed"):
        assert torch.equal(model.child.weight.detach(), 2 * weight.detach().clone()) or torch.equal(
            model.child.weight.detach(), converted(model).child.weight
        )
    assert torch.equal(model.child.weight.detach(), converted(model).child.weight)


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_names_are_those_of_the_float_model(layer: str, scheme: str) -> None:
    plain, model = holder(layer), trained(layer, scheme)
    names = [n for n, _ in plain.named_parameters()]
    for mode in (True, False):
        model.train(mode)
        got = dict(model.named_parameters())
        assert [n for n in got if "quant" not in n] == names
        assert all(type(p) is nn.Parameter for p in got.values())
        state = model.state_dict()
        assert set(plain.state_dict()) <= set(state) and "child.qweight" not in state
        assert torch.equal(state["child.weight"], parameter_of(model))


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_gradients_go_straight_through(layer: str, scheme: str) -> None:
    """What is read in evaluation passes its gradient to the parameter, where nothing clipped."""
    model = trained(layer, scheme)
    parameter = parameter_of(model)
    parameter.grad = None
    c = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    (model.child.weight * c).sum().backward()
    assert parameter.grad is not None
    assert model.child.weight.grad is parameter.grad
    if scheme in LEARNED:
        clipped = (parameter.grad != c) & (parameter.grad == 0)
        assert ((parameter.grad == c) | clipped).all() and clipped.float().mean() < 0.5
    else:
        assert torch.equal(parameter.grad, c)
    (grad,) = torch.autograd.grad((2 * model.child.weight).sum(), parameter)
    assert set(grad.unique().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("layer", ["linear", "embedding", "conv1d"])
def test_a_weight_is_frozen_and_thawed(layer: str) -> None:
    """Before it is prepared and after, through the weight itself as users do it."""
    model = holder(layer)
    model.child.weight.requires_grad_(False)
    prepare_(model, W8A8())
    for mode in (True, False):
        model.train(mode)
        assert not (model.child.weight * 2).requires_grad
        for frees in (True, False):
            model.child.weight.requires_grad_(frees)
            assert parameter_of(model).requires_grad == model.child.weight.requires_grad == frees


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_assigning_a_parameter_ties_it(mode: bool) -> None:
    """In training and in evaluation it becomes the parameter."""
    model, other = trained("linear", "w8a8").train(mode), trained("linear_no_bias", "w8a8")
    new = nn.Parameter(torch.randn(8, 16))
    model.child.weight = new
    other.train(mode).child.weight = new
    assert parameter_of(model) is parameter_of(other) is new
    assert torch.equal(model.eval().child.weight.detach(), converted(model).child.weight)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_tying_to_a_weight_that_is_read(mode: bool) -> None:
    """`head.weight = embedding.weight` ties the parameters, whatever the weight reads as."""
    model = nn.ModuleDict({"e": nn.Embedding(8, 16), "h": nn.Linear(16, 8, bias=False)})
    prepare_(model, W8A8())
    model.train(mode)["h"].weight = model["e"].weight
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert parameters["e.weight"] is parameters["h.weight"]


@pytest.mark.parametrize(("layer", "scheme"), [(a, b) for a, b in PAIRS if a != "linear_no_bias"])
def test_copies(layer: str, scheme: str) -> None:
    model, x = trained(layer, scheme), inputs(layer)
    wanted, weight = model(x).detach(), model.child.weight.detach().clone()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
        AveragedModel(model).module,
    ):
        assert torch.equal(copied(x), wanted) and torch.equal(copied.child.weight, weight)
        assert parameter_of(copied) is not parameter_of(model)
        with torch.no_grad():
            parameter_of(copied).mul_(3)
        assert torch.equal(model(x), wanted)
        assert not torch.equal(copied.child.weight, weight)


@pytest.mark.parametrize("assign", [False, True])
def test_resuming_a_checkpoint_in_evaluation(assign: bool) -> None:
    model, other = trained("linear", "w8a8"), trained("linear", "w8a8", seed=1)
    assert not torch.equal(model.child.weight, other.child.weight)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other.load_state_dict(state, assign=assign)
    assert torch.equal(model.child.weight, other.child.weight)


def test_optimizers_step_in_evaluation() -> None:
    """Whoever trains a model in evaluation mode (frozen dropout) trains the parameters."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.linear(x, self.a.weight, self.a.bias))

    torch.manual_seed(0)
    model, x = Reads(), inputs("linear")
    prepare_(model, W8A8())
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    evaluated = model(x)
    convert_(model)
    assert torch.equal(model(x), evaluated)
