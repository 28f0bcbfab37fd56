# SPDX-License-Identifier: BSD-3-Clause
"""Learned scales whose first batches are not finite: unknown until one is, and counted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import PerGroup, PerTensor, QuantConfig, TensorConfig
from baraquant.nn import LearnedFakeQuantize, LearnedFakeQuantizeInt4
from baraquant.qat import convert_, prepare_
from tests.support import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
SHAPE = (3, 8)
KINDS: dict[str, Callable[[bool], nn.Module]] = {
    "per_tensor": lambda symmetric: LearnedFakeQuantize(symmetric=symmetric),
    "per_channel": lambda symmetric: LearnedFakeQuantize(
        "per_channel", axis=0, shape=(3,), symmetric=symmetric
    ),
    "per_group": lambda symmetric: LearnedFakeQuantize(
        "per_group", group_size=4, shape=(3, 2), symmetric=symmetric
    ),
    "int4": lambda symmetric: LearnedFakeQuantizeInt4(4, shape=(3, 2), symmetric=symmetric),
    "int4_max": lambda symmetric: LearnedFakeQuantizeInt4(
        4, shape=(3, 2), symmetric=symmetric, scale_rule="max"
    ),
}
WAYS: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
    "eager": lambda module: module,
    "compiled": lambda module: torch.compile(module, backend="aot_eager", fullgraph=True),
    "scripted": torch.jit.script,
}
by_kind = pytest.mark.parametrize("kind", KINDS)
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_bad = pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
LEARNED = {
    "linear": QuantConfig(
        TensorConfig(4, learned=True), TensorConfig(8, PerTensor(), learned=True)
    ),
    "asymmetric": QuantConfig(
        TensorConfig(8), TensorConfig(8, PerTensor(), symmetric=False, learned=True)
    ),
    "factors": QuantConfig(
        TensorConfig(4, PerGroup(4), learned=True, group_factors=True),
        TensorConfig(8, PerTensor(), learned=True),
    ),
}


def example(bad: float | None = None) -> Tensor:
    x = torch.randn(SHAPE, generator=cases.generator(0))
    if bad is not None:
        x[1, 2] = bad
    return x


@pytest.mark.parametrize("way", WAYS)
@by_symmetry
@by_kind
@by_bad
def test_it_starts_with_the_first_finite_batch(
    kind: str, symmetric: bool, bad: float, way: str
) -> None:
    if kind.startswith("int4"):
        way = "eager"  # it is initialized from a weight, before anything is compiled
    torch._dynamo.reset()
    module, twin = KINDS[kind](symmetric), KINDS[kind](symmetric)
    run = WAYS[way](module)
    owner: Any = run if way == "scripted" else module
    for count in (1, 2):
        assert run(example(bad))[1].isnan().any() and int(owner.skipped_batches) == count
        assert owner.scale.isnan().any()
    assert torch.equal(run(example()), twin(example()))
    for name, parameter in twin.named_parameters():
        assert torch.equal(getattr(owner, name), parameter)
    assert int(owner.skipped_batches) == 2 and int(twin.skipped_batches) == 0


@pytest.mark.parametrize("way", ["eager", "compiled"])
@by_symmetry
@by_bad
def test_a_later_batch_poisons_nothing(symmetric: bool, bad: float, way: str) -> None:
    """Where the loss ignores what is not finite, so do the gradients of scale and zero point."""
    torch._dynamo.reset()
    module = KINDS["per_tensor"](symmetric)
    module(example())
    before = copy.deepcopy(module.state_dict())
    x = example(bad)
    y = WAYS[way](module)(x)
    torch.where(x.isfinite(), y, 0.0).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("name", LEARNED)
def test_a_layer_says_what_it_skipped(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    prepare_(model, LEARNED[name])
    quantizer = model[0].input_fake_quant
    assert model(example(float("nan"))).isnan().any() and int(quantizer.skipped_batches) == 1
    with pytest.raises(RuntimeError, match=r"finite batch in training mode.*\(EMA\)"):
        model.eval()(example())
    with pytest.raises(ValueError, match=r"0: .*no data.*1 batch with a NaN or infinity.*\(EMA\)"):
        convert_(model)
    model.train()(example())
    with torch.no_grad():
        evaluated = model.eval()(example())
    report = convert_(model)
    assert report.changed["0"].endswith(
        "1 batch with a NaN or infinity took no part in its input's range"
    )
    assert torch.equal(model(example()), evaluated)


def test_a_weight_that_is_not_finite_is_looked_at_again() -> None:
    linear = nn.Linear(8, 4)
    good = linear.weight.detach().clone()
    with torch.no_grad():
        linear.weight[2, 3] = float("inf")
    for config in (LEARNED["linear"], baraquant.W4A8(4, learned=True)):
        model = nn.Sequential(copy.deepcopy(linear))
        prepare_(model, config)
        assert int(model[0].weight_fake_quant.skipped_batches) == 1
        model(example())
        with torch.no_grad():
            model[0].weight.copy_(good)
        twin = nn.Sequential(nn.Linear(8, 4))
        twin.load_state_dict({"0.weight": good, "0.bias": linear.bias})
        prepare_(twin, config)
        assert torch.equal(model(example()), twin(example()))


def test_a_state_of_an_older_version_has_no_counter() -> None:
    module, other = KINDS["per_channel"](True), KINDS["per_channel"](True)
    module(example())
    state = module.state_dict()
    del state["skipped_batches"]
    other.load_state_dict(state)
    assert torch.equal(other.eval()(example()), module.eval()(example()))


def test_an_average_that_was_copied_too_early_names_the_cause() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    prepare_(model, LEARNED["linear"])
    early = copy.deepcopy(model)
    model(example())
    late = copy.deepcopy(model)
    with torch.no_grad():
        for average in (early, late):
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
    cause = r"a copy of the model that averages its parameters \(EMA\) has to be made after that fi"
    with pytest.raises(RuntimeError, match=cause):
        early.eval()(example())
    with pytest.raises(ValueError, match=cause):
        convert_(early)
    assert late.eval()(example()).isfinite().all() and convert_(late).changed


def test_the_steps_after_the_first_read_nothing_back(cuda: torch.device) -> None:
    module = KINDS["per_tensor"](False).to(cuda)
    x = example().to(cuda)
    module(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        module(x).sum().backward()
        module(x * float("nan"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
