# SPDX-License-Identifier: BSD-3-Clause
"""Running ranges in place, and the op that observes and fake-quantizes with device flags."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from baraquant import reference
from tests.range.observer_state import FLAGS, RANGE, SHAPE, Buffers, batches, expected_step, flag
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.marks import by_dtype, by_mode
from tests.support.oracle.affine import Affine

by_axis = pytest.mark.parametrize("axis", (None, 0, 1, 2, -1))
by_flags = pytest.mark.parametrize("flags", FLAGS, ids=lambda f: f"observe{f[0]}-quantize{f[1]}")

by_module = pytest.mark.parametrize("module", (torch.ops.baraquant, reference), ids=("ops", "ref"))

CONSTANTS = (None, 1.0, 0.01, 0.3, 0.999999999, 1e-40, 1e-60)

# --- observe_min_max_ ----------------------------------------------------------------------------


@by_dtype
@by_axis
@by_module
@pytest.mark.parametrize("c", CONSTANTS)
def test_running_range(
    c: float | None, module: Any, axis: int | None, dtype: torch.dtype, device: str
) -> None:
    """Over several batches, empty ones among them, and ones with NaN and infinities."""
    if module is reference and device != "cpu":
        pytest.skip("the reference is that of the CPU")
    buffers = Buffers(axis, dtype, device, module=module)
    for number, x in enumerate(batches(axis, dtype)):
        if axis is not None and x.shape[axis] != SHAPE[axis]:
            continue  # an empty batch has other channels
        buffers.observe(x.to(device), c)
        buffers.assert_range(f"after batch {number}")
    assert np.isfinite(buffers.seen.low).all() and np.isfinite(buffers.seen.high).all()
    assert buffers.seen.skipped == 4


@by_axis
def test_state_within_larger_tensors(axis: int | None, device: str) -> None:
    """Slices, not aligned; their neighbours stay as they are."""
    buffers, on = Buffers(axis, torch.float32, device), flag(1, device)
    count = buffers.low.numel()
    wide = [t.new_full((count + 4,), 7) for t in buffers.all]
    for whole, name in zip(wide, ("low", "high", "scale", "point"), strict=True):
        part = whole[1 : 1 + count].view(getattr(buffers, name).shape)
        setattr(buffers, name, part.copy_(getattr(buffers, name)))
    for x in batches(axis, torch.float32)[1:4]:
        scale, point, rule = expected_step(buffers, x, (1, 1), RANGE, False, None)
        assert_same_bits(buffers.step(x.to(device), (on, on), False), rule.fake_quantize())
        buffers.assert_range()
        assert_same_bits(buffers.scale, scale)
        assert_same_bits(buffers.point, point)
    for whole in wide:
        assert whole[0] == 7 and (whole[1 + count :] == 7).all()


@by_module
def test_by_hand(module: Any, device: str) -> None:
    low, high = (torch.tensor(v, device=device) for v in (math.inf, -math.inf))
    observe = module.observe_min_max_

    def after(values: list[float], c: float | None = None) -> tuple[float, float]:
        observe(torch.tensor(values, device=device), low, high, None, c)
        return low.item(), high.item()

    assert after([]) == (math.inf, -math.inf)
    assert after([1.0, 5.0], 0.25) == (1, 5)  # nothing seen: as it is
    assert after([-3.0, 9.0], 0.25) == (0, 6)
    assert after([1.0, 2.0]) == (0, 6)
    assert after([-7.0]) == (-7, 6)
    assert after([2.0, 3.0], 1.0) == (2, 3)  # the last batch alone
    assert after([1e8], 1.0) == (1e8, 1e8)
    assert after([1.0], 1.0) == (1, 1)  # exactly, however far the range has to go
    for bad in (math.inf, -math.inf, math.nan, -math.nan):
        for c in (None, 0.5, 1.0):
            low.fill_(math.inf), high.fill_(-math.inf)
            assert after([bad, 0.0], c) == (math.inf, -math.inf)
            assert after([1.0, 2.0], c) == (1, 2)
            assert after([5.0, bad, -4.0], c) == (1, 2)
    low.fill_(-3e38), high.fill_(-3e38)
    low_, high_ = after([3e38], 0.75)  # the way from one to the other is no number
    assert low_ == high_ == pytest.approx(1.5e38)


@pytest.mark.parametrize("c", (None, 0.5, 1.0))
@pytest.mark.parametrize("ends", ((math.nan, 1.0), (0.0, math.nan), (0.0, math.inf)))
def test_a_poisoned_range_starts_anew(
    ends: tuple[float, float], c: float | None, device: str
) -> None:
    """As an old checkpoint may hold one: the next finite batch is taken as it is."""
    buffers, on = Buffers(None, torch.float32, device), flag(1, device)
    buffers.low.fill_(ends[0]), buffers.high.fill_(ends[1]), buffers.scale.fill_(math.nan)
    buffers.step(torch.tensor([1.0, math.nan], device=device), (on, on), True, averaging_constant=c)
    assert_same_bits(buffers.low, torch.tensor(ends[0]))
    assert buffers.scale.isnan() and buffers.skipped == 1
    buffers.step(torch.tensor([-2.0, 3.5], device=device), (on, on), True, averaging_constant=c)
    assert (buffers.low.item(), buffers.high.item(), buffers.scale.item()) == (-2, 3.5, 0.5)
    assert buffers.skipped == 1


BAD = (math.nan, math.inf, -math.inf)


@pytest.mark.pairs
@by_dtype
@pytest.mark.parametrize("shape", ((1, 5), (3, 70_001), (4097, 33), (40, 3), (1, 1 << 20)))
@pytest.mark.parametrize("axis", (None, 0, 1))
def test_batches_that_are_skipped_are_counted_once(
    axis: int | None, shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """However many of the channels are hit, at whatever place; every kernel on a GPU."""
    buffers = Buffers(axis, dtype, device, None if axis is None else shape[axis])
    x = torch.randn(shape, generator=cases.generator(0)).to(device, dtype)
    skipped = 0
    for places in ((), (0,), (x.numel() // 2, x.numel() - 1), (), tuple(range(x.numel()))[::3]):
        for value in BAD if places else (0.0,):
            batch = x.clone()
            batch.view(-1)[list(places)] = value
            buffers.observe(batch, 0.5)
            skipped += bool(places)
            buffers.assert_range(f"{places[:2]} {value}")
    assert buffers.skipped == skipped == 9


def test_zeros_of_both_signs(device: str) -> None:
    """-0 lies below +0 in the data; of equal values the running one is kept."""
    for values in itertools.permutations((0.0, -0.0, 0.0, -0.0), 4):
        x = torch.tensor(values).repeat(37).to(device)
        low, high = torch.tensor(math.inf, device=device), torch.tensor(-math.inf, device=device)
        torch.ops.baraquant.observe_min_max_(x, low, high)
        assert_same_bits(low, torch.tensor(-0.0))
        assert_same_bits(high, torch.tensor(0.0))
        low.fill_(0.0), high.fill_(-0.0)
        torch.ops.baraquant.observe_min_max_(x, low, high)
        assert_same_bits(low, torch.tensor(0.0))
        assert_same_bits(high, torch.tensor(-0.0))


def test_as_pytorch_observers_do(device: str) -> None:
    """MinMaxObserver and MovingAverageMinMaxObserver, per tensor and per channel."""
    from torch.ao.quantization import observer

    data = [torch.randn(5, 33, generator=cases.generator(s)).to(device) for s in range(6)]
    pairs = (
        (observer.MinMaxObserver(), None, None),
        (observer.MovingAverageMinMaxObserver(averaging_constant=0.125), None, 0.125),
        (observer.PerChannelMinMaxObserver(ch_axis=0), 0, None),
        (observer.MovingAveragePerChannelMinMaxObserver(0.01, ch_axis=1), 1, 0.01),
    )
    for theirs, axis, c in pairs:
        theirs = theirs.to(device)
        size = None if axis is None else data[0].shape[axis]
        ours = Buffers(axis, torch.float32, device, size)
        for x in data:
            theirs(x)
            ours.observe(x, c)
            assert_same_bits(ours.low, theirs.min_val)
            assert_same_bits(ours.high, theirs.max_val)


# --- observe_fake_quantize -----------------------------------------------------------------------


@pytest.mark.pairs
@by_mode
@by_dtype
@by_axis
@by_flags
@by_module
def test_step(
    module: Any,
    flags: tuple[int, int],
    axis: int | None,
    dtype: torch.dtype,
    symmetric: bool,
    device: str,
) -> None:
    """Range, scale, zero point, output and gradient of each of several batches."""
    if module is reference and device != "cpu":
        pytest.skip("the reference is that of the CPU")
    for ends, c, kind in ((RANGE, None, torch.uint8), ((0, 255), 0.3, torch.bool)):
        buffers = Buffers(axis, dtype, device, module=module)
        on = tuple(flag(f, device, kind) for f in flags)
        for number, x in enumerate(batches(axis, dtype)):
            if axis is not None and x.shape[axis] != SHAPE[axis]:
                continue
            note = f"{ends} {c} batch {number}"
            scale, point, rule = expected_step(buffers, x, flags, ends, symmetric, c)
            leaf = x.to(device, copy=True).requires_grad_()
            y = buffers.step(leaf, on, symmetric, ends=ends, averaging_constant=c)
            buffers.assert_range(note)
            assert_same_bits(buffers.scale, scale, f"scale {note}")
            assert_same_bits(buffers.point, point, f"zero point {note}")
            assert y.dtype == dtype
            assert module is reference or y.stride() == x.stride()
            assert_same_bits(y, x if rule is None else rule.fake_quantize(), note)
            dy = cases.gradients(tuple(x.shape), dtype, number)
            (dx,) = torch.autograd.grad(y, leaf, dy.to(device))
            right = to_numpy(dy) if rule is None else rule.fake_quantize_backward(dy)
            assert_same_bits(dx, right, f"gradient {note}")
            with torch.no_grad():
                plain = buffers.step(leaf, (flag(0, device), on[1]), symmetric, ends=ends)
            assert not plain.requires_grad
            assert_same_bits(plain, y, note)


@by_axis
def test_given_scales_are_used_while_not_observing(axis: int | None, device: str) -> None:
    """Special scales and zero points far from the range do as in fake_quantize."""
    buffers = Buffers(axis, torch.float32, device)
    special = cases.special_scales(torch.float32).to(device)
    points = torch.tensor(cases.SPECIAL_ZERO_POINTS, dtype=torch.int32, device=device)
    x = cases.adversarial(torch.full(SHAPE, 0.1), torch.float32).to(device)
    off, on = flag(0, device), flag(1, device)
    for shift in range(len(special) if axis is None else 3):
        count = buffers.scale.numel()
        order = torch.arange(shift, shift + count, device=device)
        buffers.scale.copy_(special[order % len(special)].reshape(buffers.scale.shape))
        buffers.point.copy_(points[order % len(points)].reshape(buffers.scale.shape))
        kept = [t.clone() for t in buffers.all]
        y = buffers.step(x, (off, on), True)
        rule = Affine(x, buffers.scale, buffers.point, buffers.granularity, *RANGE)
        assert_same_bits(y, rule.fake_quantize())
        for now, before in zip(buffers.all, kept, strict=True):
            assert_same_bits(now, before)
