# SPDX-License-Identifier: BSD-3-Clause
"""What holds between the ops of the range family and those of the affine one, without an oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import Granularity, per_channel, per_group
from tests.support.checks.range import Ends, integer_dtypes
from tests.support.family_cases import range as range_cases
from tests.support.family_cases.range import CLEAN, MODES, RANGES, characterful, modes_of
from tests.support.oracle import affine as oracle

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_mode = pytest.mark.parametrize("symmetric", MODES, ids=("symmetric", "asymmetric"))


def check_identities(x: Tensor, granularity: Granularity, ends: Ends, symmetric: bool) -> None:
    """One pass over the data gives what choosing and then quantizing gives."""
    g, mode = granularity.args, {"symmetric": symmetric}
    scale, point = granularity.op("choose_qparams")(x, *g, *ends, **mode)
    fake = granularity.op("dynamic_fake_quantize")(x, *g, *ends, **mode)
    expected = granularity.op("fake_quantize")(x, scale, point, *g, *ends)
    assert_same_bits(fake, expected, "fake_quantize")
    assert fake.stride() == expected.stride()
    for dtype in integer_dtypes(ends):
        op = granularity.op("dynamic_range_quantize")
        q, s, z = op(x, *g, *ends, **mode, dtype=dtype)
        assert_same_bits(s, scale, "scale")
        assert_same_bits(z, point, "zero point")
        expected = granularity.op("quantize")(x, scale, point, *g, *ends, dtype=dtype)
        assert_same_bits(q, expected, "quantize")
        assert q.stride() == expected.stride()
        y = granularity.op("dequantize")(q, scale, point, *g, dtype=x.dtype)
        assert_same_bits(y, fake, "dequantize")  # a NaN has a NaN scale: no exception


@by_dtype
@by_mode
def test_one_pass_equals_two(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    shapes = ((1025,), (33, 17), (4, 17, 33), (2, 16, 5, 7), (3, 5000), (0, 4), ())
    for seed, shape in enumerate(shapes):
        for granularity in cases.granularities(shape):
            for ends in ((-128, 127), (0, 255), (-8, 7)):
                x = characterful(shape, dtype, granularity, ends, symmetric, seed)
                check_identities(x.to(device), granularity, ends, symmetric)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Tensor, Granularity, Ends, bool]:
    shape = tuple(draw(st.lists(st.integers(0, 40), max_size=4)))
    granularity = draw(st.sampled_from(cases.granularities(shape)))
    if shape and draw(st.booleans()):
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        size = draw(st.integers(1, 50))
        granularity = draw(st.sampled_from((per_channel(axis), per_group(size, axis))))
    low = draw(st.integers(-128, 254))
    ends = (low, draw(st.integers(low + 1, 255)))
    if draw(st.booleans()):
        ends = draw(st.sampled_from(RANGES))
    symmetric = draw(st.sampled_from(modes_of(ends)))
    dtype = draw(st.sampled_from(cases.FLOAT_DTYPES))
    seed = draw(st.integers(0, 10**6))
    x = characterful(shape, dtype, granularity, ends, symmetric, seed)
    if len(shape) > 1 and x.numel() > 0:
        x = cases.LAYOUTS[draw(st.sampled_from(sorted(cases.LAYOUTS)))](x)
    return x, granularity, ends, symmetric


@settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(inputs())
def test_one_pass_equals_two_for_any_input(
    device: str, case: tuple[Tensor, Granularity, Ends, bool]
) -> None:
    x, *rest = case
    check_identities(x.to(device), *rest)


@by_dtype
@by_kind
def test_symmetric_scales_never_clip(
    granularity: Granularity, dtype: torch.dtype, device: str
) -> None:
    """So the mask of the scale that was chosen is true everywhere, and the gradient whole."""
    for ends in RANGES:
        if not modes_of(ends)[0]:
            continue
        for seed in range(12):
            x = characterful((40, 33), dtype, granularity, ends, True, seed, CLEAN).to(device)
            args = (*granularity.args, *ends)
            qparams = granularity.op("choose_qparams")(x, *args)
            dy = torch.ones_like(x)
            dx = granularity.op("fake_quantize_backward")(dy, x, *qparams, *args)
            assert (dx == 1).all(), f"{ends} {seed}"


@by_dtype
@by_kind
@by_mode
def test_zero_is_exact(
    symmetric: bool, granularity: Granularity, dtype: torch.dtype, device: str
) -> None:
    """Zeros among any finite numbers, of one sign too, come back as zeros.

    But for one step from the lowest to the largest number, which is no number of C.
    """
    for ends in RANGES:
        if symmetric not in modes_of(ends):
            continue
        names = tuple(c for c in CLEAN if c not in ("huge", "wild") or ends[1] - ends[0] >= 2)
        for seed in range(4):
            x = characterful((40, 33), dtype, granularity, ends, symmetric, seed, names)
            x[torch.rand(x.shape, generator=cases.generator(seed)) < 0.2] = 0
            op = granularity.op("dynamic_fake_quantize")
            y = op(x.to(device), *granularity.args, *ends, symmetric=symmetric).cpu()
            zeros = to_numpy(y[x == 0])
            assert len(zeros) > 100
            assert not zeros.any()
            assert not oracle.np.signbit(zeros).any()


@by_dtype
@by_mode
def test_what_comes_back_is_near(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """Within half a step (asymmetric: a whole one, as the zero point is rounded) of the input."""
    for granularity in cases.KINDS:
        for ends in ((-128, 127), (0, 255), (-8, 7), (3, 200)):
            names = ("normal", "positive", "negative", "ties", "zeros", "lonely")
            x = characterful((60, 33), dtype, granularity, ends, symmetric, 0, names).to(device)
            args = (x, *granularity.args, *ends)
            scale, _ = granularity.op("choose_qparams")(*args, symmetric=symmetric)
            y = granularity.op("dynamic_fake_quantize")(*args, symmetric=symmetric)
            step = cases.expand(scale, granularity, (60, 33)).double()
            rounding = x.double().abs() * 2 * torch.finfo(dtype).eps
            error = (y.double() - x.double()).abs()
            assert (error <= step * (0.5 if symmetric else 1) * 1.001 + rounding).all()


@by_kind
@by_mode
def test_twenty_runs_give_the_same_bits(
    symmetric: bool, granularity: Granularity, device: str
) -> None:
    """Large enough for several blocks and threads to share a segment."""
    for shape in ((70, 4099), (3, 70_001)):
        x = range_cases.finite_patterns(torch.float32, shape[0] * shape[1], 1).view(shape)
        x = x.to(device)
        args, mode = (x, *granularity.args), {"symmetric": symmetric}
        op, fake = granularity.op("dynamic_range_quantize"), granularity.op("dynamic_fake_quantize")
        first = (*op(*args, **mode), fake(*args, **mode))
        for _ in range(19):
            again = (*op(*args, **mode), fake(*args, **mode))
            for a, b in zip(first, again, strict=True):
                assert torch.equal(a, b)


@by_dtype
def test_a_scale_is_a_fixed_point(dtype: torch.dtype, device: str) -> None:
    """Quantizing what came back changes nothing when the largest magnitude is a multiple of it."""
    for granularity in cases.KINDS:
        x = characterful((40, 64), dtype, granularity, seed=1, characters=("ties",)).to(device)
        y = granularity.op("dynamic_fake_quantize")(x, *granularity.args)
        assert_same_bits(granularity.op("dynamic_fake_quantize")(y, *granularity.args), y)
