# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of dynamic_fake_quantize: identity or mask bit for bit, twice, and what is held."""

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import Granularity
from tests.support.family_cases.range import characterful
from tests.support.marks import by_dtype, by_kind, by_mode
from tests.support.oracle.range import Dynamic
from tests.support.saved_tensors import assert_a_bit_per_element, assert_freed_after, saved_tensors

by_leaf = pytest.mark.parametrize("leaf", (True, False), ids=("leaf", "activation"))

SHAPE = (5, 37, 29)
RANGES = ((-128, 127), (0, 15), (-2, 1))


class Call:
    """One op on one input, and its rule."""

    def __init__(
        self,
        granularity: Granularity,
        dtype: torch.dtype,
        device: str,
        symmetric: bool,
        shape: tuple[int, ...] = SHAPE,
        ends: tuple[int, int] = (-8, 7),
        seed: int = 0,
        module: Any = torch.ops.baraquant,
    ) -> None:
        self.granularity, self.device, self.module = granularity, device, module
        self.symmetric, self.ends = symmetric, ends
        self.x = characterful(shape, dtype, granularity, ends, symmetric, seed)

    def input(self, leaf: bool = True) -> Tensor:
        """A parameter, or the activation that some op before this one made."""
        x = self.x.to(self.device, copy=True).requires_grad_()
        return x if leaf else x.clone()

    def forward(self, x: Tensor) -> Tensor:
        op = self.granularity.op("dynamic_fake_quantize", self.module)
        return op(x, *self.granularity.args, *self.ends, symmetric=self.symmetric)

    def rule(self) -> Dynamic:
        return Dynamic(self.x, self.granularity, *self.ends, self.symmetric)

    def grad(self) -> Tensor:
        return cases.gradients(tuple(self.x.shape), self.x.dtype, 9)

    def check(self, leaf: bool) -> None:
        """The gradient that autograd gives has the rule's bits, and the input's dtype."""
        grad, x = self.grad(), self.input(leaf)
        (dx,) = torch.autograd.grad(self.forward(x), x, grad.to(self.device))
        assert dx.dtype == x.dtype
        note = f"{self.granularity} {self.ends}"
        assert_same_bits(dx, self.rule().dynamic_backward(grad), note)
        if leaf:
            self.forward(x).backward(grad.to(self.device))
            assert_same_bits(x.grad, dx, note)


@by_mode
@by_leaf
@by_kind
@by_dtype
def test_rule_bit_for_bit(
    dtype: torch.dtype, granularity: Granularity, leaf: bool, symmetric: bool, device: str
) -> None:
    """Symmetric: dy itself, of a poisoned segment too. Asymmetric: the mask of the chosen scale."""
    for seed, ends in enumerate(RANGES):
        Call(granularity, dtype, device, symmetric, ends=ends, seed=seed).check(leaf)


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@by_mode
def test_every_shape_and_granularity(symmetric: bool, shape: tuple[int, ...], device: str) -> None:
    for dtype, leaf in ((torch.float32, False), (torch.bfloat16, True)):
        for seed, granularity in enumerate(cases.granularities(shape)):
            Call(granularity, dtype, device, symmetric, shape, seed=seed).check(leaf)


def test_asymmetric_ends_by_hand(device: str) -> None:
    """xmin/s = -1.5 rounds to -2, so z = 2, and 3.5 -> 4 + 2 lies beyond 5: no gradient there."""
    x = torch.tensor([-1.5, 3.5, 0.0, 1.0], device=device, requires_grad=True)
    y = torch.ops.baraquant.dynamic_fake_quantize_per_tensor(x, 0, 5, symmetric=False)
    assert y.tolist() == [-2.0, 3.0, 0.0, 1.0]
    for value in (torch.inf, torch.nan, -2.0):
        dy = torch.full_like(y, value)
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        assert_same_bits(dx, torch.tensor([value, 0.0, value, value]))


@by_kind
@by_mode
@pytest.mark.parametrize("module", (torch.ops.baraquant, reference), ids=("ops", "reference"))
def test_double_backward(
    module: Any, symmetric: bool, granularity: Granularity, device: str
) -> None:
    """dx is linear in dy, so its gradient in dy is the same rule again; in x there is none."""
    for dtype in cases.FLOAT_DTYPES:
        call = Call(granularity, dtype, device, symmetric, module=module)
        x, rule = call.input(leaf=False), call.rule()
        dy = call.grad().to(device).requires_grad_()
        (dx,) = torch.autograd.grad(call.forward(x), x, dy, create_graph=True)
        assert_same_bits(dx, rule.dynamic_backward(dy))
        ddx = cases.gradients(SHAPE, dtype, 11)
        again = torch.autograd.grad(dx, (dy, x), ddx.to(device), allow_unused=True)
        assert_same_bits(again[0], rule.dynamic_backward(ddx))
        assert again[1] is None or not again[1].any()


@by_kind
@by_mode
def test_scales_and_integers_carry_no_gradient(
    symmetric: bool, granularity: Granularity, device: str
) -> None:
    call = Call(granularity, torch.float32, device, symmetric)
    x = call.input()
    args = (x, *granularity.args, *call.ends)
    for verb in ("choose_qparams", "dynamic_range_quantize"):
        for result in granularity.op(verb)(*args, symmetric=symmetric):
            assert not result.requires_grad and result.grad_fn is None
    scale, point = granularity.op("choose_qparams")(*args, symmetric=symmetric)
    y = granularity.op("fake_quantize")(x, scale, point, *granularity.args, *call.ends)
    dy = call.grad().to(device)
    (dx,) = torch.autograd.grad(y, x, dy)  # the data's range is a constant
    assert_same_bits(dx, call.rule().fake_quantize_backward(dy))


# --- what is held between forward and backward ---------------------------------------------------


@by_kind
@by_leaf
def test_symmetric_saves_nothing(leaf: bool, granularity: Granularity, device: str) -> None:
    call = Call(granularity, torch.float32, device, symmetric=True)
    x = call.input(leaf)
    with saved_tensors() as kept:
        y = call.forward(x)
    assert not kept
    grad = call.grad().to(device)
    (dx,) = torch.autograd.grad(y, x, grad)
    assert dx.data_ptr() == grad.data_ptr()  # the very tensor: nothing is launched


@by_kind
@by_leaf
def test_asymmetric_saves_a_bit_per_element(
    leaf: bool, granularity: Granularity, device: str
) -> None:
    """And never the input, whether it is alive anyway or not."""
    for layout in ("contiguous", "transposed", "stepped"):
        for dtype in (torch.float32, torch.bfloat16):
            call = Call(granularity, dtype, device, symmetric=False, shape=(9, 104, 107))
            x = cases.LAYOUTS[layout](call.input(leaf=False).detach()).requires_grad_()
            x = x if leaf else x.clone()
            with saved_tensors() as kept:
                y = call.forward(x)
            assert_a_bit_per_element(kept, x.numel(), x, y)


@by_mode
def test_activation_is_freed_after_forward(symmetric: bool, device: str) -> None:
    call = Call(cases.per_channel(1), torch.float32, device, symmetric)
    assert_freed_after(call.forward, lambda: call.input(leaf=False))


@by_mode
def test_two_calls_accumulate(symmetric: bool, device: str) -> None:
    """The incoming gradient that comes back as it is must not be changed by what is added."""
    call = Call(cases.PER_TENSOR, torch.float32, device, symmetric, seed=1)
    assert call.rule().mask.mean() > 0.9
    x = call.input()
    dy = torch.randn(SHAPE, generator=cases.generator(3)).to(device)
    before = dy.clone()
    (call.forward(x) + call.forward(x)).backward(dy)
    assert_same_bits(dy, before)
    expected = torch.from_numpy(call.rule().dynamic_backward(before))
    assert_same_bits(x.grad, expected + expected)
    call.forward(x).backward(dy)
    assert_same_bits(dy, before)
