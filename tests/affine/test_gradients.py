# SPDX-License-Identifier: BSD-3-Clause
"""Gradients in the input: the analytic rule bit for bit, double backward, and what is held."""

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bad_arguments.affine import KINDS, OPS, Op
from tests.support.bits import assert_same_bits
from tests.support.cases import Granularity, per_channel
from tests.support.marks import by_dtype, by_kind
from tests.support.oracle import affine as oracle
from tests.support.oracle.affine import Affine
from tests.support.saved_tensors import assert_freed_after, saved_tensors, storages

by_save_mask = pytest.mark.parametrize("save_mask", (None, True, False))
by_leaf = pytest.mark.parametrize("leaf", (True, False), ids=("leaf", "activation"))
by_verb = pytest.mark.parametrize("verb", ("fake_quantize", "quantize", "dequantize"))

SHAPE = (5, 37, 29)
RANGE = (-100, 90)


class Call:
    """One differentiable op with its arguments, its rule and its public backward."""

    def __init__(
        self,
        verb: str,
        granularity: Granularity,
        dtype: torch.dtype,
        device: str,
        shape: tuple[int, ...] = SHAPE,
        output: torch.dtype | None = None,
    ) -> None:
        params = granularity.param_shape(shape)
        self.verb, self.granularity, self.device = verb, granularity, device
        self.scale = cases.scales(params, cases.compute_dtype(dtype))
        self.point = cases.zero_points(params, RANGE)
        self.x = cases.adversarial(cases.expand(self.scale, granularity, shape), dtype)
        self.output = output or dtype
        self.params = cases.to(device, self.scale, self.point)
        self.range = () if verb == "dequantize" else RANGE

    def input(self, leaf: bool = True) -> Tensor:
        """A parameter, or the activation that some op before this one made."""
        x = self.x.to(self.device, copy=True).requires_grad_()
        return x if leaf else x.clone()

    def forward(self, x: Tensor, **kwargs: bool | torch.dtype | None) -> Tensor:
        if self.verb != "fake_quantize":
            kwargs["dtype"] = self.output
        op = self.granularity.op(self.verb)
        return op(x, *self.params, *self.granularity.args, *self.range, **kwargs)

    def backward(self, grad: Tensor, x: Tensor) -> Tensor:
        """The public backward op."""
        op, args = self.granularity.op(f"{self.verb}_backward"), self.granularity.args
        if self.verb == "dequantize":
            return op(grad, self.params[0], *args, dtype=x.dtype)
        return op(grad, x, *self.params, *args, *self.range)

    def grad(self, seed: int = 9) -> Tensor:
        dtype = self.x.dtype if self.verb == "fake_quantize" else self.output
        return cases.gradients(tuple(self.x.shape), dtype, seed)

    def expected(self, grad: Tensor) -> oracle.np.ndarray:
        if self.verb == "dequantize":
            args = grad, self.scale, self.granularity, self.x.dtype
            return oracle.dequantize_backward(*args)
        found = Affine(self.x, self.scale, self.point, self.granularity, *RANGE)
        return getattr(found, f"{self.verb}_backward")(grad)

    def check(self, leaf: bool, **options: bool | None) -> None:
        """The gradient that autograd gives has the oracle's bits, and the input's dtype."""
        grad, x = self.grad(), self.input(leaf)
        y = self.forward(x, **options)
        assert y.dtype == grad.dtype
        (dx,) = torch.autograd.grad(y, x, grad.to(self.device))
        assert dx.dtype == x.dtype
        assert_same_bits(dx, self.expected(grad), f"{self.granularity} {options}")

    def check_public_backward(self) -> None:
        grad = self.grad()
        dx = self.backward(grad.to(self.device), self.input().detach())
        assert dx.dtype == self.x.dtype
        assert_same_bits(dx, self.expected(grad), "public backward")


@by_verb
@by_kind
@by_dtype
@by_leaf
def test_rule_bit_for_bit(
    leaf: bool, dtype: torch.dtype, granularity: Granularity, verb: str, device: str
) -> None:
    """Whatever is kept for backward, and in the public op: the same bits, the oracle's."""
    call = Call(verb, granularity, dtype, device)
    masks = ({"save_mask": None}, {"save_mask": True}, {"save_mask": False})
    for options in ({}, *(() if verb == "dequantize" else masks)):
        call.check(leaf, **options)
    call.check_public_backward()


@pytest.mark.parametrize("verb", ("quantize", "dequantize"))
@pytest.mark.parametrize("output", cases.FLOAT_DTYPES, ids=cases.name_of)
@by_dtype
def test_gradient_dtypes_that_differ_from_the_inputs(
    dtype: torch.dtype, output: torch.dtype, verb: str, device: str
) -> None:
    """Input and output dtypes are free of each other: C(dy), one rounding to the input's dtype."""
    call = Call(verb, per_channel(1), dtype, device, output=output)
    call.check(leaf=False)
    call.check_public_backward()


@by_verb
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_every_shape_and_granularity(shape: tuple[int, ...], verb: str, device: str) -> None:
    for dtype, leaf in ((torch.float32, False), (torch.bfloat16, True)):
        for granularity in cases.granularities(shape):
            Call(verb, granularity, dtype, device, shape).check(leaf)


@pytest.mark.parametrize("save_mask", (True, False))
def test_every_tail_of_the_bit_mask(save_mask: bool, device: str) -> None:
    """Bits of the last byte or word, and groups that end inside one."""
    for length in (*range(1, 70), 255, 257, 1025):
        for rows in (1, 3):
            call = Call("fake_quantize", per_channel(0), torch.float32, device, (rows, length))
            call.check(leaf=True, save_mask=save_mask)


@by_verb
@by_kind
@by_save_mask
def test_double_backward(
    save_mask: bool | None, granularity: Granularity, verb: str, device: str
) -> None:
    """dx is linear in dy, so its gradient in dy is the same rule again; in x there is none."""
    for dtype in cases.FLOAT_DTYPES:
        call = Call(verb, granularity, dtype, device)
        options = {} if verb == "dequantize" else {"save_mask": save_mask}
        x = call.input(leaf=False)
        dy = call.grad().to(device).requires_grad_()
        (dx,) = torch.autograd.grad(call.forward(x, **options), x, dy, create_graph=True)
        assert_same_bits(dx, call.expected(dy))
        ddx = cases.gradients(SHAPE, dtype, 11)
        again = torch.autograd.grad(dx, (dy, x), ddx.to(device), allow_unused=True)
        assert_same_bits(again[0], call.expected(ddx))
        assert again[1] is None or not again[1].any()


@by_kind
def test_integers_carry_no_gradient(granularity: Granularity, device: str) -> None:
    for dtype in cases.INTEGER_DTYPES:
        call = Call("quantize", granularity, torch.float32, device, output=dtype)
        call.range = cases.default_range(dtype)
        assert not call.forward(call.input()).requires_grad


# --- what is held between forward and backward ---------------------------------------------------


@pytest.mark.parametrize("verb", ("fake_quantize", "quantize"))
@by_kind
@by_save_mask
@by_leaf
def test_bytes_held(
    leaf: bool, save_mask: bool | None, granularity: Granularity, verb: str, device: str
) -> None:
    """A kept input costs nothing of its own; a mask costs a bit per element and frees the input."""
    for layout in ("contiguous", "transposed"):
        for dtype in (torch.float32, torch.bfloat16):
            call = Call(verb, granularity, dtype, device, shape=(9, 104, 107))
            x = cases.LAYOUTS[layout](call.input(leaf=False).detach()).requires_grad_()
            x = x if leaf else x.clone()
            with saved_tensors() as kept:
                y = call.forward(x, save_mask=save_mask)
            params = storages(call.params)
            held = {at: size for at, size in storages(kept).items() if at not in params}
            assert y.untyped_storage().data_ptr() not in held
            input_is_held = held.pop(x.untyped_storage().data_ptr(), None) is not None
            want_mask = not leaf if save_mask is None else save_mask
            assert input_is_held == (not want_mask)
            if want_mask:
                bits = -(-x.numel() // 8)
                assert bits <= sum(held.values()) <= bits + 64
            else:
                assert sum(held.values()) == 0


@by_verb
def test_activation_is_freed_after_forward(verb: str, device: str) -> None:
    call = Call(verb, per_channel(1), torch.float32, device)
    assert_freed_after(call.forward, lambda: call.input(leaf=False))


def test_dequantize_holds_only_its_scale(device: str) -> None:
    for granularity in cases.KINDS:
        call = Call("dequantize", granularity, torch.float32, device)
        with saved_tensors() as kept:
            call.forward(call.input(leaf=False))
        assert set(storages(kept)) <= set(storages(call.params))


@pytest.mark.parametrize("verb", ("fake_quantize", "quantize"))
def test_input_changed_in_place_after_forward(verb: str, device: str) -> None:
    """A mask does not mind; a kept input that changed is an error and no wrong gradient."""
    call = Call(verb, cases.PER_TOKEN, torch.float32, device)
    grad, leaf = call.grad(), call.input()
    activation = leaf.clone()
    y = call.forward(activation)
    activation.mul_(1000)
    (dx,) = torch.autograd.grad(y, leaf, grad.to(device))
    assert_same_bits(dx, call.expected(grad))
    y = call.forward(leaf)
    with torch.no_grad():
        leaf.mul_(1000)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(grad.to(device))


# --- scales that learn where an op has no gradient for them --------------------------------------


@pytest.mark.parametrize("verb", ("quantize", "dequantize"))
@pytest.mark.parametrize("granularity", KINDS, ids=str)
def test_a_scale_that_learns_wants_fake_quantize(
    verb: str, granularity: Granularity, any_device: str
) -> None:
    """No silent loss of a gradient; without grad mode, or for integers, nothing is lost."""
    op = Op(verb, granularity)
    arguments = op.arguments(any_device) | {"dtype": torch.float32}
    arguments["scale"].requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"^baraquant::{op.name}.*fake_quantize"):
        op(arguments)
    with torch.no_grad():
        op(arguments)
    if verb == "quantize":
        assert not op(arguments | {"dtype": torch.int8}).requires_grad


@pytest.mark.parametrize("op", [o for o in OPS if o.verb == "dequantize_backward"], ids=str)
def test_the_scale_of_the_backward_of_dequantize_is_a_constant(op: Op, any_device: str) -> None:
    """It is computed by dequantize, which is not named."""
    arguments = op.arguments(any_device)
    arguments["scale"].requires_grad_()
    message = rf"^baraquant::{op.name}: .*a gradient in scale"
    with pytest.raises(NotImplementedError, match=message):
        op(arguments)
