# SPDX-License-Identifier: BSD-3-Clause
"""The affine rules, one function for each; all on tensors of the compute type ``C``."""

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return ``C``: the dtype that values of ``dtype`` are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert ``x`` to ``dtype`` with one rounding, half to even.

    ``Tensor.to`` takes float64 to the 16-bit types through float32, which rounds twice. Rounding
    that first step to odd keeps the sticky bit, so that the second step decides correctly.
    """
    if x.dtype != torch.float64 or dtype not in (torch.float16, torch.bfloat16):
        return x.to(dtype)
    nearest = x.to(torch.float32)
    inexact = nearest.to(torch.float64).ne(x) & ~x.isnan()
    away = nearest.to(torch.float64).abs() > x.abs()
    truncated = torch.where(away, nearest.nextafter(torch.zeros_like(nearest)), nearest)
    odd = truncated.view(torch.int32).bitwise_or(1).view(torch.float32)
    return torch.where(inexact, odd, nearest).to(dtype)


def grid_position(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """Return ``v = rint(x / s) + z``, not yet clamped."""
    return torch.round(x / s) + z


def dequantized(q: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """Return ``(q - z) * s``."""
    return (q - z) * s


def is_inside(v: Tensor, quant_min: int, quant_max: int) -> Tensor:
    """Return the mask of the straight-through estimator: inclusive, false for NaN."""
    return (v >= quant_min) & (v <= quant_max)
