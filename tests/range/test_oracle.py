# SPDX-License-Identifier: BSD-3-Clause
"""The range family's oracle: against torch, against exact fractions, and by hand; its inputs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import PER_TENSOR, PER_TOKEN, per_channel
from tests.support.exact_rounding import nearest
from tests.support.family_cases import range as range_cases
from tests.support.family_cases.range import CHARACTERS, MODES, RANGES, characterful, modes_of
from tests.support.oracle.range import Dynamic, Observed, extremes, qparams

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


@by_dtype
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_extremes_are_those_of_each_segments_elements(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Gathered one segment at a time, and by torch.aminmax."""
    for granularity in cases.granularities(shape):
        x = characterful(shape, dtype, granularity)
        low, high = extremes(to_numpy(x), granularity)
        params = granularity.param_shape(shape)
        assert low.shape == high.shape == params
        ids = torch.from_numpy(range_cases.segment_ids(granularity, shape).copy()).reshape(-1)
        for index in range(0, math.prod(params), 1 + math.prod(params) // 20):
            part = x.reshape(-1)[ids == index]
            if part.numel() == 0:
                assert (low.reshape(-1)[index], high.reshape(-1)[index]) == (math.inf, -math.inf)
                continue
            least, most = torch.aminmax(part.double())
            assert np.array_equal(low.reshape(-1)[index], least.numpy(), equal_nan=True)
            assert np.array_equal(high.reshape(-1)[index], most.numpy(), equal_nan=True)


@by_dtype
@pytest.mark.parametrize("quant_range", RANGES, ids=str)
def test_against_torch_expressions(quant_range: tuple[int, int], dtype: torch.dtype) -> None:
    quant_min, quant_max = quant_range
    for symmetric in modes_of(quant_range):
        x = characterful((67, 33), dtype, PER_TOKEN, quant_range, symmetric)
        c = x.to(cases.compute_dtype(dtype))
        least = c.amin(-1, keepdim=True).clamp(max=0)
        most = c.amax(-1, keepdim=True).clamp(min=0)
        smallest = torch.finfo(c.dtype).smallest_normal
        if symmetric:
            point = torch.full_like(least, math.floor((quant_min + quant_max + 1) / 2))
            scale = c.abs().amax(-1, keepdim=True) / (quant_max - point)
        else:
            scale = (0.5 * most - 0.5 * least) / (0.5 * (quant_max - quant_min))
        scale = torch.where(scale < smallest, smallest, scale)
        scale = torch.where((c == 0).all(-1, keepdim=True), torch.ones_like(scale), scale)
        if not symmetric:
            point = (quant_min - torch.round(least / scale)).clamp(quant_min, quant_max)
            point = point.nan_to_num(quant_min)
        rule = Dynamic(x, PER_TOKEN, *quant_range, symmetric)
        assert_same_bits(scale, to_numpy(rule.scale))
        assert_same_bits(point.int(), to_numpy(rule.zero_point))


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
@pytest.mark.parametrize("quant_range", RANGES, ids=str)
def test_scales_round_correctly(quant_range: tuple[int, int], dtype: torch.dtype) -> None:
    """Each step against a rational number rounded once; the halves cost no bit of a normal one."""
    steps = quant_range[1] - quant_range[0]
    x = range_cases.finite_patterns(dtype, 2 * 400, 1).reshape(400, 2)
    x[::3] = torch.randn(134, 2, generator=cases.generator(2)).to(dtype)
    smallest = torch.finfo(dtype).smallest_normal
    for symmetric in modes_of(quant_range):
        rule = Dynamic(x, PER_TOKEN, *quant_range, symmetric)
        rows = zip(x.tolist(), rule.scale.tolist(), rule.zero_point.tolist(), strict=True)
        for row, (scale,), (point,) in rows:
            low, high = min(0, *row), max(0, *row)
            if symmetric:
                limit = quant_range[1] - (quant_range[0] + quant_range[1] + 1) // 2
                expected = nearest(Fraction(max(-low, high)) / limit, dtype)
            else:
                half = nearest(Fraction(high) / 2, dtype), nearest(Fraction(low) / 2, dtype)
                width = nearest(Fraction(half[0]) - Fraction(half[1]), dtype)
                expected = nearest(2 * Fraction(width) / steps, dtype)
                if 4 * smallest < high - low < math.inf:
                    whole = nearest(Fraction(high) - Fraction(low), dtype)
                    if math.isfinite(whole) and whole / steps > smallest:
                        assert expected == nearest(Fraction(whole) / steps, dtype)
            assert scale == (max(expected, smallest) if any(row) else 1)
            if not symmetric:
                shift = round(Fraction(nearest(Fraction(low) / Fraction(scale), dtype)))
                ends = quant_range
                assert point == min(max(ends[0] - shift, ends[0]), ends[1])


def test_by_hand() -> None:
    def chosen(values: list[float], *ends: int, symmetric: bool) -> tuple[float, int]:
        rule = Dynamic(torch.tensor(values), PER_TENSOR, *ends, symmetric)
        return rule.scale.item(), rule.zero_point.item()

    assert chosen([-254.0, 3], -128, 127, symmetric=True) == (2.0, 0)
    assert chosen([3.0, 254], 0, 255, symmetric=True) == (2.0, 128)
    assert chosen([-7.0, 3], 0, 15, symmetric=True) == (1.0, 8)
    assert chosen([4.0], -8, -4, symmetric=True) == (2.0, -6)
    assert chosen([-10.0, 500], 0, 255, symmetric=False) == (2.0, 5)
    assert chosen([100.0, 510], -128, 127, symmetric=False) == (2.0, -128)
    assert chosen([-510.0, -100], -128, 127, symmetric=False) == (2.0, 127)
    for symmetric, point in ((True, 0), (False, -128)):
        assert chosen([0.0, -0.0], -128, 127, symmetric=symmetric) == (1.0, point)
        assert chosen([], -128, 127, symmetric=symmetric) == (1.0, point)
        scale, found = chosen([1.0, math.inf], -128, 127, symmetric=symmetric)
        assert (scale, found) == (math.inf, point)
        scale, found = chosen([1.0, math.nan], -128, 127, symmetric=symmetric)
        assert math.isnan(scale) and found == point
    assert chosen([2e-44], -128, 127, symmetric=True)[0] == torch.finfo(torch.float32).tiny
    assert chosen([3.4e38, -3.4e38], -1, 1, symmetric=False)[0] == np.float32(3.4e38)


def test_observing_by_hand() -> None:
    seen = Observed.nothing(None, torch.float32).after(torch.tensor([1.0, 5]), None, 0.25)
    assert (seen.low, seen.high) == (1, 5)  # the first batch as it is
    seen = seen.after(torch.tensor([-3.0, 9]), None, 0.25)
    assert (seen.low, seen.high) == (0, 6)
    widest = seen.after(torch.tensor([-1.0, 2]), None, None)
    assert (widest.low, widest.high) == (-1, 6)
    assert widest.after(torch.ones(0), None, None) is widest
    for value in (math.nan, math.inf, -math.inf):  # which takes no part
        left_out = widest.after(torch.tensor([1.0, value]), None, None)
        assert (left_out.low, left_out.high, left_out.skipped) == (-1, 6, widest.skipped + 1)
    channels = Observed.nothing(2, torch.float64).after(torch.ones(2, 3).double(), 0, None)
    assert channels.low.shape == (2,) and channels.high.dtype == np.float64
    scale, point = Observed(np.float32([-1]), np.float32([3])).qparams(
        (0, 4), False, (np.float32([7]), np.int32([7]))
    )
    assert (scale.tolist(), point.tolist()) == ([1.0], [1])
    low, high = np.float32([-1, math.inf]), np.float32([3, -math.inf])
    assert qparams(low, high, (-3, 3), True)[0].tolist() == [1.0, 1.0]


@by_dtype
@pytest.mark.parametrize("symmetric", MODES)
def test_inputs_are_what_their_names_say(symmetric: bool, dtype: torch.dtype) -> None:
    ends, segments, width = (-100, 90), 2 * len(CHARACTERS), 200
    x = characterful((segments, width), dtype, per_channel(0), ends, symmetric)
    rule = Dynamic(x, per_channel(0), *ends, symmetric)
    info = torch.finfo(dtype)
    for index in range(segments):
        name, row = CHARACTERS[index % len(CHARACTERS)], x[index]
        scale = rule.scale[index].item()
        finite = row[row.isfinite()]
        if name in range_cases.CLEAN:
            assert len(finite) == width and math.isfinite(scale)
        else:
            bad = row[~row.isfinite()]
            assert len(bad) == (2 if name in ("both_inf", "nan_and_inf") else 1)
            assert math.isnan(scale) == ("nan" in name)
        if name == "positive":
            assert (row > 0).all()
        if name == "negative":
            assert (row < 0).all()
        if name == "huge":
            assert row.max() == info.max and row.min() == -info.max
        if name == "subnormal":
            assert (row.abs() < info.smallest_normal).all() and row.any()
        if name == "ties":
            assert scale == 1
            assert (abs(rule.ratio[index] - rule.r[index]) == 0.5).mean() > 0.1
        if name in ("zeros", "lonely"):
            assert int((row != 0).sum()) == (name == "lonely")
            assert torch.signbit(row).any()
        if name == "negative_nan":
            bits = to_numpy(row)
            assert np.signbit(bits[np.isnan(bits)]).all()
