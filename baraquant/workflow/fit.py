# SPDX-License-Identifier: BSD-3-Clause
"""The scales of weights of few bits, fitted to the weights: the least squared error of several."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import ops
from ..nn import FakeQuantize
from ..nn.training._range import qparams_of_range

# Of the range of the weights: the whole of it down to half of it, the widest first.
FACTORS = [1.0 - step / 50 for step in range(26)]

# Numbers at a time, so that the temporaries stay small.
_CHUNK = 1 << 22


def fit_scale(rows: Tensor, quantizer: FakeQuantize) -> FakeQuantize:
    """Return a fake quantizer with the scales that fit the numbers best.

    For each scale 26 ranges are tried: that of its numbers, and narrower ones down to half of it.
    The squared error of what they round to decides; the wider one where two are alike.

    Args:
        rows: What the quantizer takes, with a dimension of rows first.
        quantizer: A dynamic one, whose integers and whose granularity the new one has:
            ``per_tensor``, ``per_channel`` (of rows) or ``per_group`` (along them).
    """
    size, granularity = quantizer.group_size, quantizer.granularity
    shapes = {"per_tensor": [], "per_channel": [rows.shape[0]]}
    shape = shapes.get(granularity, [rows.shape[0], -1])
    segments = (
        rows.reshape(-1, size) if size > 0 else rows.reshape(rows.shape[0] if shape else 1, -1)
    )
    step = max(1, _CHUNK // max(1, segments.shape[1]))
    parts = [_fit(part, quantizer) for part in segments.split(step)]
    scale, zero_point = (torch.cat(part) for part in zip(*parts, strict=True))
    return FakeQuantize(
        scale.reshape(shape),
        zero_point.reshape(shape),
        granularity,
        axis=0 if granularity == "per_channel" else None,
        group_size=size or None,
        quant_min=quantizer.quant_min,
        quant_max=quantizer.quant_max,
    )


def _fit(segments: Tensor, quantizer: FakeQuantize) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of each row."""
    low_end, high_end, symmetric = quantizer.quant_min, quantizer.quant_max, quantizer.symmetric
    values = segments.to(torch.float64 if segments.dtype == torch.float64 else torch.float32)
    low, high = torch.aminmax(values, dim=1)
    best = torch.full_like(low, math.inf)
    scale, zero_point = qparams_of_range(low, high, low_end, high_end, symmetric)
    for factor in FACTORS:
        tried, zeros = qparams_of_range(low * factor, high * factor, low_end, high_end, symmetric)
        rounded = ops.fake_quantize_per_channel(values, tried, zeros, 0, low_end, high_end)
        error = (rounded - values).square_().sum(dim=1)
        is_better = error < best
        best = torch.where(is_better, error, best)
        scale = torch.where(is_better, tried, scale)
        zero_point = torch.where(is_better, zeros, zero_point)
    return scale, zero_point
