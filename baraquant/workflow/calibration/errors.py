# SPDX-License-Identifier: BSD-3-Clause
"""Adds up the squared errors of one layer's output, in constant memory.

There is one sum for each way to compute the output. Nothing waits for the device before a sum is
read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...nn.training._range import power_to_one
from .finite import FiniteCalls


class OutputErrors(FiniteCalls):
    """The sums of squared errors of one layer.

    A call with a NaN or an infinity is counted, and adds nothing.

    Args:
        count: The number of sums.
        device: The device of the layer.

    Attributes:
        errors: The sums, float64 ``[count]``.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__()
        self.errors = torch.zeros(count, dtype=torch.float64, device=device)

    def add(self, index: int, got: Tensor, wanted: Tensor, is_finite: Tensor) -> None:
        """Add the squared error of one output of a call.

        Args:
            index: The sum.
            got: The output with its error.
            wanted: The output without it, of the same shape.
            is_finite: What :meth:`begin` returned for the call.
        """
        difference = got - wanted
        # Squares near 1 neither overflow nor vanish.
        power = power_to_one(difference.abs().amax())
        error = (difference * power).square().sum(dtype=torch.float64) / power / power
        self.errors[index] += torch.where(is_finite, error, 0.0)
