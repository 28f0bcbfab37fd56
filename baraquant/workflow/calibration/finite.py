# SPDX-License-Identifier: BSD-3-Clause
"""Counts the calls of one layer, and those with a NaN or an infinity."""

from __future__ import annotations

import torch
from torch import Tensor


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
