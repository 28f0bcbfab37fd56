# SPDX-License-Identifier: BSD-3-Clause
"""The step of training a prepared Transformer block: compiled, checkpointed, under autocast."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from baraquant import nn as bnn
from baraquant.qat import convert_, prepare_
from tests.support.models.training_models import SCHEMES, block, data
from tests.support.saved_tensors import saved_tensors, storages

STEPS = 3
by_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def prepared(scheme: str, seen: bool = True) -> nn.Module:
    model = block()
    prepare_(model, SCHEMES[scheme])
    if seen:
        with torch.no_grad():
            model(data(2, 5, 16, seed=9))
    return model


def train(
    model: nn.Module, forward: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None
) -> list[float]:
    # SGD: a step of Adam makes much of what rounding makes of a gradient near 0.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = forward(data(2, 5, 16, seed=step)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.cover(scheme=None)
@pytest.mark.parametrize("scheme", ["w8a8", "static", "learned", "groups", "learned_factors"])
def test_compiled_step(scheme: str) -> None:
    """One graph for the forward pass and one for the backward pass; the optimizer compiled too."""
    torch._dynamo.reset()
    model = prepared(scheme, seen=False)
    twin = copy.deepcopy(model)
    losses = train(model, model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    forward = torch.compile(twin, fullgraph=True, backend="aot_eager")
    update = torch.compile(optimizer.step, backend="aot_eager")
    compiled = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = forward(data(2, 5, 16, seed=step)).square().mean()
        loss.backward()
        update()
        compiled.append(loss.item())
    assert compiled == pytest.approx(losses, rel=1e-4)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[name], tensor, rtol=1e-2, atol=2e-3)


@pytest.mark.inductor
def test_compiled_by_inductor() -> None:
    torch._dynamo.reset()
    model = prepared("w8a8")
    twin = copy.deepcopy(model)
    assert train(twin, torch.compile(twin, fullgraph=True)) == pytest.approx(
        train(model, model), rel=1e-4
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "hooks"])
def test_checkpointed_step(scheme: str, use_reentrant: bool) -> None:
    """The same bits; what is computed again is not observed again."""
    model = prepared(scheme, seen=False)
    twin = copy.deepcopy(model)
    losses = train(model, lambda x: model(x.requires_grad_()))
    again = train(twin, lambda x: checkpoint(twin, x.requires_grad_(), use_reentrant=use_reentrant))
    assert again == losses
    for name, tensor in model.state_dict().items():
        assert torch.equal(twin.state_dict()[name], tensor), name


def test_compiled_and_checkpointed_step() -> None:
    torch._dynamo.reset()
    model = prepared("w8a8")
    twin = copy.deepcopy(model)
    forward = torch.compile(
        lambda x: checkpoint(twin, x, use_reentrant=False), fullgraph=True, backend="aot_eager"
    )
    assert train(twin, forward) == pytest.approx(train(model, model), rel=1e-4)


@by_scheme
def test_autocast(scheme: str) -> None:
    model = prepared(scheme)
    twin = copy.deepcopy(model)
    losses, lowered = train(model, model), train(twin, twin, torch.bfloat16)
    assert lowered == pytest.approx(losses, rel=0.03)
    assert lowered != losses
    for parameter in twin.parameters():
        assert parameter.dtype == torch.float32 and parameter.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert twin.up(data(2, 16)).dtype == torch.bfloat16
        convert_(twin.eval())
        assert twin(data(2, 5, 16)).isfinite().all()


@by_scheme
def test_bfloat16_model(scheme: str) -> None:
    model = block().bfloat16()
    prepare_(model, SCHEMES[scheme])
    losses = train(model, lambda x: model(x.bfloat16()))
    assert losses[-1] < losses[0]
    for name, parameter in model.named_parameters():
        kept = "fake_quant" in name
        assert parameter.dtype == (torch.float32 if kept else torch.bfloat16), name


@pytest.mark.cover(scheme=None)
@by_scheme
def test_dynamic_shapes(scheme: str) -> None:
    """One compilation for all lengths of the sequence (and one for the first)."""
    torch._dynamo.reset()
    model = prepared(scheme)
    with torch.no_grad():
        model.apply(bnn.disable_observer)
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        with torch._dynamo.config.patch(recompile_limit=1):
            for length in (5, 7, 12):
                x = data(2, length, 16)
                torch.testing.assert_close(compiled(x), model(x))


def test_w8a8_keeps_int8_for_backward() -> None:
    """Of its input a quarter of what a float32 linear layer keeps; of its parameters no copy."""
    layer = bnn.FakeQuantizedLinear(64, 32)
    x = data(128, 64).requires_grad_()
    with saved_tensors() as saved:
        layer(x)
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept = [size for address, size in storages(saved).items() if address not in own]
    assert sum(kept) < 0.3 * x.numel() * x.element_size()


@pytest.mark.cover(scheme=None)
@pytest.mark.parametrize("scheme", ["w4a8", "learned", "groups", "learned_factors", "weight_only"])
def test_training_gains_what_rounding_lost(scheme: str) -> None:
    """A teacher's outputs: trained for its life as integers, a student is closer than rounded."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 4))
    x = data(256, 16)
    wanted = teacher(x).detach()
    student = copy.deepcopy(teacher)
    prepare_(student, SCHEMES[scheme])
    # Adam moves the steps of small groups by its rate, and they are small themselves.
    rate = 1e-3 if scheme == "learned_factors" else 5e-3
    optimizer = torch.optim.Adam(student.parameters(), lr=rate)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    first = None
    for _ in range(200):
        loss = (student(x) - wanted).square().mean()
        first = loss.item() if first is None else first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    convert_(student.eval())
    assert (student(x) - wanted).square().mean() < 0.7 * first
