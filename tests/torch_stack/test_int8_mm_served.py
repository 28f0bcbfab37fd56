# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of served products under PyTorch's tools: autocast, checkpoints, compilers, vmap."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support.served_products import K, N, Served, by_kind, example

# --- another dtype, autocast, checkpoints --------------------------------------------------------


@by_kind
@pytest.mark.parametrize(
    ("dtype", "to"),
    (
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
    ),
)
def test_another_dtype_of_the_output(
    dtype: torch.dtype, to: torch.dtype, kind: str, device: str
) -> None:
    """As linear(x^, w^).to(dtype) in the input's dtype."""
    served = Served(kind, dtype, device)
    x, dy = example(served)
    dy = dy.to(to)
    y = served(x, dtype=to)
    assert y.dtype == to
    (dx,) = torch.autograd.grad(y, x, dy)
    assert dx.dtype == dtype and torch.equal(dx, served.rule(x, dy))


@by_kind
def test_autocast_changes_nothing(kind: str, device: str) -> None:
    """Neither around the forward nor around the backward."""
    served = Served(kind, torch.float32, device)
    x, dy = example(served)
    for inside in (False, True):
        with torch.autocast(device, dtype=torch.bfloat16):
            y = served(x)
            assert y.dtype == torch.float32
            if inside:
                (dx,) = torch.autograd.grad(y, x, dy)
        if not inside:
            (dx,) = torch.autograd.grad(y, x, dy)
        assert torch.equal(dx, served.rule(x, dy))


@by_kind
@pytest.mark.parametrize("reentrant", (True, False))
def test_checkpoint(reentrant: bool, kind: str, device: str) -> None:
    served = Served(kind, torch.float32, device)
    x, _ = example(served)

    def block(x: Tensor) -> Tensor:
        return torch.tanh(served(x * 1.0))

    (expected,) = torch.autograd.grad(block(x).sum(), x)
    checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, expected)


# --- compilers -----------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer that learns before and after one that is served.

    They have no bias, whose gradient is a sum that TorchInductor takes in an order of its own.
    """

    def __init__(self, kind: str, device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = (nn.Linear(K, K, bias=False, device=device) for _ in range(2))
        self.served = Served(kind, torch.float32, device, n=K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 4
        return self.last(h + self.served(h))


def step(module: nn.Module, run: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    module.zero_grad()
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in module.parameters())]


@by_kind
@pytest.mark.parametrize(
    "backend", ("aot_eager", pytest.param("inductor", marks=pytest.mark.inductor))
)
def test_compiles(backend: str, kind: str, device: str) -> None:
    """Forward and backward, for any number of rows, in one graph."""
    torch._dynamo.reset()
    block = Block(kind, device)
    compiled = torch.compile(copy.deepcopy(block), fullgraph=True, dynamic=True, backend=backend)
    for rows in (6, 2, 37):
        x = torch.randn(rows, K, device=device)
        pairs = zip(step(compiled, compiled, x), step(block, block, x), strict=True)
        for got, right in pairs:
            # A gradient is a sum: its rounding is relative to the summands, not to what is left.
            largest = float(right.abs().max())
            torch.testing.assert_close(got, right, rtol=1.3e-6, atol=1.3e-6 * largest)


@by_kind
def test_exports(kind: str, device: str) -> None:
    """What is exported is differentiable as well."""
    block = Block(kind, device)
    rows = torch.export.Dim("rows", min=2, max=4096)
    example = (torch.randn(6, K, device=device),)
    exported = torch.export.export(block, example, dynamic_shapes=({0: rows},)).module()
    x = torch.randn(5, K, device=device, requires_grad=True)
    results = [torch.autograd.grad(f(x).square().sum(), x)[0] for f in (exported, block)]
    torch.testing.assert_close(*results)


@by_kind
def test_forms_that_return_the_mask(kind: str, device: str) -> None:
    """opcheck of the core ops: schema, fake tensors, and what AOTAutograd makes of them."""
    if kind == "symmetric":
        return
    served = Served(kind, torch.float32, device)
    x, _ = example(served, (3, 4))
    bias = torch.randn(N, device=device)
    own = served.weight, served.weight_scale
    if kind == "asymmetric":
        op = torch.ops.baraquant._quantized_linear_with_mask.default
        rest: tuple[Any, ...] = (*own, bias, False, None, -128, 127, None)
    else:
        op = torch.ops.baraquant._static_quantized_linear_with_mask.default
        point = served.zero_point if served.shifted else None
        smooth_scale = served.smooth_scale if served.smooth else None
        ends = served.lowest, served.highest
        rest = (*own, served.act_scale, bias, point, smooth_scale, None, *ends, torch.bfloat16)
    for given in (x.detach(), x.detach()[:, ::2], x.detach().transpose(0, 1)):
        torch.library.opcheck(op, (given, *rest))
        _, mask = op(given, *rest)
        bits = mask[:, None] >> torch.arange(8, device=device) & 1
        inside = bits.flatten()[: given.numel()].bool().view(given.shape)
        assert torch.equal(inside, served.inside(given))


@by_kind
def test_gradients_of_a_batch_of_samples(kind: str, device: str) -> None:
    """Through a vmap. torch.func.grad takes no op with an autograd formula in C++, and says so."""
    served = Served(kind, torch.float32, device)
    x, dy = example(served, (4, 3))
    y = torch.vmap(served)(x)
    assert torch.equal(y, served(x))
    assert torch.equal(torch.autograd.grad(y, x, dy)[0], served.rule(x, dy))
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda sample: served(sample).sum())(x.detach())
