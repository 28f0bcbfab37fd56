# SPDX-License-Identifier: BSD-3-Clause
"""Running ranges in place, and the op that observes and fake-quantizes with device flags."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baraquant import reference
from tests.support import cases
from tests.support.bad_arguments.range import OBSERVERS, OPS, PAIRS, WRITTEN, Op
from tests.support.bits import assert_all_same, assert_same_bits, to_numpy
from tests.support.cases import PER_TENSOR, per_channel
from tests.support.family_cases.range import CLEAN, characterful
from tests.support.marks import by_dtype, by_mode
from tests.support.oracle.affine import Affine
from tests.support.oracle.range import Observed
from tests.support.saved_tensors import assert_a_bit_per_element, assert_freed_after, saved_tensors

SHAPE = (4, 19, 37)
RANGE = (-8, 7)
FLAGS = tuple(itertools.product((1, 0), (1, 0)))  # observer_enabled, fake_quant_enabled
Flags = tuple[Any, Any]  # tensors, or their values
Ends = tuple[int, int]


def batches(axis: int | None, dtype: torch.dtype) -> list[Tensor]:
    """Batches of which each channel has another character every time.

    NaN and infinities come first, in the middle and last, in ever other channels.
    """
    granularity = PER_TENSOR if axis is None else per_channel(axis)
    kinds = ("nan", "inf", "minus_inf", "nan_and_inf") * 2
    first, second, third, last = (
        kinds[i : i + 1] if axis is None else ("normal", *kinds[i : i + 4]) for i in range(4)
    )
    names = [first, *[CLEAN] * 3, second, third, *[CLEAN] * 3, last]
    made = [
        characterful(SHAPE, dtype, granularity, RANGE, seed=3 * seed, characters=characters)
        for seed, characters in enumerate(names)
    ]
    return [made[0][:0], *made, made[1], made[2][:, :, :0]]


class Buffers:
    """The state that an observer keeps, on a device, and what it should be."""

    def __init__(
        self,
        axis: int | None,
        dtype: torch.dtype,
        device: str,
        size: int | None = None,
        module: Any = torch.ops.baraquant,
    ) -> None:
        self.module = module
        compute = cases.compute_dtype(dtype)
        channels = None if axis is None else (SHAPE[axis] if size is None else size)
        self.axis, self.seen = axis, Observed.nothing(channels, compute)
        shape = () if channels is None else (channels,)
        self.low = torch.full(shape, math.inf, dtype=compute, device=device)
        self.high = torch.full(shape, -math.inf, dtype=compute, device=device)
        self.scale = torch.full(shape, 0.25, dtype=compute, device=device)
        self.point = torch.full(shape, 3, dtype=torch.int32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.low, self.high, self.scale, self.point

    @property
    def granularity(self) -> cases.Granularity:
        return PER_TENSOR if self.axis is None else per_channel(self.axis)

    def assert_range(self, note: str = "") -> None:
        assert_same_bits(self.low, self.seen.low.reshape(self.low.shape), f"min_val {note}")
        assert_same_bits(self.high, self.seen.high.reshape(self.high.shape), f"max_val {note}")
        assert self.skipped.item() == self.seen.skipped, f"skipped {note}"

    def observe(self, x: Tensor, c: float | None = None) -> None:
        result = self.module.observe_min_max_(
            x, self.low, self.high, self.axis, c, skipped_batches=self.skipped
        )
        assert result is None
        self.seen = self.seen.after(x, self.axis, c)

    def step(
        self, x: Tensor, flags: Flags, symmetric: bool, c: float | None = None, ends: Ends = RANGE
    ) -> Tensor:
        """One call of observe_fake_quantize."""
        on = [f if isinstance(f, Tensor) else flag(f, x.device) for f in flags]
        options = {"averaging_constant": c, "skipped_batches": self.skipped}
        args = (x, *self.all, *on, self.axis, *ends)
        result: Tensor = self.module.observe_fake_quantize(*args, symmetric=symmetric, **options)
        return result

    def checked_step(
        self, x: Tensor, flags: Flags, *args: Any, note: str = ""
    ) -> tuple[Tensor, Tensor, Affine | None]:
        """A step whose state and result are right: its leaf, its result, and the rule of that.

        The rule is None for a copy.
        """
        scale, point, rule = self.expected(x, flags, *args)
        leaf = x.to(self.low.device, copy=True).requires_grad_()
        y = self.step(leaf, flags, *args)
        self.assert_range(note)
        assert_same_bits(self.scale, scale, f"scale {note}")
        assert_same_bits(self.point, point, f"zero point {note}")
        assert_same_bits(y, x if rule is None else rule.fake_quantize(), note)
        return leaf, y, rule

    def expected(
        self, x: Tensor, flags: Flags, symmetric: bool, c: float | None = None, ends: Ends = RANGE
    ) -> tuple[np.ndarray, np.ndarray, Affine | None]:
        """Scale and zero point after the step, and the rule of its output (None: a copy)."""
        scale, point = (to_numpy(t).copy() for t in (self.scale, self.point))
        if flags[0] and x.numel() > 0:
            self.seen = self.seen.after(x, self.axis, c)
            scale, point = self.seen.qparams(ends, symmetric, (scale, point))
        if not flags[1]:
            return scale, point, None
        params = torch.from_numpy(scale.copy()), torch.from_numpy(point.copy())
        return scale, point, Affine(x, *params, self.granularity, *ends)


def flag(
    value: int, device: str | torch.device, dtype: torch.dtype = torch.uint8, dims: int = 1
) -> Tensor:
    return torch.full((1,) * dims, value, dtype=dtype, device=device)


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
    buffers = Buffers(axis, torch.float32, device)
    count = buffers.low.numel()
    wide = [t.new_full((count + 4,), 7) for t in buffers.all]
    for whole, name in zip(wide, ("low", "high", "scale", "point"), strict=True):
        part = whole[1 : 1 + count].view(getattr(buffers, name).shape)
        setattr(buffers, name, part.copy_(getattr(buffers, name)))
    for x in batches(axis, torch.float32)[1:4]:
        buffers.checked_step(x, (1, 1), False)
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
    buffers = Buffers(None, torch.float32, device)
    buffers.low.fill_(ends[0]), buffers.high.fill_(ends[1]), buffers.scale.fill_(math.nan)
    buffers.step(torch.tensor([1.0, math.nan], device=device), (1, 1), True, c)
    assert_same_bits(buffers.low, torch.tensor(ends[0]))
    assert buffers.scale.isnan() and buffers.skipped == 1
    buffers.step(torch.tensor([-2.0, 3.5], device=device), (1, 1), True, c)
    assert (buffers.low.item(), buffers.high.item(), buffers.scale.item()) == (-2, 3.5, 0.5)
    assert buffers.skipped == 1


NOT_FINITE = (math.nan, math.inf, -math.inf)


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
        for value in NOT_FINITE if places else (0.0,):
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
            leaf, y, rule = buffers.checked_step(x, on, symmetric, c, ends, note=note)
            assert y.dtype == dtype and (rule is None) == (not flags[1])
            assert module is reference or y.stride() == x.stride()
            dy = cases.gradients(tuple(x.shape), dtype, number)
            (dx,) = torch.autograd.grad(y, leaf, dy.to(device))
            right = to_numpy(dy) if rule is None else rule.fake_quantize_backward(dy)
            assert_same_bits(dx, right, f"gradient {note}")
            with torch.no_grad():
                plain = buffers.step(leaf, (0, on[1]), symmetric, ends=ends)
            assert not plain.requires_grad
            assert_same_bits(plain, y, note)


@by_axis
def test_given_scales_are_used_while_not_observing(axis: int | None, device: str) -> None:
    """Special scales and zero points far from the range do as in fake_quantize."""
    buffers = Buffers(axis, torch.float32, device)
    special = cases.special_scales(torch.float32).to(device)
    points = torch.tensor(cases.SPECIAL_ZERO_POINTS, dtype=torch.int32, device=device)
    x = cases.adversarial(torch.full(SHAPE, 0.1), torch.float32).to(device)
    for shift in range(len(special) if axis is None else 3):
        count = buffers.scale.numel()
        order = torch.arange(shift, shift + count, device=device)
        buffers.scale.copy_(special[order % len(special)].reshape(buffers.scale.shape))
        buffers.point.copy_(points[order % len(points)].reshape(buffers.scale.shape))
        kept = [t.clone() for t in buffers.all]
        y = buffers.step(x, (0, 1), True)
        rule = Affine(x, buffers.scale, buffers.point, buffers.granularity, *RANGE)
        assert_same_bits(y, rule.fake_quantize())
        assert_all_same(buffers.all, tuple(kept))


# --- in autograd: what is saved, repeats, in-place state, flags ----------------------------------

by_channels = pytest.mark.parametrize("axis", (None, 1))


def normal(seed: int, factor: float = 1.0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return factor * torch.randn(shape, generator=cases.generator(seed))


@by_flags
@by_channels
def test_saves_a_bit_per_element(axis: int | None, flags: tuple[int, int], device: str) -> None:
    """Always, whatever the flags, which the host does not know; and never the input."""
    for layout in ("contiguous", "transposed", "stepped"):
        for leaf in (True, False):
            x = cases.LAYOUTS[layout](normal(0, shape=(9, 19, 107)).to(device)).requires_grad_()
            x = x if leaf else x.clone()
            buffers = Buffers(axis, torch.float32, device)
            with saved_tensors() as kept:
                y = buffers.step(x, flags, False)
            assert_a_bit_per_element(kept, x.numel(), x, y, *buffers.all)


@by_flags
def test_activation_is_freed_after_forward(flags: tuple[int, int], device: str) -> None:
    buffers = Buffers(None, torch.float32, device)
    made = normal(0).to(device).requires_grad_()
    assert_freed_after(lambda x: buffers.step(x, flags, True), made.clone)


@by_mode
@by_channels
def test_repeated_calls_before_backward(axis: int | None, symmetric: bool, device: str) -> None:
    """Each call changes the range, and each gradient is still that of its own scale."""
    buffers = Buffers(axis, torch.float32, device)
    inputs = (normal(step, factor=2.0**step) for step in range(5))
    steps = [buffers.checked_step(x, (1, 1), symmetric, 0.5) for x in inputs]
    leaves, outputs, rules = zip(*steps, strict=True)
    grads = [cases.gradients(SHAPE, torch.float32, s) for s in range(5)]
    found = torch.autograd.grad(outputs, leaves, [g.to(device) for g in grads])
    for dx, grad, rule in zip(found, grads, rules, strict=True):
        assert_same_bits(dx, rule.fake_quantize_backward(grad))
    assert any((~rule.mask).any() for rule in rules)


def test_one_observer_twice_in_one_graph(device: str) -> None:
    """A shared layer: y = f(f(x)), with the same buffers and the flags turned in between."""
    buffers, on = Buffers(None, torch.float32, device), flag(1, device)
    x, hidden, one = buffers.checked_step(normal(0), (on, on), False, 0.5)
    buffers.step(normal(3, 0.1).to(device), (on, on), False, 0.9)
    y = buffers.step(hidden * 3, (0, on), False)
    on.zero_()  # the flag is read when the op runs, not when backward does
    y.sum().backward()
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
    leaf, y, rule = buffers.checked_step(normal(0), flags, symmetric)
    dy = cases.gradients(SHAPE, torch.float32, 1).to(device).requires_grad_()
    (dx,) = torch.autograd.grad(y, leaf, dy, create_graph=True)
    ddx = cases.gradients(SHAPE, torch.float32, 2)
    (again,) = torch.autograd.grad(dx, dy, ddx.to(device))
    for got, incoming in ((dx, dy), (again, ddx)):
        right = incoming.detach() if rule is None else rule.fake_quantize_backward(incoming)
        assert_same_bits(got, right)


def test_no_channels(device: str) -> None:
    buffers = Buffers(1, torch.float32, device, size=0)
    x = torch.empty(3, 0, 5, device=device)
    buffers.observe(x)
    assert buffers.step(x, (1, 1), True).shape == x.shape


@pytest.mark.parametrize("dims", (0, 1))
@pytest.mark.parametrize("dtype", (torch.uint8, torch.bool), ids=cases.name_of)
def test_flags_of_both_dtypes_and_shapes(dtype: torch.dtype, dims: int, device: str) -> None:
    """Anything that is not 0 is on; two flags may be one tensor."""
    for value in (0, 1) if dtype == torch.bool else (0, 1, 2, 128, 255):
        buffers, one = Buffers(None, torch.float32, device), flag(value, device, dtype, dims)
        _, _, rule = buffers.checked_step(normal(0), (one, one), True)
        assert (rule is None) == (value == 0)


def test_flags_of_a_larger_tensor(device: str) -> None:
    """A view with an offset is read at its own place."""
    flags = torch.tensor([0, 1, 0], dtype=torch.uint8, device=device)
    x = normal(0).to(device)
    buffers = Buffers(None, torch.float32, device)
    y = buffers.step(x, (flags[1:2], flags[2]), True)
    assert buffers.low.item() == x.min().item()
    assert_same_bits(y, x)


def test_the_copy_is_a_tensor_of_its_own(device: str) -> None:
    x = normal(0).to(device)
    x[0, 0, :3] = torch.tensor([math.nan, -0.0, math.inf])
    y = Buffers(None, torch.float32, device).step(x, (0, 0), True)
    assert_same_bits(y, x)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    y.zero_()
    assert x.any()


def test_the_reference_keeps_the_scale_of_its_own_forward() -> None:
    buffers = Buffers(None, torch.float32, "cpu", module=reference)
    buffers.scale.fill_(1), buffers.point.fill_(0)
    x = torch.tensor([-9.0, 0.5, 7.0], requires_grad=True)
    y = buffers.step(x, (0, 1), True)
    buffers.step(100 * x, (1, 1), True)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 1.0, 1.0]


# --- wrong calls write nothing; ops/test_wrong_calls.py has the words ----------------------------


@pytest.mark.parametrize("op", [op for op in OPS if op.verb in OBSERVERS], ids=str)
def test_nothing_is_written_by_a_wrong_call(op: Op, device: str) -> None:
    """Arguments are checked before any of the tensors changes."""
    for bad in (bad for other, bad in PAIRS if other == op):
        arguments = op.arguments(device) | bad.also
        arguments["input"] = 3 * arguments["input"]
        before = {n: arguments[n].clone() for n in WRITTEN if n in arguments}
        kept = {n: arguments[n] for n in before}
        arguments[bad.argument] = bad.change(arguments)
        with pytest.raises(bad.error):
            op(arguments)
        for name, value in before.items():
            assert torch.equal(kept[name], value), f"{bad}: {name}"


def test_written_tensors_share_no_memory(any_device: str) -> None:
    """Whole or in part, seen through any view or dtype; neighbours in one buffer are fine."""
    ops = torch.ops.baraquant
    x = torch.ones(3, 4, device=any_device)
    buffer, other = (torch.ones(16, device=any_device) for _ in range(2))
    point = torch.zeros(4, dtype=torch.int32, device=any_device)
    on = torch.ones(1, dtype=torch.uint8, device=any_device)
    for second in (buffer[:4], buffer[3:7], buffer.view(2, 8)[0, 1:5]):
        with pytest.raises(ValueError, match=r"^baraquant::observe_min_max_: .*min_val.*max_val"):
            ops.observe_min_max_(x, buffer[:4], second, 1)
        state = (other[:4], other[4:8], buffer[:4], second.view(torch.int32), on, on, 1)
        with pytest.raises(ValueError, match=r"^baraquant::observe_fake_quantize: .*zero_point"):
            ops.observe_fake_quantize(x, *state)
        state = (other[:4], second, buffer[:4], point, on, on, 1)
        with pytest.raises(ValueError, match=r"^baraquant::observe_fake_quantize: .*max_val"):
            ops.observe_fake_quantize(x, *state)
    ops.observe_min_max_(x, buffer[:4], buffer[4:8], 1)
    integers = other[12:].view(torch.int32)
    ops.observe_fake_quantize(x, other[:4], other[4:8], other[8:12], integers, on, on, 1)
