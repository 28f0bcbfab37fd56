# SPDX-License-Identifier: BSD-3-Clause
"""Fits the scales of weights of few bits: tries several, and takes the minimum squared error."""

from __future__ import annotations

import torch
from torch import Tensor

from ..configs import QuantConfig
from ..nn import FakeQuantize, FakeQuantizeInt4
from ..nn.shared.int4_search import searched_factors
from ..nn.shared.range import qparams_of_range


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

    For each scale 26 ranges are tried, from the full range of its values to half of it, and the one
    with the minimum squared error is taken; ``csrc/search/weights.h`` has the formulas.

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
    ends = quantizer.quant_min, quantizer.quant_max
    if not searches:
        low, high = torch.aminmax(rows, dim=1)
        return qparams_of_range(low, high, *ends, quantizer.symmetric, quantizer.scale_dtype)
    qparams: tuple[Tensor, Tensor] = torch.ops.baraquant._search_scale(
        rows, *ends, quantizer.symmetric, quantizer.scale_dtype, weights
    )
    return qparams
