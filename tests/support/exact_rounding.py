# SPDX-License-Identifier: BSD-3-Clause
"""Rounding of exact fractions to a dtype: what the tests of the oracles compare with."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

# Precision in bits and the exponent of the smallest subnormal number.
FORMATS = {
    torch.float16: (11, -24),
    torch.bfloat16: (8, -133),
    torch.float32: (24, -149),
    torch.float64: (53, -1074),
}


def nearest(value: Fraction, dtype: torch.dtype) -> float:
    """The number of `dtype` nearest to a rational, ties to even; infinite beyond the largest."""
    precision, smallest = FORMATS[dtype]
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - precision + 1, smallest)
    rounded = round(magnitude / step) * step  # Fraction rounds half to even
    sign = -1 if value < 0 else 1
    beyond = rounded > Fraction(torch.finfo(dtype).max)
    return sign * (math.inf if beyond else float(rounded))
