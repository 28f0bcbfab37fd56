# SPDX-License-Identifier: BSD-3-Clause
"""Layers that are no plain ones: swapped where that is safe, else left out with the reason."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16, QuantConfig, TensorConfig, W8A8Static, quantize_
from baraquant.nn import FakeQuantizedLinear, QuantizedLinear
from baraquant.qat import convert_, prepare_
from tests.support.checks.refused import refused
from tests.support.models import training_models


class Standardized(nn.Conv2d):
    """Its forward is PyTorch's; what that calls is not."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Doubled(nn.Linear):
    """Whoever reads the weight gets another one than the parameter."""

    @property
    def weight(self) -> Tensor:
        return self._parameters["weight"] * 2


def doubled() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.__class__ = Doubled
    return layer


class Called(nn.Linear):
    def __call__(self, input: Tensor) -> Tensor:
        return super().__call__(input) * 2.0


class Kept(torch.Tensor):
    """A tensor subclass, as DTensor and the weights of other quantizers are."""


def weighing(change: Callable[[Tensor], Tensor]) -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(change(layer.weight.detach()), requires_grad=False)
    return layer


def patched() -> nn.Module:
    """As accelerate and others do it."""
    layer = nn.Linear(8, 8)
    old = layer.forward
    layer.forward = lambda input: old(input) * 2.0
    return layer


def patched_convolution() -> nn.Module:
    layer = nn.Conv1d(8, 8, 1)
    layer._conv_forward = lambda x, weight, bias: x
    return layer


def lazy_run() -> nn.Module:
    layer = nn.LazyLinear(8)
    layer(torch.ones(2, 8))
    return layer


def own(
    name: str, base: type[nn.Module], compute: Callable[..., Any], *arguments: int
) -> Callable[[], nn.Module]:
    """Builds a layer whose forward is ``compute(its parent's, itself, input)``."""

    class Subclass(base):
        def forward(self, input: Tensor) -> Any:
            return compute(super().forward, self, input)

    Subclass.__name__ = name
    return lambda: Subclass(*(arguments or (8, 8)))


class Own:
    """A hook that PyTorch does not know."""

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        module.weight = module.own * 2


def hooked() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.own = layer.weight
    del layer._parameters["weight"]
    layer.register_forward_pre_hook(Own())
    layer(torch.ones(1, 8))
    return layer


def with_mask(layer: nn.Module) -> nn.Module:
    layer.register_buffer("mask", torch.ones(8))
    return layer


# What their forwards compute. Explicit names its parent, where the quantized one would have to be.
FORWARDS: dict[str, tuple[Any, ...]] = {
    "Reads": (nn.Linear, lambda parent, self, x: parent(x) * self.weight.abs().mean()),
    "Normalized": (nn.Linear, lambda _, self, x: F.linear(x, F.normalize(self.weight), self.bias)),
    "Explicit": (nn.Linear, lambda _, self, x: nn.Linear.forward(self, x) * 2),
    "Twice": (nn.Linear, lambda parent, self, x: parent(parent(x))),
    "Never": (nn.Linear, lambda parent, self, x: x),
    "ReadsInTraining": (nn.Linear,
        lambda parent, self, x: parent(x) + (self.weight.sum() if self.training else 0)),
    "Tuple": (nn.Linear, lambda parent, self, x: (parent(x), None)),
    "Raises": (nn.Linear, lambda parent, self, x: x.view(7, 1000003)),
    "Logits": (nn.Embedding, lambda parent, self, x: parent(x) @ self.weight.T),
    "Masked": (nn.Conv1d, lambda parent, self, x: parent(x) * 2, 8, 8, 1),  # none is tried
    "OwnTransposed": (nn.ConvTranspose2d, lambda parent, self, x: parent(x) * 2, 8, 8, 3),
    "OwnLSTM": (nn.LSTM, lambda parent, self, x: parent(x)[0]),
}  # fmt: skip
OWN_FORWARDS = {name: own(name, *row) for name, row in FORWARDS.items()}
FP8 = torch.float8_e4m3fn
LEFT_OUT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lazy": (lambda: nn.LazyLinear(8), "its shape is not known yet: run a batch first"),
    "lazy_conv": (lambda: nn.LazyConv3d(8, 1), "its shape is not known yet: run a batch first"),
    "standardized": (lambda: Standardized(8, 8, 1), "Standardized has a forward of its own"),
    "doubled": (doubled, "Doubled has a weight of its own"),
    "called": (lambda: Called(8, 8), "Called has a forward of its own"),
    "patched": (patched, "its forward was replaced by another"),
    "patched_convolution": (patched_convolution, "its forward was replaced by another"),
    "subclass_of_tensor": (lambda: weighing(lambda w: w.as_subclass(Kept)), "its weight is a Kept"),
    "int8": (lambda: weighing(Tensor.char), "its weight is torch.int8"),
    "float8": (lambda: weighing(lambda w: w.to(FP8)), f"its weight is {FP8}"),
    "complex": (lambda: nn.Linear(8, 8, dtype=torch.complex64), "its weight is torch.complex64"),
    "max_norm": (lambda: nn.Embedding(8, 8, max_norm=1.0), "max_norm"),
    "bilinear": (lambda: nn.Bilinear(8, 8, 8), "there is no quantized form of Bilinear"),
    "bag": (lambda: nn.EmbeddingBag(8, 8), "there is no quantized form of EmbeddingBag"),
    "bias_kv": (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
        "there is no quantized form of add_bias_kv and add_zero_attn"),
    "done": (lambda: nn.Sequential(QuantizedLinear(torch.ones(2, 2).char(), torch.ones(2))),
        "it is converted already"),
    "prepared": (lambda: FakeQuantizedLinear(8, 8, config=W8A8()), "it is prepared already"),
    **{name: (make, f"{name} has a forward of its own") for name, make in OWN_FORWARDS.items()},
    "parametrized": (lambda: parametrizations.weight_norm(OWN_FORWARDS["Explicit"]()),
        "Explicit has a forward of its own"),
    "normed": (lambda: torch.nn.utils.weight_norm(OWN_FORWARDS["Explicit"]()),
        "Explicit has a forward of its own"),
    "own_hook": (hooked, "its weight is computed by a hook"),
    "two_hooks": (
        lambda: prune.identity(torch.nn.utils.weight_norm(nn.Linear(8, 8)), "weight_v"),
        "computed by a hook"),
    "parametrized_bilinear": (lambda: parametrizations.weight_norm(nn.Bilinear(8, 8, 8)),
        "computed by a parametrization"),
    "masked_attention": (lambda: with_mask(nn.MultiheadAttention(8, 2)), "it has mask beside its"),
    "masked_lstm": (lambda: with_mask(nn.LSTM(8, 8)), "it has mask beside its own weights"),
    "masked_cell": (lambda: with_mask(nn.GRUCell(8, 8)), "it has mask beside its own weights"),
}  # fmt: skip


ACTIONS = [prepare_, quantize_]
by_action = pytest.mark.parametrize("action", ACTIONS)


@pytest.mark.parametrize(  # training starts at integers
    ("name", "action"),
    [(name, each) for name in LEFT_OUT for each in ACTIONS if (name, each) != ("done", prepare_)],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Lazy modules")
def test_left_out(name: str, action: Any) -> None:
    build, reason = LEFT_OUT[name]
    odd = build()
    model = nn.ModuleDict({"inner": nn.ModuleList([odd]), "plain": nn.Linear(8, 2)})
    random, training = torch.get_rng_state(), odd.training
    report = action(model, W8A8())
    assert torch.equal(torch.get_rng_state(), random), "the trial of a forward draws no numbers"
    assert odd.training == training
    path = "inner.0.0" if name == "done" else "inner.0"
    assert list(report.left_out) == [path] and list(report.changed) == ["plain"]
    assert reason in report.left_out[path] and model["inner"][0] is odd
    line = rf"{re.escape(path)} +left out: {re.escape(report.left_out[path])}"
    assert re.search(line, str(report))
    if action is prepare_ and name not in ("done", "prepared"):
        assert convert_(model).left_out == {path: "it was not prepared"}


@by_action
@pytest.mark.parametrize(
    "build", [lambda: type("Plain", (nn.Linear,), {})(8, 8), lazy_run], ids=["subclass", "lazy_run"]
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_layers_that_are_plain_after_all(build: Callable[[], nn.Module], action: Any) -> None:
    report = action(nn.Sequential(build(), nn.Linear(8, 2)), W8A8())
    assert list(report.changed) == ["0", "1"] and not report.left_out


class Merged(nn.Linear):
    """It computes with one weight, as a LoRA layer does that was merged."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias) + self.up(self.down(x))


@by_action
def test_layers_within_what_is_left_out(action: Any) -> None:
    model = nn.Sequential(Merged(8, 8), nn.Linear(8, 2))
    report = action(model, W8A8())
    assert list(report.changed) == ["0.down", "0.up", "1"]
    assert report.left_out == {"0": "Merged has a forward of its own"}
    assert model(torch.randn(3, 8)).isfinite().all()


def test_a_compiled_block_is_followed() -> None:
    model = nn.Sequential(torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager"))
    x = torch.randn(3, 8)
    before = model(x)
    prepare_(model, QuantConfig(TensorConfig(2)))
    prepared = model.eval()(x)
    assert not torch.equal(prepared, before)
    convert_(model)
    assert torch.equal(model(x), prepared)


@pytest.mark.parametrize("scheme", ["learned", "static"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_average_of_models(scheme: str, when: str) -> None:
    """An average that is made before the first batch is a copy of what is not known yet."""
    model, x = training_models.linear_model(), torch.randn(6, 16)
    prepare_(model, training_models.SCHEMES[scheme])
    if when == "after":
        model(x)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=scheme == "static")
    for _ in range(3):
        training_models.train(model, x, lr=1e-3)
        average.update_parameters(model)
    converted = copy.deepcopy(average).eval()
    convert_(converted)  # before the average has run at all
    prepared = average.eval()(x)
    assert prepared.isfinite().all() and torch.equal(converted(x), prepared)


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_first_batch_within_a_wrapper_is_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    x = torch.randn(3, 16)
    wrapped = [training_models.linear_model() for _ in range(3)]
    for model in wrapped:
        prepare_(model, training_models.LEARNED)
    parallel = DistributedDataParallel(wrapped[0])
    with pytest.raises(RuntimeError, match=r"0\.input_fake_quant: expected the first batch before"):
        parallel(x)
    sharded = fully_shard(wrapped[1])
    message = r": 0\.input_fake_quant: .* it runs in FSDPSequential; run one batch"
    with pytest.raises(RuntimeError, match=message):
        sharded(x)
    # Known before: no complaint, and the model beside the wrapped ones has nothing to do with them.
    wrapped[2](x)
    DistributedDataParallel(wrapped[2])(x).sum().backward()


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = nn.Embedding(4, 0), nn.Embedding(0, 4)
        self.usual, self.empty = nn.Linear(8, 8), nn.ModuleList(tables)
        self.empty += [nn.Linear(8, 0), nn.Linear(0, 8)]

    def forward(self, x: Tensor) -> list[Tensor]:
        inputs = torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64), x, x[:, :0]
        return [self.usual(x), *(layer(y) for layer, y in zip(self.empty, inputs, strict=True))]


EMPTY = "its weight has no elements"


@by_action
@pytest.mark.parametrize("scheme", [W8A8(), W8A8Static(), W8A16(), W4A16(8), W4A8(8)], ids=str)
def test_empty_layers_stay_floating(scheme: QuantConfig, action: Any, tmp_path: Path) -> None:
    model, x = Empty().eval(), torch.randn(5, 8)
    before = model(x)
    if action is quantize_:
        given = {"calibration": [x] if scheme.is_static else None}
        report = quantize_(model, scheme, **given)
        refused(quantize_, EMPTY, nn.Sequential(nn.Linear(8, 0)), scheme, **given)
    else:
        report = prepare_(model, scheme)
        model.train()(x)
        convert_(model.eval())
    assert report.left_out == {f"empty.{index}": EMPTY for index in range(4)}
    assert type(model.usual) is not nn.Linear
    assert all(map(torch.equal, model(x)[1:], before[1:]))
    baraquant.save(model, tmp_path / "model.safetensors")
    other = baraquant.load_(Empty().eval(), tmp_path / "model.safetensors")
    assert all(map(torch.equal, other(x), model(x)))
