# SPDX-License-Identifier: BSD-3-Clause
"""Counts the calls of one layer, and keeps sums over them within the range of floats.

The memory is constant, and nothing waits for the device before a sum is read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...nn.shared.range import power_to_one


class FiniteCalls:
    """Says which calls of a layer count. Nothing waits for the device.

    Attributes:
        skipped_batches: The number of calls with a NaN or an infinity, int64 ``[]``; None if there
            was no call.
    """

    def __init__(self) -> None:
        self.skipped_batches: Tensor | None = None
        self._calls = 0

    def begin(self, *tensors: Tensor) -> Tensor:
        """Count a call, and return whether all of its tensors are finite, bool ``[]``."""
        self._calls += 1
        is_finite = torch.stack([tensor.detach().isfinite().all() for tensor in tensors]).all()
        if self.skipped_batches is None:
            self.skipped_batches = torch.zeros((), dtype=torch.int64, device=is_finite.device)
        self.skipped_batches += ~is_finite
        return is_finite

    def unusable(self) -> Tensor | None:
        """Return whether no call was finite, bool ``[]``; None if there was no call."""
        return None if self.skipped_batches is None else self.skipped_batches == self._calls


class Seen(FiniteCalls):
    """A watcher that only counts the inputs of one layer, and those that are not finite."""

    def observe(self, input: Tensor) -> None:
        """Count ``input`` unless it is empty."""
        if input.numel() > 0:
            self.begin(input)

    def count(self) -> int:
        """Return the number of inputs that are not finite."""
        return 0 if self.skipped_batches is None else int(self.skipped_batches)


class NearOne:
    """Takes the inputs of one layer near 1, by a power of two that all of its calls share.

    Sums of squares then neither overflow nor vanish, and have the bits of others but for that
    power.

    Attributes:
        power: That of the largest magnitude so far, ``[]``; None before the first call.
    """

    def __init__(self) -> None:
        self.power: Tensor | None = None
        self._largest: Tensor | None = None

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a call times the power, and what earlier sums are to be multiplied by.

        Args:
            rows: Not empty, float32 or float64.
        """
        largest = rows.abs().amax()
        if self._largest is not None:
            largest = torch.maximum(largest, self._largest)
        power = power_to_one(largest)
        # It exceeds 1 only if all inputs were 0 so far, and so are the sums.
        before = power if self.power is None else self.power
        change = (power / before).clamp(max=1.0)
        self._largest, self.power = largest, power
        return rows * power, change


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
