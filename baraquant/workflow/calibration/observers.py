# SPDX-License-Identifier: BSD-3-Clause
"""Observers: find the range of a tensor over the batches of a calibration, in constant memory.

==================  ============================================================================
``min_max``         the smallest and the largest number: nothing is clipped
``moving_average``  the ends of each batch, averaged with exponential weights: one odd batch counts
                    little
``percentile``      the ends that leave out a given share of the numbers, the most extreme ones
``mse``             the ends that give the least mean squared error of quantization
==================  ============================================================================

The first two keep two numbers, the others a histogram of 256 KiB as well. Each waits for the device
only when its result is read. A batch with a NaN or an infinity is ignored and counted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ... import ops
from ...nn.shared.arguments import check
from ...nn.shared.precision import compute_dtype
from ...nn.shared.range import power_to_one, qparams_of_range
from .run import Watcher


class Observer(ABC):
    """The base of all observers: the minimum and maximum, and the scale of a range.

    Attributes:
        min_val: The minimum, ``[]``; inf before the first finite batch, None before any batch.
        max_val: The maximum, ``[]``; -inf before the first finite batch, None before any batch.
        skipped_batches: The number of batches ignored for a NaN or an infinity, int64 ``[]``; None
            before any batch.
    """

    _axis: int | None = None  # of a range for each channel
    averaging_constant: float | None = None

    def __init__(self) -> None:
        self.min_val: Tensor | None = None
        self.max_val: Tensor | None = None
        self.skipped_batches: Tensor | None = None

    def observe(self, input: Tensor) -> None:
        """Observe ``input``, floating, of any shape; an empty input changes nothing.

        An input with a NaN or an infinity is counted in ``skipped_batches``, and changes nothing
        else.
        """
        if input.numel() == 0:
            return
        input = input.detach()
        if self.min_val is None:
            dtype = compute_dtype(input.dtype)
            shape = () if self._axis is None else (input.shape[self._axis],)
            self.min_val = torch.full(shape, math.inf, dtype=dtype, device=input.device)
            self.max_val = torch.full(shape, -math.inf, dtype=dtype, device=input.device)
            self.skipped_batches = torch.zeros((), dtype=torch.int64, device=input.device)
        elif (input.dtype == torch.float64) != (self.min_val.dtype == torch.float64):
            input = input.to(self.min_val.dtype)
        self._observe(input.to(self.min_val.device))

    def _observe(self, input: Tensor) -> None:
        ops.observe_min_max_(
            input,
            self.min_val,
            self.max_val,
            axis=self._axis,
            averaging_constant=self.averaging_constant,
            skipped_batches=self.skipped_batches,
        )

    def unusable(self) -> Tensor | None:
        """Return whether no finite batch was seen, as a bool tensor; None if no batch was seen."""
        if self.min_val is None or self.max_val is None:
            return None
        return ~torch.isfinite(self.min_val + 0 * self.max_val).all()

    def calculate_qparams(
        self, quant_min: int = -128, quant_max: int = 127, symmetric: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the scale and the zero point of the observed range, ``[]`` each.

        They are those of :func:`baraquant.ops.choose_qparams_per_tensor` for data with the range
        that the observer chooses.

        Raises:
            ValueError: No batch was seen, or every batch held a NaN or an infinity.
        """
        low, high = self.range(quant_min, quant_max, symmetric)
        return qparams_of_range(low, high, quant_min, quant_max, symmetric)

    def range(
        self, quant_min: int = -128, quant_max: int = 127, symmetric: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of the range that the observer chooses, ``[]`` each.

        Raises:
            ValueError: No batch was seen, or every batch held a NaN or an infinity.
        """
        unusable = self.unusable()
        name = type(self).__name__
        if unusable is None or self.min_val is None:
            raise ValueError(f"{name}: expected data for a scale, but observed none")
        if bool(unusable):
            raise ValueError(
                f"{name}: expected finite data, but observed NaN or infinity in every batch"
            )
        ends = self._ends(quant_min, quant_max, symmetric)
        low, high = (torch.as_tensor(end).to(self.min_val) for end in ends)
        return low, high

    @abstractmethod
    def _ends(
        self, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """Return the range that the scale must cover; all observed data is finite."""


class MinMaxObserver(Observer):
    """The minimum and the maximum of all batches."""

    def _ends(self, quant_min: int, quant_max: int, symmetric: bool) -> tuple[Tensor, Tensor]:
        assert self.min_val is not None and self.max_val is not None
        return self.min_val, self.max_val


class MovingAverageObserver(MinMaxObserver):
    """The minimum and the maximum of each batch, in a moving average over the batches.

    Args:
        averaging_constant: The weight of a new batch, in (0, 1].
    """

    def __init__(self, averaging_constant: float = 0.01) -> None:
        super().__init__()
        fits = 0.0 < averaging_constant <= 1.0  # false for NaN
        wanted = "averaging_constant to lie in (0, 1]"
        check("MovingAverageObserver", fits, wanted, averaging_constant)
        self.averaging_constant = averaging_constant


class _HistogramObserver(Observer):
    """Counts the numbers of all batches, in bins whose width is less than 1/64 of them."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Tensor | None = None

    def _observe(self, input: Tensor) -> None:
        assert self.skipped_batches is not None
        before = self.skipped_batches.clone()
        super()._observe(input)
        is_counted = self.skipped_batches == before
        counts = torch.ops.baraquant._histogram(input) * is_counted
        self._counts = counts if self._counts is None else self._counts + counts


class PercentileObserver(_HistogramObserver):
    """The range that holds ``percentile`` percent of the numbers.

    A symmetric range holds this share of the absolute values. In an asymmetric range each end
    leaves out half of the rest. The ends are exact to the width of a bin, which is less than 1/64
    of their size.

    Args:
        percentile: The share, in (50, 100]; 100 is the minimum and the maximum.
    """

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        fits = 50.0 < percentile <= 100.0
        check("PercentileObserver", fits, "percentile to lie in (50, 100]", percentile)
        self.percentile = percentile

    def _ends(self, quant_min: int, quant_max: int, symmetric: bool) -> tuple[float, float]:
        ends: tuple[float, float] = torch.ops.baraquant._percentile_range(
            self._counts, self.min_val, self.max_val, self.percentile, symmetric
        )
        return ends


class MSEObserver(_HistogramObserver):
    """The range whose quantization has the minimum mean squared error.

    The candidates are ranges down to 2^-12 of the widest, first in steps of a quarter of an octave,
    then in finer steps. The two ends of an asymmetric range are searched in turn.
    """

    def _ends(self, quant_min: int, quant_max: int, symmetric: bool) -> tuple[float, float]:
        ends: tuple[float, float] = torch.ops.baraquant._least_error_range(
            self._counts, self.min_val, self.max_val, quant_min, quant_max, symmetric
        )
        return ends


class Through:
    """A watcher of what ``make`` returns for each input, such as its product with a matrix."""

    def __init__(self, watcher: Watcher, make: Callable[[Tensor], Tensor]) -> None:
        self.watcher, self._make = watcher, make

    def observe(self, input: Tensor) -> None:
        """Observe what is made of one input."""
        self.watcher.observe(self._make(input))

    def unusable(self) -> Tensor | None:
        """Return whether no finite input was seen; None if no input was seen."""
        return self.watcher.unusable()

    @property
    def skipped_batches(self) -> Tensor | None:
        """The number of inputs ignored for a NaN or an infinity."""
        return self.watcher.skipped_batches


OBSERVERS: dict[str, type[Observer]] = {
    "min_max": MinMaxObserver,
    "moving_average": MovingAverageObserver,
    "percentile": PercentileObserver,
    "mse": MSEObserver,
}


# ---- Which calls of a layer count, and sums over them in the range of floats --------------------


class FiniteCalls:
    """Says which calls of a layer count. Nothing waits for the device.

    Attributes:
        skipped_batches: The number of calls with a NaN or an infinity, int64 ``[]``; None if there
            was no call.
        known: How many of them a warning has named already.
    """

    known = 0

    def __init__(self) -> None:
        self._skipped: Tensor | None = None
        self._calls = 0

    @property
    def skipped_batches(self) -> Tensor | None:
        """The number of calls with a NaN or an infinity beyond the known ones."""
        return None if self._skipped is None else self._skipped - self.known

    def count(self) -> int:
        """Return the number of calls with a NaN or an infinity."""
        return 0 if self._skipped is None else int(self._skipped)

    def begin(self, *tensors: Tensor) -> Tensor:
        """Count a call, and return whether all of its tensors are finite, bool ``[]``."""
        self._calls += 1
        is_finite = torch.stack([tensor.detach().isfinite().all() for tensor in tensors]).all()
        if self._skipped is None:
            self._skipped = torch.zeros((), dtype=torch.int64, device=is_finite.device)
        self._skipped += ~is_finite
        return is_finite

    def unusable(self) -> Tensor | None:
        """Return whether no call was finite, bool ``[]``; None if there was no call."""
        return None if self._skipped is None else self._skipped == self._calls


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
        """Return rows, floating and not empty, times the power, and the factor of earlier sums."""
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
    """The sums of squared errors of one layer, float64 ``[count]``.

    A call with a NaN or an infinity is counted, and adds nothing.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__()
        self.errors = torch.zeros(count, dtype=torch.float64, device=device)

    def add(self, index: int, got: Tensor, wanted: Tensor, is_finite: Tensor) -> None:
        """Add the squared error of one output of a call that :meth:`begin` has counted."""
        difference = got - wanted
        # Squares near 1 neither overflow nor vanish.
        power = power_to_one(difference.abs().amax())
        error = (difference * power).square().sum(dtype=torch.float64) / power / power
        self.errors[index] += torch.where(is_finite, error, 0.0)
