# SPDX-License-Identifier: BSD-3-Clause
"""Scales as powers of two."""

import math
from typing import Any

import torch
from torch import Tensor

from ._functions import Rule, like_the_op


@like_the_op
def round_to_power_of_two_scale(a: Any) -> Any:
    """Compare the fraction with the root; the gradient goes straight through."""
    scale = a.scale

    def value() -> Tensor:
        fraction, exponent = torch.frexp(scale.double())  # 0.5 <= |fraction| < 1
        exponent = exponent - (fraction.abs() < math.sqrt(0.5)).int()
        _, largest = math.frexp(torch.finfo(scale.dtype).max)
        power = _power_of_two(exponent.clamp(max=largest - 1)).copysign(fraction).to(scale.dtype)
        return torch.where((scale == 0) | ~scale.isfinite(), scale, power)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (dy,)

    return Rule.apply(value, gradient, scale)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return ``2^exponent`` in float64, as a product of two normal numbers."""
    halves = (exponent // 2, exponent - exponent // 2)
    low, high = ((half.long() + 1023 << 52).view(torch.float64) for half in halves)
    return low * high
