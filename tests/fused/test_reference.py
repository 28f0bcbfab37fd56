# SPDX-License-Identifier: BSD-3-Clause
"""The fused family of `baraquant.reference` against the NumPy oracle, bit for bit."""

from __future__ import annotations

import pytest
import torch

from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.family_cases.fused import hostile, rows
from tests.support.oracle import fused as oracle

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


@by_dtype
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("length", [1, 3, 40, 1000, 4096, 9000])
def test_norms(length: int, centered: bool, dtype: torch.dtype) -> None:
    weight, bias = (rows((length,), dtype, i, "plain") for i in (1, 2))
    for seed, x in enumerate((rows((2, length), dtype, length), rows((2, length), dtype, 4))):
        residual = rows((2, length), dtype, seed + 1, "plain")
        total = oracle.added(x, residual)
        expected = oracle.norm(total, weight, bias if centered else None, 1e-6, centered)
        if centered:
            y, sums = reference.layer_norm(x, weight, bias, 1e-6, residual=residual)
        else:
            y, sums = reference.rms_norm(x, weight, 1e-6, residual=residual)
        assert_same_bits(y, expected)
        assert_same_bits(sums, total)


@pytest.mark.exhaustive
@by_dtype
def test_hostile_values(dtype: torch.dtype) -> None:
    x = hostile(dtype)
    assert_same_bits(reference.rms_norm(x, None, 0.0), oracle.norm(x, None, None, 0.0, False))
    layer = reference.layer_norm(x, None, None, 0.0)
    assert_same_bits(layer, oracle.norm(x, None, None, 0.0, True))
    assert_same_bits(reference.hadamard(x, 8), oracle.hadamard(x, 8))
