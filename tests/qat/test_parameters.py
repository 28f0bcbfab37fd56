# SPDX-License-Identifier: BSD-3-Clause
"""Groups for an optimizer, and training of the scales alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from baraquant import W4A8
from baraquant.qat import convert_, freeze_weights, parameter_groups, prepare_
from tests.nn.expert_models import experts, inputs
from tests.support.models.training_models import LEARNED, SCHEMES, TiedHead, block, data
from tests.support.schemes import described

X = data(2, 3, 16)
WEIGHTS_ALONE = described("int4 learned")
SCALES = ("scale", "zero_point", "largest_step")


def prepared(scheme: Any = LEARNED) -> nn.Module:
    model = block()
    prepare_(model, scheme)
    model(X)
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_parameter_is_in_its_group(scheme: str) -> None:
    model = prepared(SCHEMES[scheme])
    groups = parameter_groups(model, 1e-3, 0.1, scale_lr=1e-4)
    named = {
        name: (group["name"], parameter, group["lr"], group["weight_decay"])
        for group in groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        expected = ("weights", parameter, 1e-3, 0.1)
        if name.startswith("norm") or name.endswith("bias"):
            expected = ("vectors", parameter, 1e-3, 0.0)
        if name.endswith(SCALES):
            expected = ("scales", parameter, 1e-4, 0.0)
        assert all(a is b or a == b for a, b in zip(named[name], expected, strict=True)), name
    has_scales = "learned" in scheme
    assert [group["name"] for group in groups] == ["weights", "vectors", "scales"][: 2 + has_scales]


def test_tied_frozen_and_unusual_parameters() -> None:
    tied = TiedHead()
    prepare_(tied, W4A8(4, learned=True))
    tied.body.weight.requires_grad_(False)
    names = [name for group in parameter_groups(tied, 1e-3) for name in group["param_names"]]
    assert names[:2] == ["table.weight", "body.weight"]
    assert sorted(names) == sorted(name for name, _ in tied.named_parameters())
    other = nn.Sequential(nn.LayerNorm([3, 4]), experts("gpt_oss"), nn.Conv1d(4, 4, 1, groups=4))
    weights, vectors = parameter_groups(other, 1e-3)
    assert weights["param_names"] == ["1.gate_up_proj", "1.down_proj", "2.weight"]
    assert len(vectors["params"]) == 5 and vectors["weight_decay"] == 0


@pytest.mark.parametrize("fused", [False, True])
def test_optimizers_take_the_groups(fused: bool) -> None:
    model = prepared()
    groups = parameter_groups(model, 1.0, 0.5, scale_lr=0.25)
    before = [[parameter.detach().clone() for parameter in group["params"]] for group in groups]
    optimizer = torch.optim.AdamW(groups, fused=fused)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # decays, and does nothing else
    for group, old in zip(groups, before, strict=True):
        kept = 1 - group["lr"] * group["weight_decay"]
        for parameter, start in zip(group["params"], old, strict=True):
            torch.testing.assert_close(parameter.detach(), kept * start)
    names = [group["name"] for group in optimizer.state_dict()["param_groups"]]
    assert names == ["weights", "vectors", "scales"]
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.zero_grad()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    "scheme",
    [LEARNED, WEIGHTS_ALONE, W4A8(4, learned=True), described("int4 per_group(4) learned")],
    ids=["static input", "weights", "factors", "groups"],
)
def test_scales_have_the_gradient_that_they_have_beside_weights(
    scheme: Any, training: bool
) -> None:
    model = prepared(scheme).train(training)
    plain = copy.deepcopy(model)
    plain(X).square().sum().backward()
    model(X).sum().backward()
    with freeze_weights(model):
        assert all(parameter.grad is None for name, parameter in model.named_parameters()
                   if not name.endswith(SCALES))  # fmt: skip
        model.zero_grad()
        model(X).square().sum().backward()
        for (name, found), expected in zip(
            model.named_parameters(), plain.parameters(), strict=True
        ):
            is_scale = name.endswith(SCALES)
            assert found.requires_grad == is_scale, name
            assert torch.equal(found.grad, expected.grad) if is_scale else found.grad is None, name
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("layer", ["linear", "conv", "experts", "table"])
def test_a_layer_alone_trains_its_scales(layer: str, training: bool) -> None:
    """Its input has no gradient: in evaluation the scales alone ask for one."""
    made: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
        "linear": (nn.Linear(16, 4), (X,)),
        "conv": (nn.Conv1d(3, 4, 2), (X,)),
        "experts": (experts(), inputs("mixtral")),
        "table": (nn.Embedding(5, 4), (torch.tensor([1, 3]),)),
    }
    module, given = made[layer]
    model = nn.Sequential(module)
    prepare_(model, LEARNED)
    model[0](*given)
    freeze_weights(model.train(training))
    model[0](*given).square().sum().backward()
    scales = [p for p in model.parameters() if p.requires_grad]
    assert scales and all(scale.grad is not None for scale in scales)


def test_training_moves_the_scales_and_nothing_else() -> None:
    model = prepared()
    model.up.weight.requires_grad_(False)
    frozen = freeze_weights(model)
    before = copy.deepcopy(dict(model.named_parameters()))
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-2))
    for _ in range(2):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        if not name.endswith("zero_point"):  # whose gradient is 0 where nothing is clamped
            assert torch.equal(parameter, before[name]) != name.endswith("scale"), name
    frozen.thaw()
    frozen.thaw()
    fixed = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert fixed == ["up.weight"]
    evaluated = model.eval()(X)
    convert_(model)
    assert torch.equal(model(X), evaluated)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"Block has none; prepare it with .*learned=True"):
        freeze_weights(prepared(SCHEMES["w8a8"]))
    for function in (freeze_weights, lambda model: parameter_groups(model, 1e-3)):
        with pytest.raises(TypeError, match="expected model to be a Module, but got int"):
            function(3)
