# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear in PyTorch: gradients of a floating layer, once and twice, and tools."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.calls.weight_only import WEIGHT_ONLY_CALLS, WeightOnlyCall
from tests.support.family_cases.int8_mm import integers
from tests.support.family_cases.torch_tools import Tools
from tests.weight_only.test_values import by_dtype, numbers

by_call = pytest.mark.parametrize("call", WEIGHT_ONLY_CALLS, ids=str)
FEW, MANY = (2, 2, 13), (5, 12, 13)  # the input's: for a kernel of the op's own, for PyTorch's


def dequantized(given: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """The floating weight that the integers stand for."""
    w, s, z = given["weight"], given["weight_scale"], given.get("weight_zero_point")
    if w.dtype == torch.uint8:
        columns = given["input"].shape[-1]
        w = ops.expand_int4(w, torch.ones_like(w[:, :1]), 2 * columns, columns)
    if "group_size" in given:
        return ops.dequantize_per_group(w, s, z, given["group_size"], 1, dtype=dtype)
    return ops.dequantize_per_channel(w, s, z, 0, dtype=dtype)


def leaves_of(
    call: WeightOnlyCall, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """The arguments, and those that can be learned: the input, and the bias if there is one."""
    given = call.arguments(*call.tensors(shape, dtype, device))[1]
    leaves = tuple(given[name].requires_grad_() for name in ("input", "bias") if name in given)
    return given, leaves


@by_call
@by_dtype
@pytest.mark.parametrize("shape", (FEW, MANY, (13,), (0, 13)), ids=str)
def test_gradients_are_those_of_a_floating_layer(
    shape: tuple[int, ...], call: WeightOnlyCall, dtype: torch.dtype, device: str
) -> None:
    """Once and twice, to the rounding of the products; a recorded call gives the same result."""
    given, leaves = leaves_of(call, shape, dtype, device)
    weight = dequantized(given, dtype)
    found = []
    for y in (call.function(**given), linear(given["input"], weight, given.get("bias"))):
        dy = torch.randn(y.shape, generator=cases.generator(3)).to(y).requires_grad_()
        first = torch.autograd.grad(y, leaves, dy, create_graph=True)
        ramps = [torch.linspace(-1, 1, g.numel()).to(g).reshape(g.shape) for g in first]
        second = torch.autograd.grad(first, dy, ramps)
        found.append((*first, *second))
    for got, right, like in zip(*found, (*leaves, dy), strict=True):
        assert got.dtype == dtype and got.shape == like.shape
        largest = right.detach().abs().max().item() if right.numel() else 0.0
        error = 16 * torch.finfo(dtype).eps * largest
        torch.testing.assert_close(got, right, rtol=0, atol=error)
    recorded = call.function(**given)
    assert recorded.requires_grad
    with torch.no_grad():
        assert_same_bits(call.function(**given), recorded)


@by_dtype
@pytest.mark.parametrize("rows", (1, 4, 5, 48, 49))
def test_the_rule_bit_for_bit(rows: int, dtype: torch.dtype, device: str) -> None:
    """Of integers, for which every order of summation is exact."""
    n, k, size = 9, 22, 4
    rng = cases.generator(rows)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-3, 4, shape, generator=rng)

    w, z = integers((n, k), torch.int8, "random", 1) // 16, whole(n, 6)
    s = torch.full((n, 6), 0.5, dtype=cases.compute_dtype(dtype))
    x, b, dy, ddx = whole(rows, k), whole(n), whole(rows, n), whole(rows, k)
    exact = (w - z.repeat_interleave(size, 1)[:, :k]).double() * 0.5
    leaves = [t.to(device, dtype).requires_grad_() for t in (x, b)]
    dy_ = dy.to(device, dtype).requires_grad_()
    here = (leaves[0], w.to(device), s.to(device), leaves[1])
    y = ops.weight_only_linear(*here, weight_zero_point=z.to(device), group_size=size)
    dx, db = torch.autograd.grad(y, leaves, dy_, create_graph=True)
    assert torch.equal(dx.cpu().double(), (dy.double() @ exact).to(dtype).double())
    assert torch.equal(db.cpu().double(), dy.double().sum(0))
    (ddy,) = torch.autograd.grad(dx, dy_, ddx.to(device, dtype), retain_graph=True)
    assert torch.equal(ddy.cpu().double(), (ddx.double() @ exact.t()).to(dtype).double())
    ones = torch.ones_like(db)
    assert torch.equal(torch.autograd.grad(db, dy_, ones)[0], torch.ones_like(dy_))


@by_call
def test_gradients_of_any_layout(call: WeightOnlyCall, device: str) -> None:
    given, leaves = leaves_of(call, FEW, torch.float64, device)
    y = call.function(**given)
    dy = numbers(tuple(y.shape), torch.float64, 7).to(device)
    for layout in cases.LAYOUTS.values():
        laid = layout(dy)
        pair = (laid, laid.contiguous())
        got, right = (torch.autograd.grad(y, leaves, t, retain_graph=True) for t in pair)
        torch.testing.assert_close(got, right, rtol=1e-13, atol=1e-11)


@by_call
@by_dtype
def test_forward_mode(call: WeightOnlyCall, dtype: torch.dtype, device: str) -> None:
    """Tangents of the input and of the bias, one at a time and together."""
    for shape in (FEW, MANY):
        given = call.arguments(*call.tensors(shape, dtype, device))[1]
        weight = dequantized(given, dtype)
        names = [name for name in ("input", "bias") if name in given]
        tangents = {name: numbers(given[name].shape, dtype, 3).to(device) for name in names}
        for chosen in ([names[0]], [names[-1]], names):
            with forward_ad.dual_level():
                duals = {name: forward_ad.make_dual(given[name], tangents[name]) for name in chosen}
                changed = given | duals
                floating = linear(changed["input"], weight, changed.get("bias"))
                pair = (call.function(**changed), floating)
                got, right = (forward_ad.unpack_dual(y).tangent for y in pair)
            error = 16 * torch.finfo(dtype).eps * right.abs().max().item()
            torch.testing.assert_close(got, right, rtol=0, atol=error)


@by_call
@pytest.mark.parametrize("reentrant", (True, False))
def test_checkpoint(reentrant: bool, call: WeightOnlyCall, device: str) -> None:
    given, leaves = leaves_of(call, FEW, torch.float32, device)

    def block(x: Tensor) -> Tensor:
        result: Tensor = call.function(**given | {"input": x * 1.0}).tanh()
        return result

    expected = torch.autograd.grad(block(leaves[0]).sum(), leaves)
    checkpoint(block, leaves[0], use_reentrant=reentrant).sum().backward()
    assert_all_same([leaf.grad for leaf in leaves], list(expected))


@by_call
def test_gradients_of_a_batch(call: WeightOnlyCall, device: str) -> None:
    """vmap within a layer that learns, and over gradients."""
    given, leaves = leaves_of(call, (3, 4, 13), torch.float64, device)
    y = torch.vmap(lambda x: call.function(**given | {"input": x}))(leaves[0])
    whole = call.function(**given)
    dy = numbers(tuple(y.shape), torch.float64, 3).to(device)
    many = torch.stack((dy, dy * 2))
    single = [torch.autograd.grad(whole, leaves, row, retain_graph=True) for row in many]
    torch.testing.assert_close(torch.autograd.grad(y, leaves, dy), single[0])
    batched = torch.autograd.grad(whole, leaves, many, is_grads_batched=True)
    torch.testing.assert_close(batched, tuple(map(torch.stack, zip(*single, strict=True))))


# --- tools ---------------------------------------------------------------------------------------


class TestTools(Tools):
    CALLS, SLOW, BATCHED = WEIGHT_ONLY_CALLS, WEIGHT_ONLY_CALLS, ("input",)


@by_call
@pytest.mark.parametrize("low", (torch.bfloat16, torch.float16), ids=cases.name_of)
def test_autocast(low: torch.dtype, call: WeightOnlyCall, device: str) -> None:
    """Input and bias are cast; with a scale of float64 nothing is."""
    for dtype in cases.FLOAT_DTYPES:
        for shape in (FEW, MANY):
            given, leaves = leaves_of(call, shape, dtype, device)
            with torch.autocast(device, dtype=low):
                y = call.function(**given)
            to = dtype if dtype == torch.float64 else low
            cast = {name: given[name].to(to) for name in ("input", "bias") if name in given}
            right = call.function(**given | cast)
            assert_same_bits(y, right)
            dy = numbers(tuple(y.shape), to, 5).to(device)
            found = (torch.autograd.grad(result, leaves, dy) for result in (y, right))
            for a, e, leaf in zip(*found, leaves, strict=True):
                assert a.dtype == leaf.dtype and torch.equal(a, e)
