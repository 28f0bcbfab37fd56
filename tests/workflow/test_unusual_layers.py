# SPDX-License-Identifier: BSD-3-Clause
"""Layers that are no plain ones: swapped where that is safe, else left out with the reason."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune, weight_norm

from baraquant import W8A8, QuantConfig, TensorConfig, quantize_
from baraquant.qat import convert_, prepare_
from baraquant.workflow.replace import Report
from tests.support.models import training_models, user_models

pytestmark = pytest.mark.usefixtures("one_thread")
one_thread = user_models.one_thread


class Scaled(nn.Embedding):
    """It looks at the table beside what its parent returns."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.weight.std()


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


def subclassed() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Kept))
    return layer


def patched() -> nn.Module:
    """As accelerate and others do it."""
    layer = nn.Linear(8, 8)
    old = layer.forward
    layer.forward = lambda input: old(input) * 2.0
    return layer


def lazy_run() -> nn.Module:
    layer = nn.LazyLinear(8)
    layer(torch.ones(2, 8))
    return layer


class Plain(nn.Linear):
    pass


LEFT_OUT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "two_hooks": (
        lambda: prune.identity(weight_norm(nn.Linear(8, 8)), "weight_v"),
        "its weight is computed by a hook",
    ),
    "parametrized": (
        lambda: parametrizations.weight_norm(nn.Bilinear(8, 8, 8)),
        "its weight is computed by a parametrization",
    ),
    "lazy": (lambda: nn.LazyLinear(8), "its shape is not known yet: run a batch first"),
    "lazy_conv": (lambda: nn.LazyConv3d(8, 1), "its shape is not known yet: run a batch first"),
    "scaled": (lambda: Scaled(8, 8), "Scaled has a forward of its own"),
    "standardized": (lambda: Standardized(8, 8, 1), "Standardized has a forward of its own"),
    "doubled": (doubled, "Doubled has a weight of its own"),
    "called": (lambda: Called(8, 8), "Called has a forward of its own"),
    "patched": (patched, "its forward was replaced by another"),
    "subclass_of_tensor": (subclassed, "its weight is a Kept"),
    "int8": (lambda: of_dtype(torch.int8), "its weight is torch.int8"),
    "float8": (lambda: of_dtype(torch.float8_e4m3fn), "its weight is torch.float8_e4m3fn"),
    "complex": (
        lambda: nn.Linear(8, 8, dtype=torch.complex64),
        "its weight is torch.complex64",
    ),
    "max_norm": (lambda: nn.Embedding(8, 8, max_norm=1.0), "max_norm"),
    "bilinear": (lambda: nn.Bilinear(8, 8, 8), "there is no quantized form of Bilinear"),
    "conv1d_of_gpt2": (lambda: user_models.Conv1D(8, 8), "there is no quantized form of Conv1D"),
}


def of_dtype(dtype: torch.dtype) -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)
    return layer


ACTIONS: dict[str, Callable[[nn.Module], Report]] = {
    "prepare_": lambda model: prepare_(model, W8A8()),
    "quantize_": lambda model: quantize_(model, W8A8()),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Lazy modules")
def test_left_out(name: str, action: str) -> None:
    build, reason = LEFT_OUT[name]
    odd = build()
    model = nn.Sequential(odd, nn.Linear(8, 2))
    report = ACTIONS[action](model)
    assert model[0] is odd
    assert reason in report.left_out["0"]
    assert list(report.left_out) == ["0"] and list(report.changed) == ["1"]
    if action == "prepare_":
        assert convert_(model).left_out == {"0": "it was not prepared"}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("build", [lambda: Plain(8, 8), lazy_run], ids=["subclass", "lazy_run"])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_layers_that_are_plain_after_all(build: Callable[[], nn.Module], action: str) -> None:
    report = ACTIONS[action](nn.Sequential(build(), nn.Linear(8, 2)))
    assert list(report.changed) == ["0", "1"] and not report.left_out


class Merged(user_models.LoRALinear):
    """It computes with one weight, as a LoRA layer does that was merged."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias) + self.up(self.down(x))


@pytest.mark.parametrize("action", ACTIONS)
def test_layers_within_what_is_left_out(action: str) -> None:
    model = nn.Sequential(Merged(8, 8), nn.Linear(8, 2))
    report = ACTIONS[action](model)
    assert list(report.changed) == ["0.down", "0.up", "1"]
    assert report.left_out == {"0": "Merged has a forward of its own"}
    assert model(torch.randn(3, 8)).isfinite().all()


def test_weights_beside_layers_are_reported() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.gain = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8))
            self.layer = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x @ self.table * self.gain)

    model = Own()
    report = prepare_(model, W8A8())
    assert report.left_out == {"": "there is no quantized form of Own for table"}
    assert "(the model)  left out: there is no quantized form of Own for table" in str(report)
    assert convert_(model).left_out == {"": "it was not prepared"}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_layer_compiled_by_itself_is_refused(action: str) -> None:
    layer = nn.Linear(8, 8)
    model = nn.Sequential(torch.compile(layer, backend="eager"), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"0\._orig_mod: expected a Linear that is not compiled"):
        ACTIONS[action](model)
    assert model[0]._orig_mod is layer and type(model[1]) is nn.Linear


def test_a_compiled_block_is_followed() -> None:
    model = nn.Sequential(torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager"))
    x = torch.randn(3, 8)
    before = model(x)
    prepare_(model, QuantConfig(TensorConfig(2)))
    prepared = model.eval()(x)
    assert not torch.equal(prepared, before)
    convert_(model)
    assert torch.equal(model(x), prepared)


def test_filter_that_is_no_function() -> None:
    with pytest.raises(TypeError, match="prepare_: expected filter_fn to be a function"):
        prepare_(nn.Sequential(nn.Linear(8, 8)), W8A8(), "0")  # type: ignore[arg-type]


def test_filter_that_raises_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))

    def broken(module: nn.Module, name: str) -> bool:
        if name == "1":
            raise KeyError(name)
        return True

    with pytest.raises(KeyError):
        prepare_(model, W8A8(), broken)
    assert all(type(layer) is nn.Linear for layer in model)


@pytest.mark.parametrize("rows", [1, 2])
def test_one_group_of_one_row(rows: int) -> None:
    model = nn.Sequential(nn.Linear(4, rows))
    prepare_(model, QuantConfig(TensorConfig(4, "per_group", group_size=4)))
    x = torch.randn(3, 4)
    prepared = model.eval()(x)
    convert_(model)
    assert torch.equal(model(x), prepared)


def test_static_scales_are_unknown_before_the_first_batch() -> None:
    model, x = training_models.linear_model(), torch.randn(3, 16)
    prepare_(model, training_models.STATIC)
    with pytest.raises(ValueError, match="it has seen no data: run batches in training mode first"):
        model.eval()(x)
    model.train()(x)
    assert model.eval()(x).isfinite().all()


def test_an_expert_that_gets_no_token_first() -> None:
    model, x = training_models.linear_model(), torch.randn(3, 16)
    prepare_(model, training_models.LEARNED)
    model(x[:0]).sum().backward()
    model(x).sum().backward()
    assert model.eval()(x[:0]).shape == (0, 4)
    assert model(x).isfinite().all()


@pytest.mark.parametrize("scheme", ["learned", "static"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_average_of_models(scheme: str, when: str) -> None:
    """An average that is made before the first batch is a copy of what is not known yet."""
    model, x = training_models.linear_model(), torch.randn(6, 16)
    prepare_(model, training_models.SCHEMES[scheme])
    if when == "after":
        model(x)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=scheme == "static")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
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
    wrapped = (
        training_models.linear_model(),
        training_models.linear_model(),
        training_models.linear_model(),
    )
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
