# SPDX-License-Identifier: BSD-3-Clause
"""Experts of three-dimensional parameters: bits and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers", reason="transformers is not installed")

from baraquant import W8A8
from baraquant.nn import (
    FakeQuantizedExperts,
    disable_fake_quant,
    disable_observer,
)
from baraquant.workflow.served import served_experts
from tests.nn import expert_models
from tests.nn.expert_models import CONFIGS, SOME, prepared

FEW = ("int4", "int6")
EIGHT_BITS = [k for k, config in CONFIGS.items() if not any(few in str(config) for few in FEW)]


def gradients(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the gradients in the input, the routing weights, and the parameters."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    output = module(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    wanted += [
        p for name, p in module.named_parameters() if p.requires_grad and "fake_quant" not in name
    ]
    return list(
        torch.autograd.grad((output * torch.linspace(-1, 1, output.shape[-1])).sum(), wanted)
    )


@pytest.mark.parametrize("kind", expert_models.KINDS)
def test_unrounded_they_are_the_float_experts(kind: str) -> None:
    float_experts, inputs = expert_models.experts(kind), expert_models.inputs(kind)
    module = FakeQuantizedExperts.from_float(float_experts, CONFIGS["groups"]).train()
    module.apply(disable_fake_quant)
    expected = float_experts(*inputs)
    torch.testing.assert_close(module(*inputs), expected)
    for own, other in zip(gradients(module, inputs), gradients(float_experts, inputs), strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("kind", "config"),
    [("mixtral", config) for config in CONFIGS]
    + [("gpt_oss", config) for config in CONFIGS]
    + [(kind, config) for kind in expert_models.KINDS for config in SOME],
)
def test_converted_they_are_what_evaluation_was(kind: str, config: str, dtype: torch.dtype) -> None:
    module, inputs = prepared(kind, config, dtype), expert_models.inputs(kind, dtype)
    served = served_experts(module)
    output = module(*inputs)
    assert output.dtype == dtype
    assert torch.equal(served(*inputs), output)
    with torch.no_grad():
        assert torch.equal(module(*inputs), output)
        assert torch.equal(served(*inputs), output)
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    assert torch.equal(served(*leaves), output)


@pytest.mark.parametrize(
    "kind", expert_models.existing("mixtral", "gpt_oss", "nemotron_h", "muse_spark")
)
@pytest.mark.parametrize("config", EIGHT_BITS)
def test_near_the_float_experts(kind: str, config: str) -> None:
    inputs = expert_models.inputs(kind)
    expected = expert_models.experts(kind)(*inputs)
    output = prepared(kind, config)(*inputs)
    assert (output - expected).norm() < 0.05 * expected.norm()


def reference(module: FakeQuantizedExperts, inputs: tuple[Tensor, ...]) -> Tensor:
    """The formula in training, expert by expert: products of what the fake quantizers return."""
    hidden, index, weights = inputs

    def rounded(name: str) -> Tensor:
        weight = module.form.canonical(module._parameters[name])
        quantizer = getattr(module, f"{name}_weight_fake_quant")
        rows = weight.reshape(-1, weight.shape[-1])
        return quantizer.round(rows).reshape(weight.shape)

    def product(name: str, rows: Tensor, expert: int, weight: Tensor) -> Tensor:
        if module.config.activation is not None:
            rows = getattr(module, f"{name}_input_fake_quant").round(rows)
        bias = module._parameters.get(f"{name}_bias")
        return F.linear(rows, weight[expert], None if bias is None else bias[expert])

    up, down = rounded(module.form.up), rounded("down_proj")
    output = torch.zeros_like(hidden)
    for expert in range(module.num_experts):
        token, place = torch.where(index == expert)
        if token.numel() > 0:
            rows = module._activate(product(module.form.up, hidden[token], expert, up))
            rows = product("down_proj", rows, expert, down)
            output = output.index_add(0, token, rows * weights[token, place, None])
    return output


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("config", ["w8a8", "w8a8 asymmetric", "w8a8 static", "learned", "groups"])
def test_gradients_go_straight_through(kind: str, config: str, training: bool) -> None:
    module, inputs = prepared(kind, config).train(training), expert_models.inputs(kind)
    module.apply(disable_observer)

    class Formula(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._parameters.update(module._parameters)

        def forward(self, *inputs: Tensor) -> Tensor:
            return reference(module, inputs)

    own = gradients(module, inputs)
    expected = gradients(Formula(), inputs)
    for one, other in zip(own, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    served = gradients(served_experts(module), inputs)
    assert len(served) == 2
    for one, other in zip(served, expected, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_learned_scales_get_a_gradient() -> None:
    module = prepared(config="learned").train()
    module(*expert_models.inputs("mixtral")).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()


def test_parameters_are_shared_and_keep_their_names() -> None:
    float_experts = expert_models.experts("gpt_oss")
    module = FakeQuantizedExperts.from_float(float_experts, W8A8())
    assert dict(module.named_parameters()).keys() == dict(float_experts.named_parameters()).keys()
    for name, parameter in float_experts.named_parameters():
        assert module._parameters[name] is parameter
    assert module.state_dict().keys() == float_experts.state_dict().keys()
