# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of the float ops: numerically, against PyTorch's own, twice; and with fake quantize."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.bad_arguments.fused import OPS, Op
from tests.support.calls.affine import outputs, value_and_gradients
from tests.support.calls.fused import EPS, FLOAT_CALLS, NORMS, FusedCall

IN_FLOAT64 = [c for c in FLOAT_CALLS if c.base in (*NORMS, "hadamard")]
by_call = pytest.mark.parametrize("call", FLOAT_CALLS, ids=str)


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", IN_FLOAT64, ids=str)
def test_numerically(call: FusedCall, device: str) -> None:
    tensors = call.tensors((3, 8), torch.float64, device)
    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


def peer(call: FusedCall) -> Callable[..., Any]:
    """PyTorch's ops for the same."""

    def norm(x: Tensor, *others: Tensor) -> Any:
        total, *vectors = (x + others[0], *others[1:]) if call.residual else (x, *others)
        if call.base == "rms_norm":
            y = torch.nn.functional.rms_norm(total, x.shape[-1:], *vectors, eps=EPS)
        else:
            vectors = vectors or [None, None]
            y = torch.nn.functional.layer_norm(total, x.shape[-1:], *vectors, EPS)
        return (y, total) if call.residual else y

    if call.base in NORMS:
        return norm
    if call.base == "silu_mul":
        return lambda gate, up: torch.nn.functional.silu(gate) * up
    approximate = "tanh" if call.approximate else "none"
    return lambda x: torch.nn.functional.gelu(x, approximate=approximate)


@pytest.mark.parametrize("call", [c for c in FLOAT_CALLS if c.base != "hadamard"], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=cases.name_of)
def test_like_pytorchs(call: FusedCall, dtype: torch.dtype, device: str) -> None:
    """PyTorch's in float64, from the same numbers."""
    tensors = call.tensors((5, 4, 40), dtype, device)
    exact = tuple(t.detach().double().requires_grad_() for t in tensors)
    wanted = value_and_gradients(peer(call), exact)
    eps = torch.finfo(dtype).eps
    for actual, expected in zip(value_and_gradients(call, tensors), wanted, strict=True):
        assert actual.dtype == dtype
        limit = {"rtol": 4 * eps, "atol": 8 * eps * (1 + expected.abs().max().item())}
        torch.testing.assert_close(actual.double(), expected, **limit)


@by_call
def test_second_gradients_are_pytorchs(call: FusedCall, device: str) -> None:
    """Of a sum of squares of the first, so that each argument takes part."""

    def second(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        y = sum(part.square().sum() for part in outputs(function(*tensors)))
        first = torch.autograd.grad(y, tensors, create_graph=True)
        return torch.autograd.grad(sum(d.square().sum() for d in first), tensors)

    tensors = call.tensors((3, 8), torch.float32, device)
    exact = tuple(t.detach().double().requires_grad_() for t in tensors)
    other = call if call.base == "hadamard" else peer(call)
    for actual, expected in zip(second(call, tensors), second(other, exact), strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("base", NORMS)
def test_gradients_of_large_rows(base: str, device: str) -> None:
    """Finite rows whose sums of squares leave the range of float32."""
    x = torch.randn(4, 1000, generator=cases.generator(0)).clamp(-1, 1).to(device)
    grad = torch.randn(4, 1000, generator=cases.generator(1)).to(device)

    def gradient(size: float) -> Tensor:
        scaled = (x * size).requires_grad_()
        y = getattr(ops, base)(scaled, *(None, None)[: 1 + (base == "layer_norm")], 0.0)
        return torch.autograd.grad(y, scaled, grad)[0] * size

    torch.testing.assert_close(gradient(2.0**62), gradient(1.0))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=cases.name_of)
@pytest.mark.parametrize("base", NORMS)
def test_gradients_of_the_largest_rows(base: str, dtype: torch.dtype, device: str) -> None:
    """Finite rows whose results are zeros; in float32 the distance from the mean is infinite."""
    x = torch.full((2, 40), -torch.finfo(dtype).max, dtype=dtype, device=device)
    x[:, 0] *= -1
    weight = torch.ones(40, dtype=dtype, device=device)
    tensors = [x, weight, weight.clone()][: 2 + (base == "layer_norm")]
    for t in tensors:
        t.requires_grad_()
    y = getattr(ops, base)(*tensors, 1e-5)
    for gradient in torch.autograd.grad(y, tensors[:2], torch.ones_like(y)):
        assert gradient.count_nonzero() == 0


def test_second_gradients_of_large_gates(device: str) -> None:
    gate = torch.tensor([-3e38, -1e20, 1e20, 3e38], device=device).requires_grad_()
    up = torch.full((4,), 20.0, device=device).requires_grad_()
    grad = torch.full((4,), 0.5, device=device)
    (first,) = torch.autograd.grad(ops.silu_mul(gate, up), gate, grad, create_graph=True)
    for second in torch.autograd.grad(first.sum(), (gate, up)):
        assert second.isfinite().all()


def test_training_form_has_the_numbers_of_the_integers(device: str) -> None:
    """What the error message of the ops that quantize recommends."""
    call = next(c for c in FLOAT_CALLS if c.base == "rms_norm" and c.affine)
    x, weight = call.tensors((6, 40), torch.bfloat16, device)
    y = ops.dynamic_fake_quantize_per_token(ops.rms_norm(x, weight, EPS))
    with torch.no_grad():
        q, scale, zero = ops.rms_norm_quantize_per_token(x, weight, EPS)
    assert torch.equal(y, ops.dequantize_per_token(q, scale, zero, dtype=torch.bfloat16))
    y.sum().backward()
    assert x.grad is not None and weight.grad is not None


@pytest.mark.parametrize("op", [op for op in OPS if op.quantize], ids=str)
def test_what_requires_grad_is_refused(op: Op) -> None:
    """The message says what is differentiable; without grad mode the call is taken."""
    right = op.arguments("cpu")
    for name, value in right.items():
        if not isinstance(value, Tensor):
            continue
        wrong = right | {name: value.clone().requires_grad_()}
        message = rf"^baraquant::{op.name}: .*call {op.base} .*dynamic_fake_quantize_per_token"
        with pytest.raises(NotImplementedError, match=message):
            op(wrong)
        with torch.no_grad():
            op(wrong)
