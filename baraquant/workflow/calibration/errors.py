# SPDX-License-Identifier: BSD-3-Clause
"""Adds up the squared errors of one layer's output, in constant memory.

There is one sum for each way to compute the output. Nothing waits for the device before a sum is
read.
"""

from __future__ import annotations

import torch
from torch import Tensor


class OutputErrors:
    """The sums of squared errors of one layer.

    A call with a NaN or an infinity is counted, and adds nothing.

    Args:
        count: The number of sums.
        device: The device of the layer.

    Attributes:
        errors: The sums, float64 ``[count]``.
        skipped_batches: The number of calls that were left out, int64 ``[]``.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.errors = torch.zeros(count, dtype=torch.float64, device=device)
        self.skipped_batches = torch.zeros((), dtype=torch.int64, device=device)
        self._batches = 0

    def begin(self, *tensors: Tensor) -> Tensor:
        """Count a call, and return whether all of its tensors are finite, bool ``[]``."""
        self._batches += 1
        is_finite = torch.stack([tensor.detach().isfinite().all() for tensor in tensors]).all()
        self.skipped_batches += ~is_finite
        return is_finite

    def add(self, index: int, got: Tensor, wanted: Tensor, is_finite: Tensor) -> None:
        """Add the squared error of one output of a call.

        Args:
            index: The sum.
            got: The output with its error.
            wanted: The output without it, of the same shape.
            is_finite: What :meth:`begin` returned for the call.
        """
        error = (got - wanted).square().sum(dtype=torch.float64)
        self.errors[index] += torch.where(is_finite, error, 0.0)

    def unusable(self) -> Tensor | None:
        """Return whether no call was finite, bool ``[]``; None if there was no call."""
        return None if self._batches == 0 else self.skipped_batches == self._batches
