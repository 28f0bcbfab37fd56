# SPDX-License-Identifier: BSD-3-Clause
"""observe_fake_quantize in autograd: what it saves, repeats, in-place state, flags."""

import math

import pytest
import torch
from torch import Tensor

from baraquant import reference
from tests.range.observer_state import FLAGS, RANGE, SHAPE, Buffers, expected_step, flag
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.marks import by_mode
from tests.support.oracle.affine import Affine
from tests.support.saved_tensors import assert_a_bit_per_element, assert_freed_after, saved_tensors

by_flags = pytest.mark.parametrize("flags", FLAGS, ids=lambda f: f"observe{f[0]}-quantize{f[1]}")
by_axis = pytest.mark.parametrize("axis", (None, 1))


def normal(seed: int, factor: float = 1.0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return factor * torch.randn(shape, generator=cases.generator(seed))


@by_flags
@by_axis
def test_saves_a_bit_per_element(axis: int | None, flags: tuple[int, int], device: str) -> None:
    """Always, whatever the flags, which the host does not know; and never the input."""
    for layout in ("contiguous", "transposed", "stepped"):
        for leaf in (True, False):
            x = cases.LAYOUTS[layout](normal(0, shape=(9, 19, 107)).to(device)).requires_grad_()
            x = x if leaf else x.clone()
            buffers = Buffers(axis, torch.float32, device)
            with saved_tensors() as kept:
                y = buffers.step(x, tuple(flag(f, device) for f in flags), False)
            assert_a_bit_per_element(kept, x.numel(), x, y, *buffers.all)


@by_flags
def test_activation_is_freed_after_forward(flags: tuple[int, int], device: str) -> None:
    buffers = Buffers(None, torch.float32, device)
    on = tuple(flag(f, device) for f in flags)
    assert_freed_after(
        lambda x: buffers.step(x, on, True), lambda: normal(0).to(device).requires_grad_().clone()
    )


@by_mode
@by_axis
def test_repeated_calls_before_backward(axis: int | None, symmetric: bool, device: str) -> None:
    """Each call changes the range, and each gradient is still that of its own scale."""
    buffers, on = Buffers(axis, torch.float32, device), flag(1, device)
    rules, outputs, leaves = [], [], []
    for step in range(5):
        x = normal(step, factor=2.0**step)
        rules.append(expected_step(buffers, x, (1, 1), RANGE, symmetric, 0.5)[2])
        leaves.append(x.to(device).requires_grad_())
        y = buffers.step(leaves[-1], (on, on), symmetric, averaging_constant=0.5)
        outputs.append(y)
        assert_same_bits(y, rules[-1].fake_quantize())
    grads = [cases.gradients(SHAPE, torch.float32, s) for s in range(5)]
    found = torch.autograd.grad(outputs, leaves, [g.to(device) for g in grads])
    for dx, grad, rule in zip(found, grads, rules, strict=True):
        assert_same_bits(dx, rule.fake_quantize_backward(grad))
    assert any((~rule.mask).any() for rule in rules)


def test_one_observer_twice_in_one_graph(device: str) -> None:
    """A shared layer: y = f(f(x)), with the same buffers and the flags turned in between."""
    buffers, on = Buffers(None, torch.float32, device), flag(1, device)
    x = normal(0).to(device).requires_grad_()
    hidden = buffers.step(x, (on, on), False, averaging_constant=0.5)
    buffers.step(normal(3, 0.1).to(device), (on, on), False, averaging_constant=0.9)
    off = flag(0, device)
    y = buffers.step(hidden * 3, (off, on), False)
    on.zero_()  # the flag is read when the op runs, not when backward does
    y.sum().backward()
    first = Buffers(None, torch.float32, "cpu")
    leaf = x.detach().cpu()
    one = expected_step(first, leaf, (1, 1), RANGE, False, 0.5)[2]
    assert_same_bits(hidden, one.fake_quantize())
    middle = torch.from_numpy(one.fake_quantize()) * 3
    params = buffers.scale.cpu(), buffers.point.cpu()
    two = Affine(middle, *params, cases.PER_TENSOR, *RANGE)
    assert_same_bits(y, two.fake_quantize())
    expected = torch.from_numpy(two.fake_quantize_backward(torch.ones(SHAPE))) * 3
    assert_same_bits(x.grad, one.fake_quantize_backward(expected))
    assert not two.mask.all()


@by_mode
@by_flags
def test_double_backward(flags: tuple[int, int], symmetric: bool, device: str) -> None:
    buffers = Buffers(1, torch.float32, device)
    x = normal(0)
    expected_step(buffers, x, flags, RANGE, symmetric, None)
    leaf = x.to(device).requires_grad_()
    y = buffers.step(leaf, tuple(flag(f, device) for f in flags), symmetric)
    rule = Affine(x, buffers.scale.cpu(), buffers.point.cpu(), cases.per_channel(1), *RANGE)
    dy = cases.gradients(SHAPE, torch.float32, 1).to(device).requires_grad_()
    (dx,) = torch.autograd.grad(y, leaf, dy, create_graph=True)
    ddx = cases.gradients(SHAPE, torch.float32, 2)
    (again,) = torch.autograd.grad(dx, dy, ddx.to(device))
    for got, incoming in ((dx, dy), (again, ddx)):
        right = rule.fake_quantize_backward(incoming) if flags[1] else incoming.detach()
        assert_same_bits(got, right)


def test_no_channels(device: str) -> None:
    buffers = Buffers(1, torch.float32, device, size=0)
    x = torch.empty(3, 0, 5, device=device)
    buffers.observe(x)
    assert buffers.step(x, (flag(1, device),) * 2, True).shape == x.shape


@pytest.mark.parametrize("dims", (0, 1))
@pytest.mark.parametrize("dtype", (torch.uint8, torch.bool), ids=cases.name_of)
def test_flags_of_both_dtypes_and_shapes(dtype: torch.dtype, dims: int, device: str) -> None:
    """Anything that is not 0 is on; two flags may be one tensor."""
    x = normal(0)
    for value in (0, 1) if dtype == torch.bool else (0, 1, 2, 128, 255):
        buffers = Buffers(None, torch.float32, device)
        one = flag(value, device, dtype, dims)
        y = buffers.step(x.to(device), (one, one), True)
        bits = (int(value != 0),) * 2
        other = Buffers(None, torch.float32, "cpu")
        scale, point, rule = expected_step(other, x, bits, RANGE, True, None)
        assert_same_bits(y, x if rule is None else rule.fake_quantize())
        assert_same_bits(buffers.scale, scale)
        assert_same_bits(buffers.point, point)


def test_flags_of_a_larger_tensor(device: str) -> None:
    """A view with an offset is read at its own place."""
    flags = torch.tensor([0, 1, 0], dtype=torch.uint8, device=device)
    x = normal(0).to(device)
    buffers = Buffers(None, torch.float32, device)
    y = buffers.step(x, (flags[1:2], flags[2]), True)
    assert buffers.low.item() == x.min().item()
    assert_same_bits(y, x)


def test_the_copy_is_a_tensor_of_its_own(device: str) -> None:
    buffers, off = Buffers(None, torch.float32, device), flag(0, device)
    x = normal(0).to(device)
    x[0, 0, :3] = torch.tensor([math.nan, -0.0, math.inf])
    y = buffers.step(x, (off, off), True)
    assert_same_bits(y, x)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    y.zero_()
    assert x.any()


def test_the_reference_keeps_the_scale_of_its_own_forward() -> None:
    buffers = Buffers(None, torch.float32, "cpu", module=reference)
    buffers.scale.fill_(1), buffers.point.fill_(0)
    on, off = flag(1, "cpu"), flag(0, "cpu")
    x = torch.tensor([-9.0, 0.5, 7.0], requires_grad=True)
    y = buffers.step(x, (off, on), True)
    buffers.step(100 * x, (on, on), True)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 1.0, 1.0]
