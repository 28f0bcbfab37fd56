# SPDX-License-Identifier: BSD-3-Clause
"""Fits the scales of weights of few bits: tries several, and takes the minimum squared error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import ops
from ..configs import QuantConfig
from ..nn import FakeQuantize, FakeQuantizeInt4
from ..nn.shared.int4_search import searched_factors
from ..nn.shared.range import power_to_one, qparams_of_range

# The candidates, as shares of the weights' range: from all of it down to half, the widest first.
FACTORS = [1.0 - step / 50 for step in range(26)]

# The number of elements at a time, so that the temporaries stay small.
_CHUNK = 1 << 22


def searches_scales(config: QuantConfig) -> bool:
    """Return whether the scales of weights come from :func:`fit`."""
    return config.scale_rule == "search" and config.weight.bits < 8


def fit(
    rows: Tensor,
    quantizer: FakeQuantize | FakeQuantizeInt4,
    importance: Tensor | None = None,
) -> FakeQuantize | FakeQuantizeInt4:
    """Return a fake quantizer with the scales, or the factors, that fit the values best.

    Args:
        rows: The weight, ``[N, K]``.
        quantizer: A dynamic quantizer of it.
        importance: What the squared errors of each column are multiplied by, ``[K]``, such as the
            mean square of the input that it is multiplied with, for floating inputs and scales of
            channels or groups. None: all columns count alike.
    """
    if isinstance(quantizer, FakeQuantizeInt4):
        return fit_factors(rows, quantizer)
    return fit_scale(rows, quantizer, importance)


def fit_factors(rows: Tensor, quantizer: FakeQuantizeInt4) -> FakeQuantizeInt4:
    """Return a fake quantizer with the factors that fit the values best.

    They are those of :func:`searched_factors`.

    Args:
        rows: The weight, ``[N, K]``.
        quantizer: A dynamic quantizer, which has the size of the groups.
    """
    scale, factor, zero_point = searched_factors(rows, quantizer.group_size, quantizer.symmetric)
    return FakeQuantizeInt4(
        quantizer.group_size,
        symmetric=quantizer.symmetric,
        scale=scale,
        group_factor=factor,
        group_zero_point=zero_point,
    )


def fit_scale(
    rows: Tensor, quantizer: FakeQuantize, importance: Tensor | None = None
) -> FakeQuantize:
    """Return a fake quantizer with the scales that fit the values best.

    For each scale 26 ranges are tried: the full range of its values, and narrower ones down to half
    of it: both ends are multiplied by ``1 - i / 50``, ``i`` from 0 to 25, and a scale is that of
    :func:`baraquant.ops.choose_qparams_per_channel` for the two ends. The range with the minimum
    squared error is taken, and of two equal ones the wider. Errors are summed for the values times
    the power of two that takes the largest magnitude into [1, 2), in the dtype of the scale.

    Args:
        rows: The input of the quantizer; its first dimension counts rows.
        quantizer: A dynamic quantizer. The new one has its integers and its granularity:
            ``per_tensor``, ``per_channel`` (one scale per row) or ``per_group`` (along rows).
        importance: As in :func:`fit`, for a matrix of rows.
    """
    size, granularity = quantizer.group_size, quantizer.granularity
    shapes = {"per_tensor": [], "per_channel": [rows.shape[0]]}
    shape = shapes.get(granularity, [rows.shape[0], -1])
    segments = (
        rows.reshape(-1, size) if size > 0 else rows.reshape(rows.shape[0] if shape else 1, -1)
    )
    weights = None if importance is None else importance.reshape(-1, segments.shape[1])
    scale, zero_point = qparams_of_rows(segments, quantizer, searches=True, weights=weights)
    return FakeQuantize(
        scale.reshape(shape),
        zero_point.reshape(shape),
        granularity,
        axis=0 if granularity == "per_channel" else None,
        group_size=size or None,
        quant_min=quantizer.quant_min,
        quant_max=quantizer.quant_max,
        scale_dtype=quantizer.scale_dtype,
    )


def qparams_of_rows(
    rows: Tensor, quantizer: FakeQuantize, *, searches: bool, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of each row, ``[rows]`` each.

    Args:
        rows: A matrix.
        quantizer: A quantizer with the integers and the dtype of the scales.
        searches: Whether to try narrower ranges too, as :func:`fit_scale` does.
        weights: What the squared errors are multiplied by, for as many rows as there are, or for
            fewer, which then repeat; None: 1.
    """
    if not searches:
        low, high = torch.aminmax(rows, dim=1)
        ends = quantizer.quant_min, quantizer.quant_max
        return qparams_of_range(low, high, *ends, quantizer.symmetric, quantizer.scale_dtype)
    repeated = 1 if weights is None else len(weights)
    step = max(1, _CHUNK // max(1, rows.shape[1] * repeated)) * repeated
    parts = [_fit(part, quantizer, weights) for part in rows.split(step)]
    scale, zero_point = (torch.cat(part) for part in zip(*parts, strict=True))
    return scale, zero_point


def _fit(
    segments: Tensor, quantizer: FakeQuantize, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of each row."""
    low_end, high_end, symmetric = quantizer.quant_min, quantizer.quant_max, quantizer.symmetric
    values = segments.to(torch.float64 if segments.dtype == torch.float64 else torch.float32)
    low, high = torch.aminmax(values, dim=1)
    best = torch.full_like(low, math.inf)
    # Errors are compared where the largest value is near 1: their squares neither overflow nor
    # vanish, and neither do the products with the weights, whose sizes alone do not count.
    power = power_to_one(torch.maximum(low.abs(), high.abs()))
    near_one = values * power[:, None]
    if weights is not None:
        weights = weights.to(values)
        weights = weights * power_to_one(weights.amax(dim=1, keepdim=True))
        weights = weights.repeat(len(values) // len(weights), 1)
    how = (low_end, high_end, symmetric, quantizer.scale_dtype)
    scale, zero_point = qparams_of_range(low, high, *how)
    for factor in FACTORS:
        tried, zeros = qparams_of_range(low * factor, high * factor, *how)
        rounded = ops.fake_quantize_per_channel(
            near_one, tried * power, zeros, 0, low_end, high_end
        )
        squares = (rounded - near_one).square_()
        if weights is not None:
            squares.mul_(weights)
        error = squares.sum(dim=1)
        is_better = error < best
        best = torch.where(is_better, error, best)
        scale = torch.where(is_better, tried, scale)
        zero_point = torch.where(is_better, zeros, zero_point)
    return scale, zero_point
