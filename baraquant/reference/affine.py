# SPDX-License-Identifier: BSD-3-Clause
"""The affine family: the scale is given."""

import torch
from torch import Tensor

from ._functions import Rule, granularities
from .granularity import Segments, expand_qparams, sum_segments
from .rules import compute_dtype, dequantized, grid_position, is_inside, round_to

# ---- The ops, each for given segments -----------------------------------------------------------


def quantize(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    segments: Segments,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return ``q``, as integers or as floats; a NaN ``v`` gives the clamped zero point."""
    s, z = expand_qparams(scale, zero_point, segments, compute_dtype(input.dtype))

    def value() -> Tensor:
        v = grid_position(input.to(s.dtype), s, z)
        return torch.where(v.isnan(), z, v).clamp(quant_min, quant_max).to(dtype)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (quantize_backward(dy, input, scale, zero_point, segments, quant_min, quant_max),)

    return Rule.apply(value, gradient, input) if dtype.is_floating_point else value()


def dequantize(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    segments: Segments,
    dtype: torch.dtype | None,
) -> Tensor:
    """Return ``(q - z) * s``, computed in the dtype of the scale."""
    if isinstance(scale, Tensor):
        c = scale.dtype
    else:
        c = torch.float64 if torch.float64 in (input.dtype, dtype) else torch.float32
    s, z = expand_qparams(scale, zero_point, segments, c)

    def value() -> Tensor:
        return round_to(dequantized(input.to(c), s, z), dtype or c)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (round_to(dy.to(c) * s, input.dtype),)

    return Rule.apply(value, gradient, input)


def fake_quantize(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    segments: Segments,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Return ``(q - z) * s`` of the ``q`` that quantize finds; a NaN ``v`` stays NaN."""
    arguments = (input, scale, zero_point, segments, quant_min, quant_max)
    c = compute_dtype(input.dtype)
    s, z = expand_qparams(scale, zero_point, segments, c, (quant_min, quant_max))

    def value() -> Tensor:
        q = grid_position(input.to(c), s, z).clamp(quant_min, quant_max)
        return dequantized(q, s, z).to(input.dtype)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        if not any(needed[1:]):
            return fake_quantize_backward(dy, *arguments), None, None
        gradients = fake_quantize_backward_qparams(dy, *arguments)
        return tuple(g if n else None for g, n in zip(gradients, needed, strict=True))

    return Rule.apply(value, gradient, input, scale, zero_point)


def quantize_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    segments: Segments,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Return ``dy / s`` where the mask is true, else 0."""
    s, z = expand_qparams(scale, zero_point, segments, compute_dtype(input.dtype))
    inside = is_inside(grid_position(input.to(s.dtype), s, z), quant_min, quant_max)
    return torch.where(inside, grad.to(s.dtype) / s, 0.0).to(input.dtype)


def fake_quantize_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    segments: Segments,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Return ``dy`` where the mask is true, else 0."""
    c = compute_dtype(input.dtype)
    s, z = expand_qparams(scale, zero_point, segments, c, (quant_min, quant_max))
    inside = is_inside(grid_position(input.to(c), s, z), quant_min, quant_max)
    return torch.where(inside, grad, 0.0)  # a select: 0 * inf would be NaN


def fake_quantize_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    segments: Segments,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input, of the scale and of the zero point."""
    c = compute_dtype(input.dtype)
    s, z = expand_qparams(scale, zero_point, segments, c, (quant_min, quant_max))
    x, dy = input.to(c), grad.to(c)
    v = grid_position(x, s, z)
    inside = is_inside(v, quant_min, quant_max)
    slope = torch.where(inside, torch.round(x / s) - x / s, v.clamp(quant_min, quant_max) - z)
    grad_scale = sum_segments(torch.where(v.isnan(), 0.0, dy * slope), segments, scale.shape)
    shape = scale.shape if zero_point is None else zero_point.shape
    grad_zero_point = sum_segments(torch.where(inside, 0.0, -s * dy), segments, shape)
    if zero_point is not None and zero_point.is_floating_point():
        grad_zero_point = grad_zero_point.to(zero_point.dtype)
    return torch.where(inside, grad, 0.0), grad_scale, grad_zero_point


def dequantize_backward(
    grad: Tensor, scale: Tensor, segments: Segments, dtype: torch.dtype | None
) -> Tensor:
    """Return ``dy * s``."""
    s, _ = expand_qparams(scale, None, segments, scale.dtype)
    return round_to(grad.to(s.dtype) * s, dtype or grad.dtype)


# ---- The public functions, of each granularity --------------------------------------------------

(
    quantize_per_tensor,
    quantize_per_channel,
    quantize_per_token,
    quantize_per_group,
) = granularities("quantize_{}", quantize)
(
    dequantize_per_tensor,
    dequantize_per_channel,
    dequantize_per_token,
    dequantize_per_group,
) = granularities("dequantize_{}", dequantize)
(
    fake_quantize_per_tensor,
    fake_quantize_per_channel,
    fake_quantize_per_token,
    fake_quantize_per_group,
) = granularities("fake_quantize_{}", fake_quantize)
(
    quantize_per_tensor_backward,
    quantize_per_channel_backward,
    quantize_per_token_backward,
    quantize_per_group_backward,
) = granularities("quantize_{}_backward", quantize_backward)
(
    fake_quantize_per_tensor_backward,
    fake_quantize_per_channel_backward,
    fake_quantize_per_token_backward,
    fake_quantize_per_group_backward,
) = granularities("fake_quantize_{}_backward", fake_quantize_backward)
(
    fake_quantize_per_tensor_backward_qparams,
    fake_quantize_per_channel_backward_qparams,
    fake_quantize_per_token_backward_qparams,
    fake_quantize_per_group_backward_qparams,
) = granularities("fake_quantize_{}_backward_qparams", fake_quantize_backward_qparams)
(
    dequantize_per_tensor_backward,
    dequantize_per_channel_backward,
    dequantize_per_token_backward,
    dequantize_per_group_backward,
) = granularities("dequantize_{}_backward", dequantize_backward)
