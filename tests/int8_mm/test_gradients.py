# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of qat_linear: those of a float layer of fake-quantized tensors, once and twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.int8_mm.exact_layers import ENDS, NARROW, Layer, composed, ends_of, exact_layer
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import PER_TOKEN
from tests.support.oracle.range import Dynamic

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_mode = pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
ops = torch.ops.baraquant


# --- integers, for which every order of summation is exact ---------------------------------------


EXACT = [
    (kind, dtype)
    for kind in ENDS
    for dtype in cases.FLOAT_DTYPES
    if (kind, dtype) != ("clipped", torch.bfloat16)
]
by_exact = pytest.mark.parametrize(("kind", "dtype"), EXACT)


@by_exact
def test_the_rule_bit_for_bit(kind: str, dtype: torch.dtype, device: str) -> None:
    for lead, n in (((3, 4), 9), ((1,), 5), ((), 3), ((16,), 16), ((2, 1, 3), 1)):
        layer = exact_layer(kind, dtype, device, lead, n)
        dy = layer.dy.detach()
        gradients = torch.autograd.grad(layer.forward(), layer.leaves, dy)
        for got, expected, leaf in zip(gradients, layer.rule(), layer.leaves, strict=True):
            assert got.dtype == dtype and got.shape == leaf.shape
            assert torch.equal(got.cpu().double(), expected), f"{lead} {n}"
        others = torch.autograd.grad(layer.composed(), layer.leaves, dy)
        assert all(map(torch.equal, gradients, others))


@pytest.mark.parametrize("kind", ("clipped", "narrow_clipped"))
def test_ends_are_masked(kind: str, device: str) -> None:
    """Or the asymmetric test above could not tell a mask from the identity."""
    layer = exact_layer(kind, torch.float32, device)
    mask = Dynamic(layer.x, PER_TOKEN, *ends_of(layer.ranges), symmetric=False).mask
    assert (~mask).sum() == 12
    (dx,) = torch.autograd.grad(layer.forward(), layer.x, torch.ones_like(layer.dy))
    assert not dx.cpu()[torch.from_numpy(~mask)].any()
    assert dx.cpu()[torch.from_numpy(mask)].count_nonzero() > 300


def second_derivatives(y: Tensor, layer: Layer) -> list[Tensor]:
    """Of x, weight, bias and dy in every gradient of x, weight and bias, one at a time."""
    wanted = (*layer.leaves, layer.dy)
    gradients = torch.autograd.grad(y, layer.leaves, layer.dy, create_graph=True)
    found: list[Tensor] = []
    for seed, gradient in enumerate(gradients):
        weights = torch.randint(-1, 2, gradient.shape, generator=cases.generator(seed + 7))
        weights = weights.to(gradient.device, gradient.dtype)
        again = torch.autograd.grad(gradient, wanted, weights, retain_graph=True, allow_unused=True)
        found += [
            torch.zeros_like(w) if t is None else t for t, w in zip(again, wanted, strict=True)
        ]
    return found


@by_exact
def test_double_backward(kind: str, dtype: torch.dtype, device: str) -> None:
    """The cross terms too: dx depends on the weight, and the weight's gradient on x."""
    for lead, n in (((3, 4), 9), ((), 3)):
        layer = exact_layer(kind, dtype, device, lead, n)
        actual = second_derivatives(layer.forward(), layer)
        expected = second_derivatives(layer.composed(), layer)
        names = [
            "/".join(pair) for pair in itertools.product(("dx", "dw", "db"), ("x", "w", "b", "dy"))
        ]
        for name, got, right in zip(names, actual, expected, strict=True):
            assert got.dtype == right.dtype and torch.equal(got, right), name
        moving = {name for name, right in zip(names, expected, strict=True) if right.any()}
        assert moving == {"dx/w", "dx/dy", "dw/x", "dw/dy", "db/dy"}


def test_a_penalty_on_the_gradient(device: str) -> None:
    """As users differentiate twice: a loss that has the gradient in it, through other layers."""
    found = []
    for function in (ops.qat_linear, lambda *a, symmetric: composed(*a, symmetric)):
        torch.manual_seed(0)
        x = torch.randn(6, 20, dtype=torch.float64).to(device).requires_grad_()
        w1, w2 = (
            torch.randn(20, 20, dtype=torch.float64).to(device).requires_grad_() for _ in "12"
        )
        hidden = torch.tanh(function(x, w1, None, symmetric=False))
        loss = function(hidden, w2, None, symmetric=True).square().mean()
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + dx.square().sum()).backward()
        found.append([x.grad, w1.grad, w2.grad])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.abs().sum() > 0


# --- any numbers ---------------------------------------------------------------------------------


def layer_of(
    shape: Sequence[int],
    n: int,
    dtype: torch.dtype,
    symmetric: bool,
    device: str,
    seed: int = 0,
    ranges: dict[str, int] | None = None,
) -> Layer:
    gen = cases.generator(seed)
    shapes = (tuple(shape), (n, shape[-1]), (n,), (*shape[:-1], n))
    made = (torch.randn(s, generator=gen, dtype=torch.float64).to(dtype) for s in shapes)
    leaves = (t.to(device).requires_grad_() for t in made)
    return Layer(*leaves, symmetric=symmetric, ranges=ranges or {})


def assert_near(
    got: Tensor, expected: Tensor, size: Tensor, dtype: torch.dtype, depth: int
) -> None:
    """Within what sums of so many terms, of that size together, may lose in any order.

    float16 and bfloat16 products are summed in float32, and on a GPU perhaps in parts.
    """
    eps = torch.finfo(dtype).eps
    bound = (4 if dtype in (torch.float16, torch.bfloat16) else depth + 4) * eps * size
    tiny = torch.finfo(dtype).smallest_normal
    error = (got.detach().cpu().double() - expected).abs()
    assert (error <= bound + tiny).all(), f"off by {(error - bound).max()}"


SHAPES = (((64, 33), 17), ((2, 3, 5, 40), 31), ((1, 257), 65), ((129, 7), 130), ((13,), 4))


by_ranges = pytest.mark.parametrize("ranges", ({}, NARROW), ids=("int8", "narrow"))


@by_dtype
@by_mode
@by_ranges
@pytest.mark.parametrize(("shape", "n"), SHAPES, ids=str)
def test_near_the_rule(
    shape: tuple[int, ...],
    n: int,
    ranges: dict[str, int],
    symmetric: bool,
    dtype: torch.dtype,
    device: str,
) -> None:
    layer = layer_of(shape, n, dtype, symmetric, device, ranges=ranges)
    gradients = torch.autograd.grad(layer.forward(), layer.leaves, layer.dy.detach())
    depths = (n, layer.dy.numel() // n, layer.dy.numel() // n)
    pairs = zip(gradients, layer.rule(), layer.rule(magnitudes=True), depths, strict=True)
    for got, expected, size, depth in pairs:
        assert got.dtype == dtype
        assert_near(got, expected, size, dtype, depth)


POISON = {
    "input": lambda layer: layer.x[1, 5].fill_(torch.nan),
    "infinite input": lambda layer: layer.x[2, 0].fill_(-torch.inf),
    "weight": lambda layer: layer.weight[4, 4].fill_(torch.nan),
    "gradient": lambda layer: layer.dy[7, 0].fill_(torch.nan),
    "infinite gradient": lambda layer: layer.dy[6, 2].fill_(torch.inf),
}


@pytest.mark.parametrize("kind", ("symmetric", "clipped", "narrow", "narrow_clipped"))
@pytest.mark.parametrize("where", POISON)
def test_poison_stays_visible(where: str, kind: str, device: str) -> None:
    """NaN and infinities are where a float layer has them; rows of zeros among them."""
    layer = exact_layer(kind, torch.float32, device, (12,))
    with torch.no_grad():
        POISON[where](layer)
        layer.x[8], layer.weight[5] = 0, 0
    dy = layer.dy.detach()
    actual = torch.autograd.grad(layer.forward(), layer.leaves, dy)
    expected = torch.autograd.grad(layer.composed(), layer.leaves, dy)
    assert any(t.isnan().any() or t.isinf().any() for t in actual)
    assert any(t.isfinite().any() for t in actual)
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)


@by_mode
def test_only_what_is_asked_for(symmetric: bool, device: str) -> None:
    """Each subset of the leaves requires grad; the others get none, and nothing changes."""
    whole = layer_of((5, 6, 20), 7, torch.float32, symmetric, device)
    dy = whole.dy.detach()
    expected = torch.autograd.grad(whole.forward(), whole.leaves, dy)
    for needed in itertools.product((True, False), repeat=3):
        leaves = [t.detach().requires_grad_(f) for t, f in zip(whole.leaves, needed, strict=True)]
        y = ops.qat_linear(*leaves, symmetric=symmetric)
        assert y.requires_grad == any(needed)
        if any(needed):
            y.backward(dy)
        for leaf, right, flag in zip(leaves, expected, needed, strict=True):
            assert (leaf.grad is not None) == flag
            assert not flag or torch.equal(leaf.grad, right)


@by_dtype
@by_mode
def test_nothing_to_sum(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """Sizes of 0: gradients are zeros of the leaves' shapes, or have no elements."""
    for shape, n in (((0, 5), 3), ((4, 0), 3), ((4, 5), 0), ((2, 0, 5), 3), ((0,), 2)):
        layer = layer_of(shape, n, dtype, symmetric, device)
        layer.dy = torch.ones_like(layer.dy)
        gradients = torch.autograd.grad(layer.forward(), layer.leaves, layer.dy)
        for got, expected, leaf in zip(gradients, layer.rule(), layer.leaves, strict=True):
            assert got.shape == leaf.shape and got.dtype == dtype
            assert torch.equal(got.cpu().double(), expected)


@pytest.mark.parametrize("layout", ("contiguous", "transposed", "stepped", "expanded"))
@by_mode
def test_layouts(symmetric: bool, layout: str, device: str) -> None:
    """Of the input, the weight and the incoming gradient; the mask follows the input's rows."""
    plain = exact_layer("symmetric" if symmetric else "clipped", torch.float32, device, (12,))
    tensors = [t.detach() for t in (*plain.leaves, plain.dy)]
    if layout == "expanded":
        tensors[0], tensors[3] = (t[:1].expand_as(t).contiguous() for t in (tensors[0], tensors[3]))
    expected = Layer(*tensors, symmetric=symmetric).rule()
    make = cases.LAYOUTS[layout]
    x, weight, dy = (make(tensors[i]).detach() for i in (0, 1, 3))
    if layout == "expanded":
        weight = tensors[1]
    leaves = [t.requires_grad_() for t in (x, weight, tensors[2])]
    y = ops.qat_linear(*leaves, symmetric=symmetric)
    for got, right in zip(torch.autograd.grad(y, leaves, dy), expected, strict=True):
        assert torch.equal(got.cpu().double(), right)


@by_dtype
@by_ranges
def test_training_forward_is_inference(
    ranges: dict[str, int], dtype: torch.dtype, device: str
) -> None:
    """With gradients and without them, and under inference mode: the same bits."""
    layer = layer_of((5, 130), 33, dtype, False, device, ranges=ranges)
    y = layer.forward()
    with torch.no_grad():
        assert_same_bits(layer.forward(), y)
    with torch.inference_mode():
        assert_same_bits(layer.forward(), y)
    assert_same_bits(y, to_numpy(layer.forward()))
