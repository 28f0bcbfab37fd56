# SPDX-License-Identifier: BSD-3-Clause
"""A layer keeps nothing that it derives from its tensors: new ones count from the next call on.

Each kind of layer is built twice, from other numbers. Then the tensors of the second are put into
the first, in every way that PyTorch and its neighbours have, and both have to give the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import PerGroup, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from tests.nn import expert_models
from tests.support import cases

TOKEN = TensorConfig(8, "per_token", symmetric=False)
TENSOR = TensorConfig(8, "per_tensor", symmetric=False)
STATIC = TensorConfig(8, "per_tensor", symmetric=False, dynamic=False)
PLAIN = TensorConfig(8, "per_channel")
GROUPS = TensorConfig(8, PerGroup(4), symmetric=False)
FACTORS = TensorConfig(4, PerGroup(8), symmetric=False, group_factors=True)


class First(nn.Module):
    """The first result of a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input: Tensor) -> Tensor:
        return self.inner(input)[0]


class SelfAttention(First):
    def forward(self, input: Tensor) -> Tensor:
        return self.inner(input, input, input)[0]


class Routed(nn.Module):
    """Experts, with a routing that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = expert_models.experts()
        self.index, self.weights = expert_models.routing()

    def forward(self, input: Tensor) -> Tensor:
        return self.inner(input, self.index.to(input.device), self.weights.to(input.device))


def linear() -> nn.Module:
    return nn.Linear(16, 24)


def conv(name: str) -> Callable[[], nn.Module]:
    return lambda: getattr(nn, name)(16, 8, 3, padding=1)


def both(weight: TensorConfig, activation: TensorConfig | None = None, **more: Any) -> QuantConfig:
    if activation is not None and activation.granularity == "per_tensor":
        more["conv_inputs"] = True
    return QuantConfig(weight, activation, **more)


LINE, IMAGE = (3, 16), (2, 16, 5, 6)
# Of each: the float layer, the configuration, and the shape of its input.
KINDS: dict[str, tuple[Callable[[], nn.Module], Any, tuple[int, ...]]] = {
    "dynamic": (linear, both(PLAIN, TOKEN), LINE),
    "dynamic_tensor": (linear, both(PLAIN, TENSOR), LINE),
    "static": (linear, both(PLAIN, STATIC), LINE),
    "rotated": (linear, both(PLAIN, TOKEN, rotate=8), LINE),
    "rotated_static": (linear, both(PLAIN, STATIC, rotate=8), LINE),
    "smoothed": (linear, SmoothQuant(activation=both(PLAIN, TOKEN)), LINE),
    "smoothed_static": (linear, SmoothQuant(activation=W8A8Static(symmetric=False)), LINE),
    "int4_dynamic": (linear, both(FACTORS, TOKEN), LINE),
    "int4_static": (linear, both(FACTORS, STATIC), LINE),
    "weight_only": (linear, both(GROUPS), LINE),
    "weight_only_int4": (linear, baraquant.W4A16(4), LINE),
    "groups": (linear, both(GROUPS, TOKEN), LINE),
    "conv1d": (conv("Conv1d"), both(PLAIN, STATIC), (2, 16, 7)),
    "conv2d": (conv("Conv2d"), both(PLAIN, TENSOR), IMAGE),
    "conv3d": (conv("Conv3d"), both(PLAIN, STATIC), (1, 16, 3, 4, 3)),
    "conv_floating": (conv("Conv2d"), both(GROUPS), IMAGE),
    "transposed1d": (conv("ConvTranspose1d"), both(PLAIN, STATIC), (2, 16, 7)),
    "transposed2d": (conv("ConvTranspose2d"), both(GROUPS), IMAGE),
    "embedding": (lambda: nn.Embedding(12, 16), both(GROUPS), (3, 2)),
    "lstm": (lambda: First(nn.LSTM(16, 8)), both(PLAIN, TOKEN), (4, 2, 16)),
    "attention": (lambda: SelfAttention(nn.MultiheadAttention(16, 2)), both(PLAIN, STATIC),
                  (4, 2, 16)),
    "experts": (Routed, both(PLAIN, TOKEN), (expert_models.TOKENS, expert_models.HIDDEN)),
    "experts_static": (Routed, both(PLAIN, STATIC), (expert_models.TOKENS, expert_models.HIDDEN)),
}  # fmt: skip
by_kind = pytest.mark.parametrize("kind", KINDS)


def example(kind: str, seed: int = 1) -> Tensor:
    shape, generator = KINDS[kind][2], cases.generator(seed)
    if kind == "embedding":
        return torch.randint(12, shape, generator=generator)
    return torch.randn(shape, generator=generator) * seed + 0.3


def made(kind: str, seed: int, device: str = "cpu") -> nn.Module:
    """A converted layer, all of whose numbers depend on the seed."""
    make, config, _ = KINDS[kind]
    torch.manual_seed(seed)
    model = nn.Sequential(make()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1 * seed)
    baraquant.quantize_(model, config, calibration=[example(kind, seed)], progress=False)
    assert all(module.training is False for module in model.modules())
    return model.to(device)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers themselves; each is in the state dict."""
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    assert found.keys() == model.state_dict().keys()
    return found


def owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def copy_(model: nn.Module, new: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors(model).items():
            tensor.copy_(new[name])


def copy_in_inference_mode(model: nn.Module, new: dict[str, Tensor]) -> None:
    with torch.inference_mode():
        for name, tensor in tensors(model).items():
            tensor.copy_(new[name])


def copy_data(model: nn.Module, new: dict[str, Tensor]) -> None:
    for name, tensor in tensors(model).items():
        tensor.data.copy_(new[name])


def copy_state(model: nn.Module, new: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        tensor.copy_(new[name])


def set_data(model: nn.Module, new: dict[str, Tensor]) -> None:
    for name, tensor in tensors(model).items():
        tensor.data = new[name].detach().clone()


def set_attributes(model: nn.Module, new: dict[str, Tensor]) -> None:
    for name, tensor in tensors(model).items():
        module, leaf = owner(model, name)
        value = new[name].detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(module, leaf, nn.Parameter(value, False) if is_parameter else value)


def swap(model: nn.Module, new: dict[str, Tensor]) -> None:
    for name, tensor in tensors(model).items():
        other = new[name].detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        torch.utils.swap_tensors(tensor, nn.Parameter(other, False) if is_parameter else other)


def apply(model: nn.Module, new: dict[str, Tensor]) -> None:
    """As ``to()`` and ``to_empty()`` do it."""
    old = tensors(model)
    by_id = {id(tensor): new[name].detach().clone() for name, tensor in old.items()}
    model._apply(lambda tensor: by_id.get(id(tensor), tensor))


def load(model: nn.Module, new: dict[str, Tensor]) -> None:
    model.load_state_dict(new)


def load_by_assigning(model: nn.Module, new: dict[str, Tensor]) -> None:
    model.load_state_dict({name: tensor.clone() for name, tensor in new.items()}, assign=True)


WAYS: dict[str, Callable[[nn.Module, dict[str, Tensor]], None]] = {
    way.__name__: way
    for way in (
        copy_, copy_in_inference_mode, copy_data, copy_state, set_data, set_attributes, swap, apply,
        load, load_by_assigning,
    )
}  # fmt: skip


def check(model: Any, kind: str, new: nn.Module, device: str = "cpu") -> None:
    x = example(kind).to(device)
    with torch.no_grad():
        assert torch.equal(model(x), new(x))


@by_kind
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.cover(("kind", "way"))
def test_new_tensors_count_at_once(kind: str, way: str, device: str) -> None:
    """And not in a copy that was made before."""
    model, new = made(kind, 1, device), made(kind, 2, device)
    x = example(kind).to(device)
    before, twin = model(x), copy.deepcopy(model)
    WAYS[way](model, new.state_dict())
    assert not torch.equal(before, new(x)) and torch.equal(twin(x), before)
    check(model, kind, new, device)
    check(copy.deepcopy(model), kind, new, device)


@by_kind
def test_a_call_with_other_tensors(kind: str) -> None:
    model, new = made(kind, 1), made(kind, 2)
    x = example(kind)
    before = model(x)
    state = {name: tensor.detach() for name, tensor in tensors(new).items()}
    assert torch.equal(torch.func.functional_call(model, state, (x,)), new(x))
    assert torch.equal(model(x), before)


def scripted(module: nn.Module, x: Tensor) -> tuple[Any, Any]:
    for _ in range(3):  # optimized from the second call on
        module(x)
    return module, module


def compiled(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    torch._dynamo.reset()
    program = torch.compile(model, backend="aot_eager")
    program(x)
    return program, model


def exported(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    program = torch.export.export(model, (x,)).module()
    return program, program


# Of each form what makes it, and what holds its tensors then; the ways, and kinds that it lacks.
FORMS: dict[str, tuple[Callable[[nn.Module, Tensor], Any], Any, tuple[str, ...]]] = {
    "script": (lambda model, x: scripted(torch.jit.script(model), x),
        ("copy_", "set_data", "load"), ("attention", "experts")),
    "trace": (lambda model, x: scripted(torch.jit.trace(model, x), x),
        ("copy_", "set_data", "load"), ("attention", "experts")),
    "compiled": (compiled, WAYS, ()),
    "exported": (exported, ("copy_", "copy_data", "set_data", "load", "load_by_assigning"),
        ("experts",)),
}  # fmt: skip


@pytest.mark.pairs
@pytest.mark.cover(("form", "kind"), form=lambda form: [form])
@pytest.mark.parametrize(
    ("form", "way", "kind"),
    [
        (form, way, kind)
        for form, (_, ways, without) in FORMS.items()
        for way in ways
        for kind in KINDS
        if not kind.startswith(without)
    ],
)
def test_a_graph(form: str, way: str, kind: str) -> None:
    model, new = made(kind, 1), made(kind, 2)
    with torch.no_grad():
        program, holder = FORMS[form][0](model, example(kind))
    WAYS[way](holder, new.state_dict())
    check(program, kind, new)


@pytest.mark.inductor
@pytest.mark.parametrize("kind", ("dynamic", "static", "conv2d", "int4_dynamic"))
@pytest.mark.parametrize("way", ("copy_", "set_data", "set_attributes"))
def test_compiled_by_inductor(kind: str, way: str, device: str) -> None:
    torch._dynamo.reset()
    model, new = made(kind, 1, device), made(kind, 2, device)
    compiled = torch.compile(model)
    with torch.no_grad():
        compiled(example(kind).to(device))
    WAYS[way](model, new.state_dict())
    check(compiled, kind, new, device)


@by_kind
@pytest.mark.parametrize("way", ("copy_", "copy_data", "load"))
def test_captured(kind: str, way: str, cuda: str) -> None:
    """A graph reads the memory of the tensors, so what is written there counts at once."""
    if kind.startswith("experts"):
        pytest.skip("some products of experts read their offsets on the host")
    model, new, x = made(kind, 1, cuda), made(kind, 2, cuda), example(kind).to(cuda)
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(x)
        WAYS[way](model, new.state_dict())
        graph.replay()
        assert torch.equal(output, new(x))
