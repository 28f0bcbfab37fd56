# SPDX-License-Identifier: BSD-3-Clause
"""The ops under autocast, activation checkpointing and a backward on several threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.support import cases
from tests.support.calls.affine import (
    ALL_CALLS,
    FORWARD_CALLS,
    KINDS,
    Call,
    assert_equal,
    value_and_gradients,
)

SHAPE = (3, 4, 20)
DIFFERENTIABLE = [c for c in FORWARD_CALLS if c.differentiable]
NOT_CAST = [c for c in ALL_CALLS if c.verb != "qat_linear"]  # which is a linear layer


@pytest.mark.parametrize("call", NOT_CAST, ids=str)
@pytest.mark.parametrize(
    "dtype", [d for d in cases.FLOAT_DTYPES if d != torch.float64], ids=cases.name_of
)
def test_autocast_changes_nothing(call: Call, dtype: torch.dtype, device: str) -> None:
    check_autocast(call, dtype, device)


@pytest.mark.parametrize(
    "call", [c for c in NOT_CAST if getattr(c, "takes_float64", True)], ids=str
)
def test_autocast_changes_nothing_of_float64(call: Call, device: str) -> None:
    check_autocast(call, torch.float64, device)


def check_autocast(call: Call, dtype: torch.dtype, device: str) -> None:
    tensors = call.tensors(SHAPE, dtype, device)
    expected = value_and_gradients(call, tensors)
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=low):
            assert_equal(value_and_gradients(call, tensors), expected)


def test_autocast_of_a_network(device: str) -> None:
    """A linear layer gives bfloat16; its output is quantized as the bfloat16 that it is."""
    linear = nn.Linear(20, 20).to(device)
    call = Call("fake_quantize", cases.PER_TENSOR)
    _, scale, zero_point = call.tensors(SHAPE, device=device)
    x = torch.randn(SHAPE, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        hidden = linear(x)
        y = call(hidden, scale, zero_point)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, call(hidden, scale, zero_point))
    y.float().sum().backward()
    assert linear.weight.grad is not None and linear.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=str)
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("activation", [True, False], ids=["activation", "leaf"])
def test_checkpoint(call: Call, reentrant: bool, activation: bool, device: str) -> None:
    tensors = call.tensors(SHAPE, device=device)

    def segment(x: Tensor, *rest: Tensor) -> Tensor:
        return call(torch.tanh(x) if activation else x, *rest)

    def recomputed(*given: Tensor) -> Tensor:
        return checkpoint(segment, *given, use_reentrant=reentrant)

    def gradients(function: object) -> list[Tensor]:
        for t in tensors:
            t.grad = None
        result = function(*tensors)  # type: ignore[operator]
        (result * torch.ones_like(result).cumsum(-1)).sum().backward()
        return [result.detach(), *(t.grad for t in tensors if t.grad is not None)]

    expected = gradients(segment)
    assert len(expected) == 1 + sum(t.requires_grad for t in tensors)
    assert_equal(tuple(gradients(recomputed)), tuple(expected))


@pytest.mark.parametrize("granularity", KINDS, ids=str)
@pytest.mark.parametrize("learned", [False, True])
def test_threads_share_a_graph(granularity: cases.Granularity, learned: bool, device: str) -> None:
    call = Call("fake_quantize", granularity, learned=learned)
    tensors = call.tensors((16, 4, 200), device=device)
    wanted = [t for t in tensors if t.requires_grad]
    y = call(torch.tanh(tensors[0]), *tensors[1:])
    expected = torch.autograd.grad(y, wanted, torch.ones_like(y), retain_graph=True)
    results: list[tuple[Tensor, ...]] = []

    def run() -> None:
        for _ in range(10):
            gradients = torch.autograd.grad(y, wanted, torch.ones_like(y), retain_graph=True)
            results.append(gradients)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    for gradients in results:
        assert_equal(gradients, expected)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=str)
def test_forward_mode_is_refused_clearly(call: Call, device: str) -> None:
    x, *rest = (t.detach() for t in call.tensors(SHAPE, device=device))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp is not implemented"):
        call(forward_ad.make_dual(x, torch.ones_like(x)), *rest)
