# SPDX-License-Identifier: BSD-3-Clause
"""A prepared model without rounding, for a while: the float model's bits, and nothing left."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from baraquant import W8A8
from baraquant import nn as bnn
from baraquant.qat import convert_, distillation_loss, prepare_, teacher
from tests.nn.expert_models import experts, inputs
from tests.support.models.training_models import SCHEMES, block, data
from tests.workflow.every_family import TOKENS, EveryFamily

X = data(2, 3, 16)
W8: Any = SCHEMES["w8a8"]


def prepared(scheme: Any = W8) -> nn.Module:
    model = block()
    prepare_(model, scheme)
    return model


def float_of(model: nn.Module, *inputs: Any) -> Tensor:
    with torch.no_grad(), teacher(model):
        output: Tensor = model(*inputs)
    return output


def grads_of(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bits_are_of_the_float_model_and_nothing_moves(
    scheme: str, dtype: torch.dtype | None
) -> None:
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        expected, model = block()(X), prepared(SCHEMES[scheme])
        before = copy.deepcopy(model.state_dict())
        assert torch.equal(float_of(model, X), expected)  # also before the first batch
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.nan_to_num(7), before[name].nan_to_num(7)), name
        model(X)
        model.eval()
        rounded = model(X)
        assert torch.equal(float_of(model, X), expected)
        assert torch.equal(model(X), rounded) and not torch.equal(rounded, expected)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("scheme", ["w8a8", "static", "learned", "weight_only"])
def test_every_family_of_layers(scheme: str, training: bool) -> None:
    torch.manual_seed(0)
    model = EveryFamily()
    prepared = copy.deepcopy(model)
    prepare_(prepared, SCHEMES[scheme])
    prepared(TOKENS)
    # PyTorch's recurrent modules and transposed convolutions add in another order.
    found = float_of(prepared.train(training), TOKENS)
    torch.testing.assert_close(found, model.train(training)(TOKENS))
    with teacher(prepared):
        assert torch.equal(prepared.table.weight, model.table.weight)  # a tied head reads it


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("scheme", ["w8a8", "static", "learned"])
def test_experts(scheme: str, training: bool) -> None:
    model = nn.Sequential(experts())
    expected = model[0](*inputs("mixtral"))
    prepare_(model, SCHEMES[scheme])
    model[0](*inputs("mixtral"))
    assert torch.equal(float_of(model.train(training)[0], *inputs("mixtral")), expected)


def test_rotated_weights_and_a_quantizer_alone() -> None:
    expected, model = block()(X), prepared(W8A8(rotate=16))
    torch.testing.assert_close(float_of(model, X), expected)
    alone = nn.Sequential(bnn.FakeQuantize(0.5, 0))
    assert float_of(alone, X) is X and alone(X) is not X


def test_gradient_is_that_of_the_float_model() -> None:
    model, plain = prepared(SCHEMES["learned"]), block()
    model(X)
    with teacher(model):
        model.up(X).square().sum().backward()
    plain.up(X).square().sum().backward()
    assert torch.equal(model.up._parameters["weight"].grad, plain.up.weight.grad)
    assert model.up.weight_fake_quant.scale.grad is None


def test_it_ends_with_its_last_block_however_this_ends() -> None:
    model, expected = prepared(), block()(X)
    rounded = model(X)

    def steps() -> Iterator[None]:
        with teacher(model.up):
            yield

    with pytest.raises(KeyError), teacher(model):
        with teacher(model), teacher(model.up):
            copied = copy.deepcopy(model)
        assert torch.equal(model(X), expected)
        assert torch.equal(copied(X), rounded)
        raise KeyError
    assert torch.equal(model(X), rounded)
    late = steps()
    next(late)
    assert not torch.equal(model(X), rounded)
    with teacher(model):
        del late
        gc.collect()
        assert torch.equal(model(X), expected)
    assert torch.equal(model(X), rounded)


def test_threads_that_overlap_leave_nothing() -> None:
    model = prepared()
    rounded, together = model(X), threading.Barrier(4)

    def work() -> None:
        for _ in range(50):
            together.wait()
            with ExitStack() as stack:
                for _ in range(3):
                    stack.enter_context(teacher(model))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(model(X), rounded)


@pytest.mark.parametrize("scheme", ["w8a8", "static", "learned_factors"])
def test_compiled_models_have_two_graphs(scheme: str) -> None:
    torch._dynamo.reset()
    model = prepared(SCHEMES[scheme])
    model(X)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(2):
        compiled(X).sum().backward()
        with teacher(compiled):
            expected = model(X)
            assert torch.equal(compiled(X), expected)
            with teacher(model):
                assert torch.equal(compiled(X), expected)
    assert counter.frame_count == 2
    assert torch.equal(expected, block()(X))


@pytest.mark.parametrize("within", [True, False], ids=["backward within", "backward after"])
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "hooks"])
@pytest.mark.parametrize("scheme", ["w8a8", "static", "learned"])
def test_what_a_checkpoint_recomputes_is_the_student(
    scheme: str, use_reentrant: bool, within: bool
) -> None:
    model = prepared(SCHEMES[scheme])
    model(X)
    plain = copy.deepcopy(model)
    distillation_loss(plain(X), block()(X)).backward()
    x = X.clone().requires_grad_()
    student = checkpoint(model, x, use_reentrant=use_reentrant)
    with ExitStack() as stack:
        stack.enter_context(teacher(model))
        with torch.no_grad():
            target = checkpoint(model, X, use_reentrant=use_reentrant)
        if not within:
            stack.close()
        distillation_loss(student, target).backward()
    for found, expected in zip(grads_of(model), grads_of(plain), strict=True):
        assert (found is expected) or torch.equal(found, expected)


def test_errors() -> None:
    converted = prepared().eval()
    convert_(converted)
    for model in (nn.Linear(2, 2), converted):
        with pytest.raises(ValueError, match=r"expected a model prepared by .*has no prepared"):
            teacher(model).__enter__()
    with pytest.raises(TypeError, match="expected model to be a Module, but got int"):
        teacher(3).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_its_gradient(dtype: torch.dtype, temperature: float) -> None:
    student = (60 * data(3, 5, 7, seed=1)).to(dtype).requires_grad_()
    target = (60 * data(3, 5, 7, seed=2)).to(dtype).requires_grad_()
    loss = distillation_loss(student, target, temperature)
    loss.backward()
    p, q = ((one.double() / temperature).softmax(-1) for one in (target, student))
    expected = temperature**2 * (p * (p / q).log()).sum(-1).mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    assert loss.dtype == torch.promote_types(dtype, torch.float32) and target.grad is None
    exact = (temperature * (q - p) / 15).to(dtype)
    torch.testing.assert_close(student.grad, exact, rtol=1e-2, atol=1e-6)


def test_loss_with_masked_classes_under_autocast_and_errors() -> None:
    mask = torch.tensor([0.0, -torch.inf, 0.0])
    student, target = data(4, 3, seed=1).requires_grad_(), data(4, 3, seed=2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = distillation_loss(student + mask, target + mask)
    loss.backward()
    expected = distillation_loss(student[:, ::2], target[:, ::2])
    torch.testing.assert_close(loss, expected)
    assert student.grad.isfinite().all() and (student.grad[:, 1] == 0).all()
    assert distillation_loss(target, target) == 0
    with pytest.raises(ValueError, match=r"of one shape, but got \[4, 3\] and \[3\]"):
        distillation_loss(target, target[0])
    with pytest.raises(ValueError, match="temperature to be above 0, but got 0"):
        distillation_loss(target, target, 0)
