# SPDX-License-Identifier: BSD-3-Clause
"""The ops that change a running range in place, under the tools of PyTorch."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from baraquant import ops
from tests.support import cases
from tests.support.calls.affine import assert_equal, outputs, value_and_gradients
from tests.support.calls.range import OBSERVE_CALLS, ObserveCall

SHAPE = (3, 4, 20)
by_call = pytest.mark.parametrize("call", OBSERVE_CALLS, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Observer(nn.Module):
    """The state is in buffers."""

    def __init__(self, axis: int | None = None, average: float | None = None) -> None:
        super().__init__()
        self.axis, self.average = axis, average
        shape = [] if axis is None else [SHAPE[axis]]
        self.register_buffer("min_val", torch.full(shape, math.inf))
        self.register_buffer("max_val", torch.full(shape, -math.inf))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("zero_point", torch.zeros(shape, dtype=torch.int32))
        self.register_buffer("observe", torch.tensor(True))
        self.register_buffer("quantize", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        return ops.observe_fake_quantize(
            x,
            self.min_val,
            self.max_val,
            self.scale,
            self.zero_point,
            self.observe,
            self.quantize,
            self.axis,
            -8,
            7,
            symmetric=False,
            averaging_constant=self.average,
        )


def state_of(module: nn.Module) -> tuple[Tensor, ...]:
    return tuple(b for _, b in sorted(module.named_buffers()))


def batches(device: str) -> list[Tensor]:
    gen = cases.generator(0)
    scales = (1.0, 3.0, 0.5, 8.0, 2.0)
    return [torch.randn(SHAPE, generator=gen).to(device).mul(s) for s in scales]


def assert_same_training(run: Callable[[Tensor], Tensor], module: nn.Module, device: str) -> None:
    """Forward, backward and state of `run`, made of `module`, against a fresh eager module."""
    eager = Observer(module.axis, module.average).to(device)  # type: ignore[arg-type]
    switches = [(True, True), (True, False), (False, True), (False, False), (True, True)]
    for x, (observe, quantize) in zip(batches(device), switches, strict=True):
        for m in (module, eager):
            m.observe.fill_(observe)
            m.quantize.fill_(quantize)
        leaf = x.requires_grad_()
        assert_equal(value_and_gradients(run, (leaf,)), value_and_gradients(eager, (leaf,)))
        assert_equal(state_of(module), state_of(eager))
    assert eager.min_val.isfinite().all()


# --- calls -------------------------------------------------------------------------------------


@by_call
def test_the_result_and_the_arguments(call: ObserveCall, device: str) -> None:
    """Positions and keywords are the same; what is not to change does not."""
    tensors = call.tensors(SHAPE, device=device)
    args, kwargs = call.arguments
    names = [a.name for a in call.overload._schema.arguments]
    expected = call(*tensors)
    for split in range(len(tensors) + len(args) + 1):
        given = [t.clone() for t in tensors]
        values = [*given, *args]
        named = dict(zip(names[split : len(values)], values[split:], strict=True))
        result = call.function(*values[:split], **named, **kwargs)
        state = tuple(given[1:])
        assert_equal(state if result is None else (result, *state), expected)
        assert torch.equal(given[0], tensors[0])
        assert (result is None) != call.differentiable


def test_integers_for_the_averaging_constant(device: str) -> None:
    low, high = torch.tensor(0.0, device=device), torch.tensor(1.0, device=device)
    ops.observe_min_max_(torch.tensor([2.0, 3.0], device=device), low, high, None, 1)
    assert (low.item(), high.item()) == (2.0, 3.0)


@by_call
def test_versions_count(call: ObserveCall, device: str) -> None:
    """Autograd notices that a tensor which it keeps was changed."""
    x, *state = call.tensors(SHAPE, device=device)
    before = [t._version for t in state]
    args, kwargs = call.arguments
    call.function(x, *state, *args, **kwargs)
    count = 4 if call.differentiable else 2  # of those that are written
    changed = [t._version > b for t, b in zip(state, before, strict=True)]
    assert changed == [i < count for i in range(len(state))]
    kept = torch.ones((), device=device, requires_grad=True) * state[0]
    call.function(x, *state, *args, **kwargs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


# --- compilers -----------------------------------------------------------------------------------


@by_call
def test_compile_changes_what_it_is_given(call: ObserveCall, device: str) -> None:
    """The state is an input of the graph, and stays the same memory."""
    args, kwargs = call.arguments

    def step(*tensors: Tensor) -> Any:
        return call.function(*tensors, *args, **kwargs)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    state, expected = ([t.clone() for t in call.tensors(SHAPE, device=device)[1:]] for _ in "12")
    where = [t.data_ptr() for t in state]
    for batch in batches(device):
        result, wanted = compiled(batch, *state), step(batch, *expected)
        assert_equal(tuple(state), tuple(expected))
        assert outputs(result) == (None,) or torch.equal(result, wanted)
    assert [t.data_ptr() for t in state] == where


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_module(axis: int | None, backend: str, device: str) -> None:
    """Switched on and off between steps, without a recompilation."""
    module = Observer(axis, 0.25).to(device)
    counter = CompileCounterWithBackend(backend)
    run = torch.compile(module, fullgraph=True, backend=counter)
    assert_same_training(run, module, device)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_backward_after_further_steps(backend: str, device: str) -> None:
    """Each backward uses the scale of its own forward, though later ones have changed it."""
    module, eager = Observer(1, 0.25).to(device), Observer(1, 0.25).to(device)
    run = torch.compile(module, fullgraph=True, backend=backend)
    leaves = [x.requires_grad_() for x in batches(device)]
    pairs = [(run(x), eager(x)) for x in leaves]
    for x, (y, expected) in zip(leaves, pairs, strict=True):
        gradients = [torch.autograd.grad(r, x, torch.ones_like(r))[0] for r in (y, expected)]
        assert torch.equal(y, expected) and torch.equal(*gradients)


@pytest.mark.parametrize("dynamic", [False, True])
def test_both_ends_in_one_buffer(dynamic: bool, device: str) -> None:
    """Views that share memory, but no element."""

    def step(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ops.observe_min_max_(x, low, high, 1, 0.5)
        return high - low

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    ends, expected = (torch.zeros(2, SHAPE[1], device=device) for _ in "12")
    for x in batches(device):
        assert torch.equal(compiled(x, *ends.unbind()), step(x, *expected.unbind()))
        assert torch.equal(ends, expected)


def test_compiled_autograd(device: str) -> None:
    module = Observer(1).to(device)

    def compile_backward(graph: Any) -> Any:
        return torch.compile(graph, backend="aot_eager", fullgraph=True)

    with torch._dynamo.compiled_autograd._enable(compile_backward):
        assert_same_training(module, module, device)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] >= 1


# --- TorchScript ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("axis", [None, 1])
def test_script(how: str, axis: int | None, device: str) -> None:
    module = Observer(axis, 0.25).to(device)
    if how == "script":
        ready = torch.jit.script(module)
    else:
        ready = torch.jit.trace(copy.deepcopy(module), torch.randn(SHAPE, device=device))
        for name, value in module.named_buffers():  # tracing has observed already
            getattr(ready, name).copy_(value)
    file = io.BytesIO()
    torch.jit.save(ready, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for run in (ready, loaded):
        assert "baraquant::observe_fake_quantize" in str(run.graph)
        run.axis, run.average = axis, 0.25
        assert_same_training(run, run, device)


def test_script_of_observe_min_max(device: str) -> None:
    def observed(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ops.observe_min_max_(x, low, high)
        ops.observe_min_max_(2 * x, low, high, averaging_constant=0.5)
        return high - low

    scripted = torch.jit.script(observed)
    assert str(scripted.graph).count("baraquant::observe_min_max_") == 2
    for x in batches(device):
        states = [[torch.tensor(v, device=device) for v in (0.0, 0.5)] for _ in range(2)]
        assert torch.equal(scripted(x, *states[0]), observed(x, *states[1]))
        assert all(map(torch.equal, *states))


def test_frozen_module_does_not_fold_the_state(device: str) -> None:
    """Freezing makes constants of buffers, but not of those that are changed."""
    module = Observer().to(device).eval()
    module(batches(device)[0])
    module.observe.fill_(False)
    frozen = torch.jit.freeze(torch.jit.script(module))
    for x in batches(device):
        assert torch.equal(frozen(x), module(x))


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("axis", [None, 1])
def test_checkpoint(axis: int | None, reentrant: bool, device: str) -> None:
    """Extremes are the same when they are observed a second time, in the backward pass."""
    module = Observer(axis).to(device)

    eager = Observer(axis).to(device)
    for x in batches(device):
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        y = checkpoint(lambda x: module(torch.tanh(x)), ours, use_reentrant=reentrant)
        expected = eager(torch.tanh(theirs))
        for result in (y, expected):
            result.backward(torch.ones_like(result).cumsum(-1))
        assert torch.equal(y, expected)
        assert torch.equal(ours.grad, theirs.grad)
        assert_equal(state_of(module), state_of(eager))


def test_checkpoint_counts_a_moving_average_twice(device: str) -> None:
    """As the docstring says."""
    module, twice = Observer(None, 0.25).to(device), Observer(None, 0.25).to(device)
    first, second = batches(device)[:2]
    module(first)
    twice(first)
    checkpoint(module, second.requires_grad_(), use_reentrant=False).sum().backward()
    twice(second)
    twice(second)
    assert_equal(state_of(module), state_of(twice))


@pytest.mark.parametrize("call", [OBSERVE_CALLS[0], OBSERVE_CALLS[4]], ids=str)
def test_vmap_is_refused(call: ObserveCall, device: str) -> None:
    """Whichever argument has the batch; nothing has changed then."""
    x, *state = (t.detach() for t in call.tensors(SHAPE, device=device))
    args, kwargs = call.arguments

    def step(*tensors: Tensor) -> Any:
        return call.function(*tensors, *args, **kwargs)

    for batched in ("input", "state"):
        given = [t.clone() for t in (x, *state)]
        dims = tuple(0 if (i == 0) == (batched == "input") else None for i in range(len(given)))
        stacked = [
            t if d is None else torch.stack([t, t]) for t, d in zip(given, dims, strict=True)
        ]
        before = [t.clone() for t in stacked]
        words = f"baraquant::{call.name}: .* samples of torch.vmap cannot share"
        with pytest.raises(NotImplementedError, match=words):
            torch.vmap(step, dims, out_dims=None)(*stacked)
        assert all(map(torch.equal, stacked, before))
