# SPDX-License-Identifier: BSD-3-Clause
"""The fused family's oracle: by hand, against exact fractions, and against a matrix."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support import cases
from tests.support.exact_rounding import nearest
from tests.support.family_cases.fused import rows
from tests.support.oracle import fused as oracle


def test_order_of_a_sum_by_hand() -> None:
    """Numbers of which every order gives another sum."""
    big = 2.0**53
    assert oracle.sum_of_rows(np.array([1.0, big, -big])).item() == 0.0  # (1 + big) + (-big + 0)
    assert oracle.sum_of_rows(np.array([big, -big, 1.0])).item() == 1.0
    assert oracle.sum_of_rows(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).item() == 15.0
    long = np.zeros(4096 + 4)
    long[[0, 1, 4096, 4097]] = [big, 1.0, -big, 1.0]  # lane 0: big - big, lane 1: 1 + 1
    assert oracle.sum_of_rows(long).item() == 2.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=cases.name_of)
def test_norms_within_a_rounding_of_the_exact_ones(dtype: torch.dtype) -> None:
    x = rows((4, 37), dtype, character="plain")
    weight = rows((37,), dtype, 1, "plain")
    for centered in (False, True):
        y = oracle.norm(x, weight, None, 2.0**-10, centered)
        for row, result in zip(x.double().tolist(), y.double().tolist(), strict=True):
            numbers = [Fraction(v) for v in row]
            mean = sum(numbers) / len(row) if centered else Fraction(0)
            square = sum((v - mean) ** 2 for v in numbers) / len(row) + Fraction(1, 1024)
            r = Fraction(1 / math.sqrt(square))
            for v, w, got in zip(numbers, weight.double().tolist(), result, strict=True):
                exact = (v - mean) * r * Fraction(w)
                unit = abs(nearest(exact, dtype)) * torch.finfo(dtype).eps
                assert abs(Fraction(got) - exact) <= Fraction(unit * 0.51 + 1e-7)


@pytest.mark.parametrize("block", [1, 2, 4, 16, 64])
def test_rotation_is_sylvesters_matrix(block: int) -> None:
    signs = [[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    x = torch.randint(-9, 9, (5, 2 * block), generator=cases.generator(block)).double()
    matrix = torch.tensor(signs).double() / math.sqrt(block)
    expected = (x.unflatten(-1, (-1, block)) @ matrix).flatten(-2)
    torch.testing.assert_close(oracle.hadamard(x, block), expected)
