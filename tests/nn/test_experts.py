# SPDX-License-Identifier: BSD-3-Clause
"""Experts of three-dimensional parameters: bits, gradients, checks, and their life as modules."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

pytest.importorskip("transformers", reason="transformers is not installed")

from baraquant import W4A16, W8A8, W8A8Static
from baraquant import nn as bnn
from baraquant.nn.shared.experts import is_experts
from baraquant.workflow.served import served_experts
from tests.nn import expert_models
from tests.nn.expert_models import CONFIGS, SOME, prepared
from tests.nn.test_quantizer_modules import copies

if "mixtral" not in expert_models.KINDS:
    pytest.skip("transformers before 5 has no such experts", allow_module_level=True)
PAIRS = [(kind, config) for kind in ("mixtral", "gpt_oss") for config in CONFIGS]
PAIRS += [(kind, config) for kind in expert_models.KINDS for config in SOME]


def gradients(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    output = module(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    own = (p for name, p in module.named_parameters() if "fake_quant" not in name)
    wanted += [parameter for parameter in own if parameter.requires_grad]
    weighted = output * torch.linspace(-1, 1, output.shape[-1])
    return list(torch.autograd.grad(weighted.sum(), wanted))


@pytest.mark.parametrize("kind", expert_models.KINDS)
def test_unrounded_they_are_the_float_experts(kind: str) -> None:
    float_experts, inputs = expert_models.experts(kind), expert_models.inputs(kind)
    module = bnn.FakeQuantizedExperts.from_float(float_experts, CONFIGS["groups"]).train()
    module.apply(bnn.disable_fake_quant)
    expected = float_experts(*inputs)
    torch.testing.assert_close(module(*inputs), expected)
    torch.testing.assert_close(gradients(module, inputs), gradients(float_experts, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("kind", "config"), PAIRS)
def test_converted_they_are_what_evaluation_was(kind: str, config: str, dtype: torch.dtype) -> None:
    module, inputs = prepared(kind, config, dtype), expert_models.inputs(kind, dtype)
    served = served_experts(module)
    output = module(*inputs)
    assert output.dtype == dtype
    assert torch.equal(served(*inputs), output)
    with torch.no_grad():
        assert torch.equal(module(*inputs), output) and torch.equal(served(*inputs), output)
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    assert torch.equal(served(*leaves), output)


def reference(module: bnn.FakeQuantizedExperts, inputs: tuple[Tensor, ...]) -> Tensor:
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
    module.apply(bnn.disable_observer)

    class Formula(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._parameters.update(module._parameters)

        def forward(self, *inputs: Tensor) -> Tensor:
            return reference(module, inputs)

    expected = gradients(Formula(), inputs)
    served = gradients(served_experts(module), inputs)  # of the two inputs
    for own, wanted in ((gradients(module, inputs), expected), (served, expected[:2])):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)


def test_learned_scales_get_a_gradient() -> None:
    module = prepared(config="learned").train()
    module(*expert_models.inputs("mixtral")).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()


def test_parameters_are_shared_and_keep_their_names() -> None:
    float_experts = expert_models.experts("gpt_oss")
    module = bnn.FakeQuantizedExperts.from_float(float_experts, W8A8())
    assert dict(module.named_parameters()).keys() == dict(float_experts.named_parameters()).keys()
    for name, parameter in float_experts.named_parameters():
        assert module._parameters[name] is parameter
    own = [name for name in module.state_dict() if "_fake_quant." not in name]
    assert own == [*float_experts.state_dict()]


@pytest.mark.parametrize("config", ["w8a8 asymmetric", "w8a8 static", "groups"])
@pytest.mark.parametrize("kind", expert_models.existing("gpt_oss", "deepseek_v4", "muse_spark"))
def test_copies_and_pickles_compute_the_same(kind: str, config: str) -> None:
    inputs = expert_models.inputs(kind)
    module = prepared(kind, config)
    for one in (module, served_experts(module)):
        expected = one(*inputs)
        for twin in copies(one):
            assert torch.equal(twin(*inputs), expected)
            with torch.no_grad():  # what the floating class's code sees is the copy's
                for tensor in (*twin.parameters(), *twin.buffers()):
                    tensor.zero_()
            assert not torch.equal(twin(*inputs).nan_to_num(), expected)
            assert torch.equal(one(*inputs), expected)


def test_the_state_dict_is_that_of_integers() -> None:
    module = served_experts(prepared("gpt_oss", "w8a8 static"))
    names = ("qweight", "scale", "bias", "input_fake_quant.scale", "input_fake_quant.zero_point")
    own = {f"{weight}_{name}" for weight in ("gate_up_proj", "down_proj") for name in names}
    assert module.state_dict().keys() == own
    assert module.gate_up_proj_qweight.shape == UP


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_plain_options_and_tensors_are_enough(config: str, place: str) -> None:
    module = served_experts(prepared("gpt_oss", config))
    names = ("group_size", "weight_bits", "granularity", "bits", "symmetric", "is_static")
    options = {name: getattr(module, name) for name in (*names, "input_group_size", "dtype")}
    tensors = {name: tensor.to(place) for name, tensor in module.state_dict().items()}
    with torch.device("meta"):
        like = expert_models.experts("gpt_oss")
    again = bnn.QuantizedExperts(tensors, like, **options)
    inputs = expert_models.inputs("gpt_oss")
    if place == "cpu":
        assert torch.equal(again(*inputs), module(*inputs))
    else:
        assert again(*(x.to("meta") for x in inputs)).shape == inputs[0].shape
    assert repr(again) == repr(module)


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("config", ["w8a8", "asymmetric groups", "per tensor", "observed groups"])
def test_weights_that_are_read_are_what_the_integers_stand_for(kind: str, config: str) -> None:
    module = prepared(kind, config)
    served = served_experts(module)
    for name in ("gate_up_proj", "down_proj"):
        parameter = module._parameters[name]
        rounded, read = getattr(module, name), getattr(served, name)
        assert read.shape == rounded.shape == parameter.shape
        assert torch.equal(read + 0, rounded + 0)
        assert 0 < (rounded - parameter).abs().max() < 0.2
        assert getattr(module.train(), name) is parameter
        module.eval()
        with pytest.raises(AttributeError, match=f"expected {name} to be read only"):
            setattr(served, name, parameter)
        with pytest.raises(RuntimeError, match="to be read only"):
            read.zero_()
        with torch.no_grad():
            for one in (served, module) if "observed" not in config else (served,):
                wanted = getattr(one, name) / 4
                getattr(one, name).div_(4)
                assert torch.equal(getattr(one, name) + 0, wanted)


@pytest.mark.parametrize("config", SOME)
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_experts_beyond_the_last_add_nothing(kind: str, config: str) -> None:
    hidden, index, weights = expert_models.inputs(kind)
    module = prepared(kind, config)
    for one in (module, served_experts(module)):
        expected = one(hidden, index[:, :1], weights[:, :1])
        for sentinel in (expert_models.EXPERTS, expert_models.EXPERTS + 3, -1):
            there = index.clone()
            there[:, 1] = sentinel
            torch.testing.assert_close(one(hidden, there, weights), expected)
            nothing = torch.full_like(index, sentinel)
            assert torch.equal(one(hidden, nothing, weights), torch.zeros_like(hidden))
    module.train()(hidden, torch.full_like(index, expert_models.EXPERTS), weights).sum().backward()
    assert module._parameters["down_proj"].grad.eq(0).all()


@pytest.mark.parametrize("config", ["w8a8", "w8a8 static", "groups"])
def test_shapes_of_callers(config: str) -> None:
    hidden, index, weights = expert_models.inputs("mixtral")
    module = prepared(config=config)
    for one in (module, served_experts(module)):
        expected = one(hidden, index, weights)
        assert torch.equal(one(hidden.reshape(3, 3, -1), index, weights).flatten(0, 1), expected)
        assert torch.equal(one(hidden[None], index[None], weights[None])[0], expected)
        assert one(hidden[:0], index[:0], weights[:0]).shape == (0, expert_models.HIDDEN)
        with pytest.raises(ValueError, match="expected top_k_index to have a row for each of 9 "):
            one(hidden, index[:5], weights)
        with pytest.raises(ValueError, match=r"expected top_k_weights to have 2 columns"):
            one(hidden, index, weights[:, :1])
        with pytest.raises(ValueError, match=r"expected top_k_index .*, but got None"):
            one(hidden)


def test_sorted_tokens_have_to_divide() -> None:
    module = prepared("llama4")
    with pytest.raises(ValueError, match="as many tokens for each of 4 experts, but got 9"):
        module(expert_models.tokens())


def test_what_experts_are() -> None:
    for kind in expert_models.KINDS:
        assert is_experts(expert_models.experts(kind))
        assert bnn.FakeQuantizedExperts.why_not(expert_models.experts(kind)) is None
    module = prepared()
    for other in (nn.Linear(2, 2), module, served_experts(module)):
        assert not is_experts(other)
        assert bnn.FakeQuantizedExperts.why_not(other) is not None


class Added(nn.Module):
    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.delta = nn.Parameter(torch.zeros_like(like))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.delta


def test_a_parametrization_may_compute_a_weight() -> None:
    # As adapters of three-dimensional parameters do.
    module, inputs = prepared().train(), expert_models.inputs("mixtral")
    expected = module(*inputs)
    parametrize.register_parametrization(module, "gate_up_proj", Added(module.gate_up_proj))
    output = module(*inputs)
    assert torch.equal(output, expected)
    output.sum().backward()
    assert module.parametrizations.gate_up_proj[0].delta.grad.abs().sum() > 0
    parametrize.remove_parametrizations(module, "gate_up_proj")
    assert torch.equal(module(*inputs), expected)


def changed(**attributes: Any) -> nn.Module:
    module = expert_models.experts()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


class OwnForward(type(expert_models.experts())):  # type: ignore[misc]
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0]


REASONS = {
    "does not declare the interface": nn.Linear(2, 2),
    "its forward was replaced": changed(forward=len),
    "its _apply_gate was replaced": changed(_apply_gate=len),
    "do not have three dimensions": changed(down_proj=nn.Parameter(torch.zeros(2, 2))),
    "not those of 4 experts": changed(down_proj=nn.Parameter(torch.zeros(2, 2, 2))),
    "not those of 3 experts": changed(num_experts=3),
    "its down_proj is no parameter": changed(down_proj=None),
    "its gate_up_proj is torch.float8_e5m2": expert_models.experts().to(torch.float8_e5m2),
    "OwnForward has a forward of its own": OwnForward(expert_models.experts().config),
}


@pytest.mark.parametrize(("reason", "module"), REASONS.items(), ids=REASONS)
def test_why_some_cannot_be_swapped(reason: str, module: nn.Module) -> None:
    assert reason in str(bnn.FakeQuantizedExperts.why_not(module))
    with pytest.raises(ValueError, match="FakeQuantizedExperts: expected experts to swap, but"):
        bnn.FakeQuantizedExperts.from_float(module, W8A8())


def test_groups_have_to_divide() -> None:
    with pytest.raises(ValueError, match=r"down_proj: expected group_size to divide"):
        bnn.FakeQuantizedExperts.from_float(expert_models.experts(), W4A16(16))


def test_scales_have_to_be_known() -> None:
    module = bnn.FakeQuantizedExperts.from_float(expert_models.experts(), W8A8Static())
    with pytest.raises(ValueError, match="has seen no data"):
        served_experts(module)
    module = prepared()
    with torch.no_grad():
        module._parameters["down_proj"][1, 2, 3] = float("inf")
    with pytest.raises(ValueError, match="expected the scale of down_proj to be finite"):
        served_experts(module)


UP, DOWN = (4, 24, 16), (4, 16, 12)


def build(drop: str = "", like: nn.Module | None = None, **changes: Any) -> bnn.QuantizedExperts:
    tensors = {}
    for name, shape in (("gate_up_proj", UP), ("down_proj", DOWN)):
        tensors[f"{name}_qweight"] = torch.zeros(shape, dtype=torch.int8)
        tensors[f"{name}_scale"] = torch.ones(shape[:2])
    tensors |= {name: value for name, value in changes.items() if "proj" in name}
    tensors.pop(drop, None)
    options = {name: value for name, value in changes.items() if "proj" not in name}
    return bnn.QuantizedExperts(tensors, like or expert_models.experts(), **options)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("like to be experts, but got Linear", {"like": nn.Linear(1, 1)}),
    ("a tensor down_proj_scale, but there is none", {"drop": "down_proj_scale"}),
    ("but got down_proj_what", {"down_proj_what": torch.ones(1)}),
    ("down_proj_scale to be a Tensor, but got int", {"down_proj_scale": 1}),
    ("down_proj_qweight to be int8", {"down_proj_qweight": torch.ones(DOWN)}),
    ("3 dimensions", {"down_proj_qweight": torch.ones(4, 2, dtype=torch.int8)}),
    ("scale to be float32 or", {"down_proj_scale": torch.ones(4, 16).half()}),
    (r"shape \[4, 16\], but got", {"down_proj_scale": torch.ones(4, 12)}),
    (r"shape \[4, 24, 2\]", {"group_size": 8}),
    ("group_size > 0", {"group_size": 0}),
    ("gate_up_proj_zero_point, but", {"down_proj_zero_point": torch.ones(4, 16)}),
    ("weight_bits to be an int", {"weight_bits": 9}),
    ("bits to be an int", {"bits": 1}),
    ("granularity to be per_token", {"granularity": "per_channel"}),
    ("static scale", {"granularity": "per_token", "is_static": True}),
    (r"whose place it takes \(\[4, 16, 12\]\), but got \[4, 16, 6\]",
     {"down_proj_qweight": torch.ones(4, 16, 6, dtype=torch.int8)}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "changes"), BAD)
def test_wrong_arguments(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=f"QuantizedExperts: .*{message}"):
        build(**changes)
