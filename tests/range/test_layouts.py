# SPDX-License-Identifier: BSD-3-Clause
"""Any strides in; out come those of a dense input, or contiguous ones, and contiguous scales."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.checks.range import assert_chosen
from tests.support.family_cases.range import CLEAN, MODES, characterful
from tests.support.oracle import affine as oracle
from tests.support.oracle.range import Dynamic, Observed

SHAPE = (4, 6, 5, 7)
RANGE = (-100, 90)
GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(2),
    per_channel(-1),
    PER_TOKEN,
    per_group(3),
    per_group(4, 1),
    per_group(3, 0),
    per_group(2, -2),
)
VERBS = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")
by_granularity = pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
by_layout = pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
by_dtype = pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=cases.name_of)


def contiguous_strides(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def kept_strides(x: Tensor) -> tuple[int, ...]:
    """The rule for results that look like `x`."""
    return x.stride() if cases.is_dense(x) else contiguous_strides(x.shape)


def outputs_on(x: Tensor, granularity: Granularity, symmetric: bool) -> list[Tensor]:
    """What the three ops give, in order: [scale, point], [q, scale, point], [y]."""
    found: list[Tensor] = []
    for verb in VERBS:
        result = granularity.op(verb)(x, *granularity.args, *RANGE, symmetric=symmetric)
        found += [result] if isinstance(result, Tensor) else result
    return found


def assert_meta_agrees(x: Tensor, granularity: Granularity, got: list[Tensor]) -> None:
    """On Meta the ops give the shapes, strides and dtypes that they gave here."""
    like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    for meta, g in zip(outputs_on(like, granularity, True), got, strict=True):
        assert meta.device.type == "meta"
        assert (meta.shape, meta.stride(), meta.dtype) == (g.shape, g.stride(), g.dtype)


def check(x: Tensor, granularity: Granularity, symmetric: bool, note: str = "") -> None:
    before = x.clone()
    rule = Dynamic(x, granularity, *RANGE, symmetric)
    got = scale, point, q, q_scale, q_point, y = outputs_on(x, granularity, symmetric)
    assert_chosen(scale, point, rule, note)
    assert_chosen(q_scale, q_point, rule, note)
    assert_same_bits(q, rule.quantize(), note)
    assert_same_bits(y, rule.fake_quantize(), note)
    assert q.stride() == y.stride() == kept_strides(x), note
    for param in (scale, point, q_scale, q_point):
        assert param.is_contiguous(), note
    assert_meta_agrees(x, granularity, got)
    assert_same_bits(x, before)  # functional: the input is as it was


@by_layout
@by_granularity
@by_dtype
def test_every_layout(
    dtype: torch.dtype, granularity: Granularity, layout: str, device: str
) -> None:
    for seed, symmetric in enumerate(MODES):
        base = characterful(SHAPE, dtype, granularity, RANGE, symmetric, seed).to(device)
        check(cases.LAYOUTS_4D[layout](base), granularity, symmetric)


@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
@pytest.mark.parametrize("layout", ("transposed", "stepped", "padded", "transposed_padded"))
def test_large_matrices(layout: str, dtype: torch.dtype, device: str) -> None:
    """Segments that lie across the rows of memory, long enough for every kind of loop."""
    seed = cases.FLOAT_DTYPES.index(dtype)
    for shape in ((70, 1030), (1025, 65), (5, 20_000)):
        for granularity in (PER_TOKEN, per_channel(0), per_channel(1), per_group(64), PER_TENSOR):
            seed += 1
            symmetric = MODES[seed % 2]  # each meets each shape, in one dtype or another
            base = characterful(shape, dtype, granularity, RANGE, symmetric, seed)
            check(cases.LAYOUTS[layout](base.to(device)), granularity, symmetric)


@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_every_tail_and_misalignment(dtype: torch.dtype, device: str) -> None:
    """Lengths around any vector width, from any element of a 16-byte line; neighbours do not count.

    What lies before and after the view is larger than all in it.
    """
    inner = characterful((2, 140), dtype, PER_TOKEN, RANGE, characters=("normal",))
    outside = torch.full((2, 180), 1000.0, dtype=dtype)
    for start in (0, 1, 3, 6, 8, 15):
        for length in (*range(1, 20), 31, 33, 63, 64, 65, 127, 129):
            buffer = outside.clone()
            buffer[:, start : start + length] = inner[:, :length]
            x = buffer.to(device)[:, start : start + length]
            for symmetric in MODES:
                check(x, PER_TOKEN, symmetric, f"{start} {length}")
                check(x[0], PER_TENSOR, symmetric, f"{start} {length}")
                check(x[:1], per_channel(1), symmetric, f"{start} {length}")


@pytest.mark.parametrize("shape", (*cases.SHAPES, (1, 5, 1, 3), (2, 1, 1), (1, 0, 3)), ids=str)
def test_meta_agrees_on_every_shape(shape: tuple[int, ...], device: str) -> None:
    """Sizes 0 and 1, whose strides say nothing, too."""
    for granularity in cases.granularities(shape):
        moved = characterful(shape, torch.float32, granularity, RANGE).to(device)
        makers: list[Callable[[Tensor], Tensor]] = [lambda t: t]
        if len(shape) > 1 and 0 not in shape:
            makers = list(cases.LAYOUTS.values())
        for make in makers:
            x = make(moved)
            assert_meta_agrees(x, granularity, outputs_on(x, granularity, True))


@by_layout
@pytest.mark.parametrize("symmetric", MODES, ids=("symmetric", "asymmetric"))
def test_gradients_of_another_layout(symmetric: bool, layout: str, device: str) -> None:
    """The mask follows the output's memory order, the incoming gradient may not."""
    gradient = cases.gradients(SHAPE, torch.float32).to(device)
    for granularity in GRANULARITIES:
        base = characterful(SHAPE, torch.float32, granularity, RANGE, symmetric).to(device)
        x = cases.LAYOUTS_4D[layout](base).detach().requires_grad_()
        rule = Dynamic(x, granularity, *RANGE, symmetric)
        op = granularity.op("dynamic_fake_quantize")
        y = op(x.view_as(x), *granularity.args, *RANGE, symmetric=symmetric)
        for dy_layout in ("contiguous", layout, "transposed", "channels_last", "expanded"):
            dy = cases.LAYOUTS_4D[dy_layout](gradient)
            (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
            assert_same_bits(dx, rule.dynamic_backward(dy), f"{granularity} {dy_layout}")


@by_layout
@pytest.mark.parametrize("axis", (None, 0, 1, 2, -1))
def test_observers(axis: int | None, layout: str, device: str) -> None:
    """The input has any strides; what it is fake-quantized to keeps them."""
    granularity = PER_TENSOR if axis is None else per_channel(axis)
    base = characterful(SHAPE, torch.float32, granularity, RANGE, characters=CLEAN).to(device)
    x = cases.LAYOUTS_4D[layout](base).detach().requires_grad_()
    nothing = Observed.nothing(None if axis is None else SHAPE[axis], torch.float32)
    seen = nothing.after(x, axis, None)
    shape = nothing.low.shape
    before = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    expected = seen.qparams(RANGE, False, before)
    low, high, other_low, other_high = (
        torch.from_numpy(a.copy()).to(device) for a in (nothing.low, nothing.high) * 2
    )
    torch.ops.baraquant.observe_min_max_(x, low, high, axis)
    scale, point = torch.zeros_like(low), torch.zeros_like(low, dtype=torch.int32)
    on = torch.ones(1, dtype=torch.uint8, device=device)
    args = (other_low, other_high, scale, point, on, on, axis, *RANGE)
    y = torch.ops.baraquant.observe_fake_quantize(x, *args, symmetric=False)
    for got, right in zip((low, high), (seen.low, seen.high), strict=True):
        assert oracle.np.array_equal(to_numpy(got), right)
    assert_same_bits(other_low, low)
    assert_same_bits(other_high, high)
    assert_same_bits(scale, expected[0])
    assert_same_bits(point, expected[1])
    params = (torch.from_numpy(p) for p in expected)
    rule = oracle.Affine(x, *params, granularity, *RANGE)
    assert_same_bits(y, rule.fake_quantize())
    assert y.stride() == kept_strides(x)
    dy = cases.LAYOUTS_4D["transposed"](cases.gradients(SHAPE, torch.float32).to(device))
    (dx,) = torch.autograd.grad(y, x, dy)
    assert_same_bits(dx, rule.fake_quantize_backward(dy))
