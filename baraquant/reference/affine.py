# SPDX-License-Identifier: BSD-3-Clause
"""The affine family: the scale is given. ``_ops.py`` makes an op of each rule and granularity."""

import torch
from torch import Tensor

from ._functions import Rule
from .granularity import Grid, sum_segments
from .rules import compute_dtype, dequantized, grid_position, is_inside, round_to


def quantize(input: Tensor, grid: Grid, dtype: torch.dtype = torch.int8) -> Tensor:
    """Return ``q``, as integers or as floats; a NaN ``v`` gives the clamped zero point."""
    s, z = grid.of_elements(compute_dtype(input.dtype))

    def value() -> Tensor:
        v = grid_position(input.to(s.dtype), s, z)
        return torch.where(v.isnan(), z, v).clamp(grid.quant_min, grid.quant_max).to(dtype)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (quantize_backward(dy, input, grid),)

    return Rule.apply(value, gradient, input) if dtype.is_floating_point else value()


def dequantize(input: Tensor, grid: Grid, dtype: torch.dtype | None) -> Tensor:
    """Return ``(q - z) * s``, computed in the dtype of the scale."""
    if isinstance(grid.scale, Tensor):
        c = grid.scale.dtype
    else:
        c = torch.float64 if torch.float64 in (input.dtype, dtype) else torch.float32
    s, z = grid.of_elements(c)

    def value() -> Tensor:
        return round_to(dequantized(input.to(c), s, z), dtype or c)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (round_to(dy.to(c) * s, input.dtype),)

    return Rule.apply(value, gradient, input)


def fake_quantize(input: Tensor, grid: Grid) -> Tensor:
    """Return ``(q - z) * s`` of the ``q`` that quantize finds; a NaN ``v`` stays NaN."""
    c = compute_dtype(input.dtype)
    s, z = grid.of_elements(c)

    def value() -> Tensor:
        q = grid_position(input.to(c), s, z).clamp(grid.quant_min, grid.quant_max)
        return dequantized(q, s, z).to(input.dtype)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        if not any(needed[1:]):
            return fake_quantize_backward(dy, input, grid), None, None
        gradients = fake_quantize_backward_qparams(dy, input, grid)
        return tuple(g if n else None for g, n in zip(gradients, needed, strict=True))

    return Rule.apply(value, gradient, input, grid.scale, grid.zero_point)


def quantize_backward(grad: Tensor, input: Tensor, grid: Grid) -> Tensor:
    """Return ``dy / s`` where the mask is true, else 0."""
    s, z = grid.of_elements(compute_dtype(input.dtype))
    v = grid_position(input.to(s.dtype), s, z)
    inside = is_inside(v, grid.quant_min, grid.quant_max)
    return torch.where(inside, grad.to(s.dtype) / s, 0.0).to(input.dtype)


def fake_quantize_backward(grad: Tensor, input: Tensor, grid: Grid) -> Tensor:
    """Return ``dy`` where the mask is true, else 0."""
    c = compute_dtype(input.dtype)
    v = grid_position(input.to(c), *grid.of_elements(c))
    inside = is_inside(v, grid.quant_min, grid.quant_max)
    return torch.where(inside, grad, 0.0)  # a select: 0 * inf would be NaN


def fake_quantize_backward_qparams(
    grad: Tensor, input: Tensor, grid: Grid
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input, of the scale and of the zero point."""
    scale, zero_point, segments = grid.scale, grid.zero_point, grid.segments
    assert isinstance(scale, Tensor)
    c = compute_dtype(input.dtype)
    s, z = grid.of_elements(c)
    x, dy = input.to(c), grad.to(c)
    v = grid_position(x, s, z)
    inside = is_inside(v, grid.quant_min, grid.quant_max)
    clamped = v.clamp(grid.quant_min, grid.quant_max)
    slope = torch.where(inside, torch.round(x / s) - x / s, clamped - z)
    grad_scale = sum_segments(torch.where(v.isnan(), 0.0, dy * slope), segments, scale.shape)
    shape = zero_point.shape if isinstance(zero_point, Tensor) else scale.shape
    grad_zero_point = sum_segments(torch.where(inside, 0.0, -s * dy), segments, shape)
    if isinstance(zero_point, Tensor) and zero_point.is_floating_point():
        grad_zero_point = grad_zero_point.to(zero_point.dtype)
    return torch.where(inside, grad, 0.0), grad_scale, grad_zero_point


def dequantize_backward(grad: Tensor, grid: Grid, dtype: torch.dtype | None) -> Tensor:
    """Return ``dy * s``."""
    assert isinstance(grid.scale, Tensor)
    s, _ = grid.of_elements(grid.scale.dtype)
    return round_to(grad.to(s.dtype) * s, dtype or grad.dtype)
