# SPDX-License-Identifier: BSD-3-Clause
"""The ops that change a running range in place, under the tools of PyTorch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from baraquant import ops
from baraquant.nn import FakeQuantize
from tests.support import cases
from tests.support.calls.affine import assert_equal
from tests.support.calls.range import OBSERVE_CALLS, ObserveCall

SHAPE = (3, 4, 20)
by_call = pytest.mark.parametrize("call", OBSERVE_CALLS, ids=str)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def observer(device: str, average: float | None = None) -> FakeQuantize:
    kinds: dict[str, Any] = {"granularity": "per_channel", "axis": 1, "channels": SHAPE[1]}
    return FakeQuantize(
        **kinds, quant_min=-8, quant_max=7, mode="observed", symmetric=False,
        averaging_constant=average,
    ).to(device)  # fmt: skip


def batches(device: str) -> list[Tensor]:
    gen = cases.generator(0)
    scales = (1.0, 3.0, 0.5, 8.0, 2.0)
    return [torch.randn(SHAPE, generator=gen).to(device).mul(s) for s in scales]


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


# --- compilers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_backward_after_further_steps(backend: str, device: str) -> None:
    """Each backward uses the scale of its own forward, though later ones have changed it."""
    module, eager = observer(device, 0.25), observer(device, 0.25)
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


# --- TorchScript ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["script", "trace"])
def test_script_of_observe_min_max(how: str, device: str) -> None:
    def observed(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ops.observe_min_max_(x, low, high)
        ops.observe_min_max_(2 * x, low, high, averaging_constant=0.5)
        return high - low

    example = (batches(device)[0], *(torch.tensor(0.0, device=device) for _ in "12"))
    scripted = torch.jit.script(observed) if how == "script" else torch.jit.trace(observed, example)
    assert str(scripted.graph).count("baraquant::observe_min_max_") == 2
    for x in batches(device):
        states = [[torch.tensor(v, device=device) for v in (0.0, 0.5)] for _ in range(2)]
        assert torch.equal(scripted(x, *states[0]), observed(x, *states[1]))
        assert all(map(torch.equal, *states))


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("average", [None, 0.25])
@pytest.mark.parametrize("axis", [None, 1])
def test_checkpoint(axis: int | None, average: float | None, reentrant: bool, device: str) -> None:
    """The backward pass observes again: extremes are the same, a moving average counts twice."""
    call = ObserveCall("observe_fake_quantize", axis, average)
    args, kwargs = call.arguments
    x, *state = call.tensors(SHAPE, device=device)
    again, *expected = call.tensors(SHAPE, device=device)

    def step(x: Tensor, *state: Tensor) -> Tensor:
        return call.function(torch.tanh(x), *state, *args, **kwargs)

    y = checkpoint(lambda x: step(x, *state), x, use_reentrant=reentrant)
    wanted = step(again, *expected)
    assert torch.equal(y, wanted)
    for result in (y, wanted):
        result.backward(torch.ones_like(result).cumsum(-1))
    if average is None:
        assert torch.equal(x.grad, again.grad)
    else:
        step(again.detach(), *expected)
    assert_equal(tuple(state), tuple(expected))


@pytest.mark.parametrize("call", [OBSERVE_CALLS[0], OBSERVE_CALLS[4]], ids=str)
def test_vmap_is_refused(call: ObserveCall, device: str) -> None:
    """Whichever argument has the batch; nothing has changed then."""
    x, *state = (t.detach() for t in call.tensors(SHAPE, device=device))
    args, kwargs = call.arguments

    def step(*tensors: Tensor) -> Any:
        return call.function(*tensors, *args, **kwargs)

    for batched in ("input", "state"):
        dims = tuple(0 if (t is x) == (batched == "input") else None for t in (x, *state))
        pairs = zip((x, *state), dims, strict=True)
        stacked = [t.clone() if d is None else torch.stack([t, t]) for t, d in pairs]
        before = [t.clone() for t in stacked]
        words = f"baraquant::{call.name}: .* samples of torch.vmap cannot share"
        with pytest.raises(NotImplementedError, match=words):
            torch.vmap(step, dims, out_dims=None)(*stacked)
        assert all(map(torch.equal, stacked, before))
