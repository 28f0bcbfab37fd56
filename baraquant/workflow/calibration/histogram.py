# SPDX-License-Identifier: BSD-3-Clause
"""A histogram of floats whose bins are defined by the bits of the values.

A bin holds the values that share their sign, their exponent and the first six bits of their
mantissa. Its width is between 1/128 and 1/64 of its values, whatever their size. So no range has to
be guessed from the first batch, nothing is resampled, and the counts do not depend on the order of
the data. The size is constant: 2^15 counts, 256 KiB.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MANTISSA_BITS = 6
_SHIFT = 23 - _MANTISSA_BITS
_BINS = 1 << (9 + _MANTISSA_BITS)  # sign, exponent, mantissa
_FINITE = 255 << _MANTISSA_BITS  # bins of one sign; those of exponent 255 are inf and NaN


class Histogram:
    """Counts of numbers by sign and magnitude.

    Args:
        device: The device of the counts.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(_BINS, dtype=torch.int64, device=device)

    def add(self, values: Tensor, where: Tensor | bool = True) -> None:
        """Count ``values``, floating, of any shape, if ``where`` (one bool) is true."""
        values = values.detach().reshape(-1)
        if values.dtype == torch.float64:
            limits = torch.finfo(torch.float32)
            values = values.clamp(limits.min, limits.max)
        bits = values.to(torch.float32).view(torch.int32)
        index = (bits >> _SHIFT) & (_BINS - 1)
        self.counts += torch.bincount(index, minlength=_BINS) * where

    def bins(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the lower edge, upper edge and count of every nonempty bin, ascending.

        All are float64, on the CPU; infinities and NaN are left out.
        """
        counts = self.counts.cpu()
        edges = torch.arange(_FINITE + 1, dtype=torch.int32) << _SHIFT
        edges = edges.view(torch.float32).to(torch.float64)
        edges[-1] = 2.0**128
        half = _BINS // 2
        low = torch.cat([-edges[1:].flip(0), edges[:-1]])
        high = torch.cat([-edges[:-1].flip(0), edges[1:]])
        count = torch.cat([counts[half : half + _FINITE].flip(0), counts[:_FINITE]])
        held = count > 0
        return low[held], high[held], count[held].to(torch.float64)


def quantile(bins: tuple[Tensor, Tensor, Tensor], fraction: float) -> float:
    """Return the value below which ``fraction`` of all lie, if a bin's values are spread evenly."""
    low, high, count = bins
    total = count.cumsum(0)
    wanted = fraction * total[-1]
    index = int(torch.searchsorted(total, wanted).clamp(max=len(total) - 1))
    below = total[index] - count[index]
    share = ((wanted - below) / count[index]).clamp(0.0, 1.0)
    return float(low[index] + share * (high[index] - low[index]))


def magnitudes(bins: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bins of the absolute values, ascending (the two signs stay separate bins)."""
    low, high, count = bins
    negative = high <= 0
    low, high = torch.where(negative, -high, low), torch.where(negative, -low, high)
    order = torch.argsort(low, stable=True)
    return low[order], high[order], count[order]


def squared_error(
    bins: tuple[Tensor, Tensor, Tensor],
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Return the sum of the squared quantization errors, for each candidate.

    The sum is exact if values are spread evenly within their bin. With ``n(t)``, the grid point
    next to ``t``, the squared error ``(t - s n(t))^2`` has the antiderivative
    ``F(t) = n s^3 / 12 + (t - s n)^3 / 3``, continuous where ``n`` steps, and beyond the clamps.

    Args:
        bins: What :meth:`Histogram.bins` returns, ``[B]`` each.
        scale: The candidates' scales, ``[S]``, float64.
        zero_point: The candidates' zero points, ``[S]``.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        ``[S]``, float64.
    """
    low, high, count = bins
    scale, zero_point = scale[:, None], zero_point[:, None].to(torch.float64)

    def antiderivative(t: Tensor) -> Tensor:  # [S, B]
        n = (t / scale).round()
        n = torch.minimum(torch.maximum(n, quant_min - zero_point), quant_max - zero_point)
        return n * scale.pow(3) / 12 + (t - n * scale).pow(3) / 3

    mean = (antiderivative(high) - antiderivative(low)) / (high - low)
    return (mean.clamp(min=0.0) * count).sum(dim=1)
