# SPDX-License-Identifier: BSD-3-Clause
"""A layer keeps nothing that it derives from its tensors: new ones count from the next call on.

Each kind of layer is built twice, from other numbers. Then the tensors of the second are put into
the first, in every way that PyTorch and its neighbours have, and both have to give the same bits.
"""

import copy
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from baraquant import W4A16, QuantConfig, SmoothQuant, W8A8Static, quantize_
from tests.nn import expert_models
from tests.nn.test_quantizer_modules import copies
from tests.support import cases
from tests.support.cuda import capture
from tests.support.optional_packages import package
from tests.support.schemes import described

PLAIN, GROUPS, TOKEN = "int8", "int8 per_group(4) asymmetric", "int8 per_token asymmetric"
TENSOR, STATIC = "int8 per_tensor asymmetric", "int8 per_tensor asymmetric static"
FACTORS = "int4 per_group(8) asymmetric factors"


class First(nn.Module):
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


def both(*texts: str, **more: Any) -> QuantConfig:
    """Of the weight, and of the input if there is one; one scale serves convolutions too."""
    one_scale = "per_tensor" in texts[-1] or None
    return described(", ".join(texts), conv_inputs=one_scale, **more)


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
    "weight_only_int4": (linear, W4A16(4), LINE),
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
    quantize_(model, config, calibration=[example(kind, seed)], progress=False)
    assert all(module.training is False for module in model.modules())
    return model.to(device)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers themselves; each is in the state dict."""
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    assert found.keys() == model.state_dict().keys()
    return found


def set_attribute(model: nn.Module, name: str, old: Tensor, new: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, new)


def apply(model: nn.Module, new: dict[str, Tensor]) -> None:
    """As ``to()`` and ``to_empty()`` do it."""
    old = tensors(model)  # kept meanwhile: another tensor may get the id of one that is freed
    by_id = {id(tensor): new[name].detach().clone() for name, tensor in old.items()}
    model._apply(lambda tensor: by_id.get(id(tensor), tensor))


def copy_state(model: nn.Module, new: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        tensor.copy_(new[name])


Way = Callable[[nn.Module, dict[str, Tensor]], Any]


def each(change: Callable[[nn.Module, str, Tensor, Tensor], Any]) -> Way:
    """Of what changes one tensor: it gets the model, a name, that tensor and a copy of the new."""

    def way(model: nn.Module, new: dict[str, Tensor]) -> None:
        for name, old in tensors(model).items():
            value = new[name].detach().clone()
            is_parameter = isinstance(old, nn.Parameter)
            change(model, name, old, nn.Parameter(value, False) if is_parameter else value)

    return way


COPY = each(lambda model, name, old, new: old.copy_(new))
WAYS: dict[str, Way] = {
    "copy_": torch.no_grad()(COPY),
    "copy_in_inference_mode": torch.inference_mode()(COPY),
    "copy_data": each(lambda model, name, old, new: old.data.copy_(new)),
    "copy_state": copy_state,
    "set_data": each(lambda model, name, old, new: setattr(old, "data", new.detach())),
    "set_attributes": each(set_attribute),
    "swap": each(lambda model, name, old, new: torch.utils.swap_tensors(old, new)),
    "apply": apply,
    "load": lambda model, new: model.load_state_dict(new),
    "load_by_assigning": lambda model, new: model.load_state_dict(
        {name: tensor.clone() for name, tensor in new.items()}, assign=True
    ),
}


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


# Of each form what makes it; the ways, and kinds that it lacks. But for a compiled one, it has
# tensors of its own.
FORMS: dict[str, tuple[Callable[[nn.Module, Tensor], Any], Any, tuple[str, ...]]] = {
    "script": (lambda model, x: torch.jit.script(model),
        ("copy_", "set_data", "load"), ("attention", "experts")),
    "trace": (torch.jit.trace, ("copy_", "set_data", "load"), ("attention", "experts")),
    "compiled": (lambda model, x: torch.compile(model, backend="aot_eager"), WAYS, ()),
    "exported": (lambda model, x: torch.export.export(model, (x,)).module(),
        ("copy_", "copy_data", "set_data", "load", "load_by_assigning"), ("experts",)),
}  # fmt: skip
GRAPHS = [(form, kind) for form in FORMS for kind in KINDS if not kind.startswith(FORMS[form][2])]


@pytest.mark.parametrize(("form", "kind"), GRAPHS)
def test_a_graph(form: str, kind: str) -> None:
    """It is made once; then each way puts the numbers of the other layer into it."""
    make, ways, _ = FORMS[form]
    torch._dynamo.reset()
    model, x = made(kind, 1), example(kind)
    others = [made(kind, seed) for seed in (2, 3)]
    with torch.no_grad():
        program = make(model, x)
        for _ in range(3):  # a script is optimized from the second call on
            program(x)
    # At its limit it would run as it is, and follow in any case.
    with torch._dynamo.config.patch(recompile_limit=100):
        for way, new in zip(ways, cycle(others), strict=False):
            WAYS[way](model if form == "compiled" else program, new.state_dict())
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
        graph, output = capture(lambda: model(x))
        WAYS[way](model, new.state_dict())
        graph.replay()
        assert torch.equal(output, new(x))


# --- integers are parameters: the tools that handle a model's weights handle them ----------------

CPU, PLACES = torch.device("cpu"), {"one": "cpu", "other": "disk"}


class Pair(nn.Module):
    """Two layers, since accelerate reads a map of one device in another way."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self.one, self.other = made(kind, seed), made(kind, seed + 1)

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(input), self.other(input)


def load_checkpoint_and_dispatch(accelerate: Any, model: nn.Module, folder: Path) -> nn.Module:
    file, fresh = folder / "all.safetensors", copy.deepcopy(model)
    save_file(model.state_dict(), file)
    with torch.no_grad():
        for tensor in (*fresh.parameters(), *fresh.buffers()):
            tensor.zero_()
    # Without `offload_buffers` it loads no buffer of what goes to the disk.
    options = {"device_map": PLACES, "offload_folder": folder / "off", "offload_buffers": True}
    return accelerate.load_checkpoint_and_dispatch(fresh, str(file), **options)


OFFLOADS: dict[str, Callable[[Any, nn.Module, Path], nn.Module]] = {
    "cpu_offload": lambda accelerate, model, folder: accelerate.cpu_offload(model, CPU),
    "disk_offload": lambda accelerate, model, folder: accelerate.disk_offload(model, folder, CPU),
    "dispatch_model": lambda accelerate, model, folder: accelerate.dispatch_model(
        model, PLACES, main_device="cpu", offload_dir=folder
    ),
    "load_checkpoint_and_dispatch": load_checkpoint_and_dispatch,
}


@by_kind
@pytest.mark.parametrize("way", OFFLOADS)
def test_offloaded(kind: str, way: str, tmp_path: Path) -> None:
    model, x = Pair(kind, 1), example(kind)
    with torch.no_grad():
        wanted = model(x)
        placed = OFFLOADS[way](package("accelerate"), model, tmp_path)
        away = [name for name, tensor in placed.named_parameters() if tensor.is_meta]
        assert any(name.endswith(("qweight", "packed")) for name in away)
        for _ in range(2):
            assert all(map(torch.equal, placed(x), wanted))


@by_kind
def test_copies_and_places(kind: str) -> None:
    model, x = made(kind, 1), example(kind)
    with torch.no_grad():
        wanted = model(x)
        for other in copies(model):
            assert torch.equal(other(x), wanted)
        empty = copy.deepcopy(model).to("meta")
        assert all(tensor.is_meta for tensor in empty.state_dict().values())
        filled = copy.deepcopy(empty).to_empty(device="cpu")
        filled.load_state_dict(model.state_dict())
        empty.load_state_dict(model.state_dict(), assign=True)
        assert torch.equal(filled(x), wanted) and torch.equal(empty(x), wanted)
    assert not any(parameter.requires_grad for parameter in empty.parameters())


@by_kind
def test_frozen_parameters(kind: str) -> None:
    """Calls for all parameters of a model leave integers as they are."""
    model, x = made(kind, 1), example(kind)
    with torch.no_grad():
        wanted = model(x)
        before = copy.deepcopy(model.state_dict())
        model.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        optimizer.step()
        optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        assert torch.equal(average(x), wanted)
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("to", (torch.float16, torch.bfloat16, torch.float64))
@by_kind
def test_conversions_leave_integers_and_scales(kind: str, to: torch.dtype) -> None:
    """Of the floating tensors a bias alone is rounded; scales become float64 at most."""
    model = made(kind, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.to(to)
    for name, tensor in model.state_dict().items():
        if name.endswith("bias"):
            assert tensor.dtype == to
        elif to == torch.float64 and before[name].is_floating_point():
            assert torch.equal(tensor, before[name].double())
        else:
            assert tensor.dtype == before[name].dtype and torch.equal(tensor, before[name]), name


def test_a_plain_tensor_takes_the_place_of_integers() -> None:
    model = made("dynamic", 1)
    model[0].qweight = torch.zeros_like(model[0].qweight.detach())
    assert type(model[0].qweight) is nn.Parameter and not model[0].qweight.requires_grad
    assert torch.equal(model(example("dynamic")), model[0].bias.expand(3, 24))


BOTH = "QuantizedLinear(in_features=16, out_features=24, bias=True, weight=int8 per_channel, input="
REPRS = {
    "smoothed": f"{BOTH}int8 per_token asymmetric dynamic, smooth)",
    "static": f"Static{BOTH}int8 per_tensor asymmetric static)",
    "weight_only": "weight=int8 per_group(4) asymmetric",
}


@pytest.mark.parametrize("kind", REPRS)
def test_repr(kind: str) -> None:
    assert REPRS[kind] in repr(made(kind, 1))
