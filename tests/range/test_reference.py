# SPDX-License-Identifier: BSD-3-Clause
"""The range family of `baraquant.reference` against the NumPy oracle, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import FLOAT_DTYPES, PER_TENSOR, Granularity
from tests.support.family_cases import range as range_cases
from tests.support.oracle import affine as oracle
from tests.support.oracle.range import Dynamic, Observed

by_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=cases.name_of)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_mode = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_average = pytest.mark.parametrize("average", [None, 0.25, 1.0])
SHAPE = (6, 4, 20)


@by_dtype
@by_mode
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_forward(shape: tuple[int, ...], dtype: torch.dtype, symmetric: bool) -> None:
    for seed, granularity in enumerate(cases.granularities(shape)):
        ends = range_cases.RANGES[seed % len(range_cases.RANGES)]
        if symmetric and not range_cases.modes_of(ends)[0]:
            continue
        x = range_cases.characterful(shape, dtype, granularity, ends, symmetric, seed)
        expected = Dynamic(x, granularity, *ends, symmetric)
        args = (*granularity.args, *ends)
        scale, zero_point = granularity.op("choose_qparams", reference)(
            x, *args, symmetric=symmetric
        )
        assert_same_bits(scale, expected.scale, f"{granularity} {ends} scale")
        assert_same_bits(zero_point, expected.zero_point, f"{granularity} {ends} zero point")
        y = granularity.op("dynamic_fake_quantize", reference)(x, *args, symmetric=symmetric)
        assert_same_bits(y, expected.fake_quantize(), f"{granularity} {ends}")
        out = torch.uint8 if ends[0] >= 0 else torch.int8
        quantize = granularity.op("dynamic_range_quantize", reference)
        q, *qparams = quantize(x, *args, symmetric=symmetric, dtype=out)
        assert q.dtype == out
        assert_same_bits(q, expected.quantize(out), f"{granularity} {ends}")
        assert_same_bits(qparams[0], scale)
        assert_same_bits(qparams[1], zero_point)


@by_dtype
@by_mode
@by_kind
def test_gradient(granularity: Granularity, dtype: torch.dtype, symmetric: bool) -> None:
    x = range_cases.characterful(SHAPE, dtype, granularity, (-8, 7), symmetric).requires_grad_()
    dy = cases.gradients(SHAPE, dtype).requires_grad_()
    op = granularity.op("dynamic_fake_quantize", reference)
    y = op(x, *granularity.args, -8, 7, symmetric=symmetric)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    expected = Dynamic(x, granularity, -8, 7, symmetric)
    assert_same_bits(dx, expected.dynamic_backward(dy))
    (ddy,) = torch.autograd.grad(dx, dy, torch.ones_like(dx))
    assert_same_bits(ddy, expected.dynamic_backward(torch.ones_like(dx)))


def test_nothing_else_carries_a_gradient() -> None:
    x = torch.randn(SHAPE, requires_grad=True)
    outputs = (
        *reference.choose_qparams_per_token(x),
        *reference.dynamic_range_quantize_per_token(x),
    )
    assert not any(t.requires_grad for t in outputs)


class State:
    """The tensors that an observer owns, as a user makes them."""

    def __init__(self, axis: int | None, dtype: torch.dtype, one: bool = False) -> None:
        shape = ((1,) if one else ()) if axis is None else (SHAPE[axis],)
        compute = cases.compute_dtype(dtype)
        self.min_val = torch.full(shape, math.inf, dtype=compute)
        self.max_val = torch.full(shape, -math.inf, dtype=compute)
        self.scale = torch.ones(shape, dtype=compute)
        self.zero_point = torch.zeros(shape, dtype=torch.int32)
        self.skipped = torch.tensor(0)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.min_val, self.max_val, self.scale, self.zero_point))


def batches(axis: int | None, dtype: torch.dtype, poisoned: bool) -> list[Tensor]:
    """Several, one of them empty; the poison comes late."""
    granularity = PER_TENSOR if axis is None else cases.per_channel(axis)
    found = [torch.empty(0, *SHAPE[1:], dtype=dtype)] if axis != 0 else []
    characters = [("normal",), ("zeros",), range_cases.CLEAN, ("lonely", "normal")]
    if poisoned:
        characters += [("nan", "normal"), ("normal", "inf", "minus_inf"), ("normal",)]
    return found + [
        range_cases.characterful(SHAPE, dtype, granularity, seed=i, characters=c)
        for i, c in enumerate(characters)
    ]


@by_dtype
@by_average
@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_observe(
    axis: int | None, poisoned: bool, average: float | None, dtype: torch.dtype
) -> None:
    state = State(axis, dtype, one=poisoned)
    expected = Observed.nothing(None if axis is None else SHAPE[axis], state.scale.dtype)
    for x in batches(axis, dtype, poisoned):
        reference.observe_min_max_(
            x, state.min_val, state.max_val, axis, average, skipped_batches=state.skipped
        )
        expected = expected.after(x, axis, average)
        assert_same_bits(state.min_val.reshape(expected.low.shape), expected.low)
        assert_same_bits(state.max_val.reshape(expected.high.shape), expected.high)
    assert state.skipped == expected.skipped and (expected.skipped > 0) == poisoned
    assert state.min_val.isfinite().all() and state.max_val.isfinite().all()


@pytest.mark.parametrize("high", [math.inf, math.nan])
def test_a_range_that_is_not_finite_starts_anew(high: float) -> None:
    ends = torch.tensor(-1.0), torch.tensor(high)
    reference.observe_min_max_(torch.tensor([-2.0, 3.0]), *ends, None, 0.5)
    assert_same_bits(torch.stack(ends), torch.tensor([-2.0, 3.0]))


def test_an_average_does_not_overflow() -> None:
    ends = torch.tensor(-3e38), torch.tensor(-3e38)
    reference.observe_min_max_(torch.tensor([3e38]), *ends, None, 0.75)
    torch.testing.assert_close(torch.stack(ends), torch.tensor([1.5e38, 1.5e38]))


@by_dtype
@by_mode
@by_average
@pytest.mark.parametrize("axis", [None, 1])
def test_observe_fake_quantize(
    axis: int | None, average: float | None, symmetric: bool, dtype: torch.dtype
) -> None:
    granularity = PER_TENSOR if axis is None else cases.per_channel(axis)
    state, ends = State(axis, dtype), (-8, 7)
    expected = Observed.nothing(None if axis is None else SHAPE[axis], state.scale.dtype)
    scale, zero_point = state.scale.clone(), state.zero_point.clone()
    switches = [(1, 1), (1, 0), (0, 1), (0, 0), (1, 1), (1, 1), (0, 1)]
    for x, (observe, quantize) in zip(batches(axis, dtype, True), switches, strict=False):
        leaf = x.clone().requires_grad_()
        y = reference.observe_fake_quantize(
            leaf,
            *state,
            torch.tensor(bool(observe)),
            torch.tensor([quantize], dtype=torch.uint8),
            axis,
            *ends,
            symmetric=symmetric,
            averaging_constant=average,
            skipped_batches=state.skipped,
        )
        if observe and x.numel():
            expected = expected.after(x, axis, average)
            before = scale.numpy(), zero_point.numpy()
            scale, zero_point = map(torch.from_numpy, expected.qparams(ends, symmetric, before))
        assert state.skipped == expected.skipped
        for actual, wanted in zip(state, (*expected[:2], scale, zero_point), strict=True):
            wanted = wanted if isinstance(wanted, Tensor) else torch.from_numpy(wanted)
            assert_same_bits(actual, wanted)
        dy = cases.gradients(tuple(x.shape), dtype)
        (dx,) = torch.autograd.grad(y, leaf, dy)
        affine = oracle.Affine(x, scale, zero_point, granularity, *ends)
        assert_same_bits(y, affine.fake_quantize() if quantize else x)
        assert_same_bits(dx, affine.fake_quantize_backward(dy) if quantize else dy)


def test_backward_uses_the_scale_of_its_own_forward() -> None:
    state, on = State(None, torch.float32), torch.tensor(True)
    x = torch.tensor([-9.0, 0.5, 7.0], requires_grad=True)
    off = torch.tensor(False)
    state.scale.fill_(1.0)
    y = reference.observe_fake_quantize(x, *state, off, on, None, -8, 7)
    reference.observe_fake_quantize(100 * x, *state, on, on, None, -8, 7)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert dx.tolist() == [0.0, 1.0, 1.0]
