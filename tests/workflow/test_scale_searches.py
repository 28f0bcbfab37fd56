# SPDX-License-Identifier: BSD-3-Clause
"""Searches of scales: a weight times a power of two has the same integers, and that scale."""

import pytest
import torch

from baraquant.nn import FakeQuantize, FakeQuantizeInt4
from baraquant.nn.shared.int4_search import searched_factors
from baraquant.workflow.fit import fit
from baraquant.workflow.gptq.formula import grid_of

EXPONENTS = [-100, -70, -30, 30, 70, 100]


def weight(dtype=torch.float32):
    rows = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    rows[2, 5] = 40.0
    return rows.to(dtype)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_factors_of_four_bits(exponent, dtype, symmetric):
    rows = weight(dtype)
    wanted = searched_factors(rows, 16, symmetric)
    scale, factor, zero_point = searched_factors(rows * 2.0**exponent, 16, symmetric)
    assert torch.equal(scale, wanted[0] * 2.0**exponent)
    assert torch.equal(factor, wanted[1]) and torch.equal(zero_point, wanted[2])
    assert len(factor.unique()) > 3  # the search chose


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_group"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_scales(exponent, granularity, symmetric, weighted):
    rows, importance = weight(), None
    if weighted:
        importance = torch.rand(64, generator=torch.Generator().manual_seed(1))
        importance = None if granularity == "per_tensor" else importance
    quantizer = FakeQuantize(
        granularity=granularity,
        axis=0 if granularity == "per_channel" else None,
        group_size=16 if granularity == "per_group" else None,
        mode="dynamic",
        quant_min=-8,
        quant_max=7,
        symmetric=symmetric,
    )
    wanted = fit(rows, quantizer, importance)
    heavy = None if importance is None else importance * 2.0**-exponent
    found = fit(rows * 2.0**exponent, quantizer, heavy)
    assert torch.equal(found.scale, wanted.scale * 2.0**exponent)
    assert torch.equal(found.zero_point, wanted.zero_point)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("fixed", [False, True])
def test_grids_of_gptq(exponent, fixed):
    factors = []
    for rows in (weight(), weight() * 2.0**exponent):
        grid = grid_of(rows, FakeQuantizeInt4(16), True, fixed=fixed)
        for group, part in enumerate(rows.split(16, dim=1) if grid.follows else ()):
            grid.find(group, part)
        factors.append(grid._factor)
    assert torch.equal(*factors)


def test_subnormal_weights_are_searched_too():
    rows = weight() * 2.0**-130
    errors = [
        (quantizer.round(rows).double() - rows).square().sum()
        for quantizer in (fit(rows, FakeQuantizeInt4(16)), FakeQuantizeInt4(16))
    ]
    assert errors[0] <= errors[1]
