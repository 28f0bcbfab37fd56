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
from tests.support.cases import PER_TOKEN
from tests.support.exact_rounding import nearest
from tests.support.family_cases import range as range_cases
from tests.support.family_cases.range import RANGES, characterful, modes_of
from tests.support.oracle.range import Dynamic, extremes

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
