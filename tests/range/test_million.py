# SPDX-License-Identifier: BSD-3-Clause
"""More than a million values of each dtype: every granularity and mode, any layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.checks.range import assert_chosen, check_input
from tests.support.family_cases.range import CLEAN, MODES, characterful
from tests.support.oracle.range import Dynamic

SHAPE = (41, 101, 257)  # 1,064,237 elements, odd in every direction
GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(-1),
    PER_TOKEN,
    per_group(32),
    per_group(10, 0),
    per_group(7, -2),
)
LAYOUTS = ("contiguous", "transposed", "stepped")


@pytest.mark.exhaustive
@pytest.mark.parametrize("symmetric", MODES, ids=("symmetric", "asymmetric"))
@pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_a_million(
    dtype: torch.dtype, granularity: Granularity, symmetric: bool, device: str
) -> None:
    """Scales, integers and fake; the gradient. Each integer dtype with each granularity."""
    output = cases.INTEGER_DTYPES[GRANULARITIES.index(granularity) % 2 ^ symmetric]
    ends, mode = cases.default_range(output), {"symmetric": symmetric}
    characters: tuple[str, ...] = (*CLEAN, *CLEAN, "nan", "negative_nan", "inf", "both_inf")
    if granularity == PER_TENSOR:  # one segment: many exponents, of which few decide
        characters = ("normal",)
    base = characterful(SHAPE, dtype, granularity, ends, symmetric, 0, characters)
    rule = Dynamic(base, granularity, *ends, symmetric)
    integers, fakes = rule.quantize(output), rule.fake_quantize()
    for layout in LAYOUTS:
        x = cases.LAYOUTS[layout](base.to(device)).requires_grad_()
        args = (x, *granularity.args, *ends)
        assert_chosen(*granularity.op("choose_qparams")(*args, **mode), rule, layout)
        quantize = granularity.op("dynamic_range_quantize")
        q, scale, point = quantize(*args, **mode, dtype=output)
        assert_chosen(scale, point, rule, layout)
        assert_same_bits(q, integers, layout)
        y = granularity.op("dynamic_fake_quantize")(*args, **mode)
        assert_same_bits(y, fakes, layout)
    grad = cases.gradients(SHAPE, dtype)
    (dx,) = torch.autograd.grad(y, x, grad.to(device))
    assert_same_bits(dx, rule.dynamic_backward(grad))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=cases.name_of)
def test_all_65536_bit_patterns(dtype: torch.dtype, device: str) -> None:
    """Each as the only number of its segment, beside zero, and among others in segments of 256."""
    patterns = cases.bit_patterns(dtype, 65536)
    assert len(patterns.view(torch.int16).unique()) == 65536
    alone = patterns[:, None]
    beside = torch.stack([torch.zeros(65536, dtype=dtype), patterns], dim=1)
    few = patterns.view(256, 256)  # of one exponent or two: the first eight bits agree
    for symmetric in MODES:
        for ends in ((-128, 127), (0, 255), (-8, 7)):
            for x in (alone, beside, few):
                rule = check_input(device, x, PER_TOKEN, ends, symmetric)
                check_input(device, x, per_channel(0), ends, symmetric)
    assert np.isfinite(to_numpy(rule.scale)).any()
    finite = torch.where(patterns.isfinite(), patterns, torch.zeros_like(patterns))
    for symmetric in MODES:
        check_input(device, finite, PER_TENSOR, symmetric=symmetric)
        check_input(device, finite.view(16, 4096), per_channel(1), symmetric=symmetric)


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
def test_every_exponent(dtype: torch.dtype, device: str) -> None:
    """A maximum of each exponent, with numbers of its own size beneath it."""
    exponents = 256 if dtype == torch.float32 else 2048
    info = torch.finfo(dtype)
    lowest = 1 - exponents // 2 - (22 if dtype == torch.float32 else 51)
    powers = torch.arange(lowest, exponents // 2 - 1)
    spread = torch.rand(len(powers), 200, generator=cases.generator(0), dtype=torch.float64)
    x = torch.ldexp((4 * spread - 2).to(dtype), powers[:, None])
    assert x.isfinite().all() and x.abs().max() > info.max / 4
    assert (x.abs().amax(1) < info.smallest_normal).sum() > 20
    for symmetric in MODES:
        for ends in ((-128, 127), (0, 255), (-2, 1)):
            for granularity in (PER_TOKEN, per_channel(0), per_group(7), per_channel(1)):
                check_input(device, x, granularity, ends, symmetric)
