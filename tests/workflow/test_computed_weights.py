# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose weight PyTorch computes: weight_norm and its kin, by parametrization or hook."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations as computed
from torch.nn.utils import parametrize, prune

import baraquant
from baraquant import W8A8, QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_
from baraquant.workflow.computed import plain

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*no faster")


class Half(nn.Module):
    """A parametrization without an inverse."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def both(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Half())
    if getattr(layer, "bias", None) is not None:
        parametrize.register_parametrization(layer, "bias", Half())
    return layer


MAKERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm": computed.weight_norm,
    "weight_norm_last": lambda layer: computed.weight_norm(layer, dim=layer.weight.dim() - 1),
    "spectral_norm": computed.spectral_norm,
    # In training each read of the weight would take a step of its iteration.
    "spectral_norm_training": lambda layer: computed.spectral_norm(layer).train(),
    "orthogonal": computed.orthogonal,
    "both": both,
    "hooked_weight_norm": torch.nn.utils.weight_norm,
    "hooked_spectral_norm": torch.nn.utils.spectral_norm,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(16, 16), (3, 16)),
    "conv1d": (lambda: nn.Conv1d(16, 16, 3, groups=2, padding=1), (2, 16, 7)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(16, 16, 3, padding=1), (2, 16, 7)),
    "conv2d": (lambda: nn.Conv2d(16, 16, 3, padding=1), (2, 16, 3, 3)),
}


def build(layer: str, maker: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[layer]
    model = nn.Sequential(MAKERS[maker](make()), nn.Tanh())
    x = torch.randn(shape)
    with torch.no_grad():
        model.train()(x)  # spectral_norm takes steps
    return model.eval(), x


def without(model: nn.Sequential) -> nn.Sequential:
    """The computed weights as parameters, as PyTorch's removers leave them."""
    return nn.Sequential(plain(model[0]), nn.Tanh())


@torch.no_grad()
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_quantize(layer: str, maker: str) -> None:
    model, x = build(layer, maker)
    wanted = without(model)
    assert torch.equal(wanted(x), model(x))
    model[0].train(maker == "spectral_norm_training")
    report = baraquant.quantize_(model, W8A8())
    baraquant.quantize_(wanted, W8A8())
    model.eval()
    assert "was computed by a parametrization or a hook" in report.changed["0"]
    assert list(report.left_out) == [] and report.headline() == ""
    assert torch.equal(model[0].qweight, wanted[0].qweight)
    assert torch.equal(model(x), wanted(x))
    assert not any(vars(model[0])["_forward_pre_hooks"]) and "parametriz" not in repr(model)
    assert model.state_dict().keys() == wanted.state_dict().keys()


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("scheme", [W8A8(), QuantConfig(TensorConfig(4, learned=True))], ids=str)
def test_training(layer: str, maker: str, scheme: Any, tmp_path: Path) -> None:
    """The prepared layer computes its weight of the float layer's parameters, which train."""
    model, x = build(layer, maker)
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    keys = model.state_dict().keys()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wanted = without(model)
    prepare_(wanted, scheme)
    report = prepare_(model, scheme)
    assert list(report.left_out) == [] and keys <= model.state_dict().keys()
    assert before.items() <= {n: id(p) for n, p in model.named_parameters()}.items()
    with torch.no_grad():
        assert torch.equal(model.eval()(x), wanted.eval()(x))
        assert torch.equal(model[0].weight + 0, wanted[0].weight + 0)
    first = model[0].float_weight().detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        model.train()(x).square().sum().backward()
        assert all(model.get_parameter(name).grad is not None for name in before)
        optimizer.step()
    with torch.no_grad():
        evaluated = model.eval()(x)
        assert torch.equal(copy.deepcopy(model)(x), evaluated)
    assert not torch.equal(model[0].float_weight(), first)
    assert list(convert_(model).changed) == ["0"]
    assert torch.equal(model(x), evaluated)
    assert not any(vars(model[0])["_forward_pre_hooks"])
    # A file loads into the float model as it is built: with its parametrization or hook.
    baraquant.save(model, tmp_path / "it.safetensors")
    loaded = baraquant.load_(build(layer, maker)[0], tmp_path / "it.safetensors")
    assert torch.equal(loaded(x), evaluated) and type(loaded[0]) is type(model[0])


@torch.no_grad()
@pytest.mark.parametrize("maker", ["weight_norm", "hooked_weight_norm", "pruned"])
def test_conversion_follows_the_last_step(maker: str) -> None:
    """Also where no batch came after it, so that a hook has not computed the weight again."""
    model, x = build("linear", maker)
    prepare_(model, W8A8())
    for parameter in model[0].parameters():
        parameter.mul_(1.5)
    wanted = copy.deepcopy(model)
    convert_(model)
    assert torch.equal(model.eval()(x), wanted.eval()(x))
