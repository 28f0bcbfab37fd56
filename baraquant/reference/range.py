# SPDX-License-Identifier: BSD-3-Clause
"""The range family: the scale comes from the data.

``_ops.py`` makes an op of each rule and granularity.
"""

from typing import Any

import torch
from torch import Tensor

from . import affine
from ._functions import Rule, like_the_op
from .granularity import Grid, Segments, maximum_of_segments, minimum_of_segments, segments
from .rules import compute_dtype

# ---- From a range of the data to a scale and a zero point ---------------------------------------


def usable_scale(scale: Tensor, only_zeros: Tensor) -> Tensor:
    """Return 1 for a segment of zeros, otherwise at least the smallest normal number."""
    scale = scale.clamp(min=torch.finfo(scale.dtype).smallest_normal)  # a NaN stays
    return torch.where(only_zeros, 1.0, scale)


def qparams_of_range(
    lowest: Tensor, highest: Tensor, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return scale and zero point for data from ``lowest`` to ``highest``, of dtype ``C``."""
    xmin, xmax = lowest.clamp(max=0), highest.clamp(min=0)
    only_zeros = (xmin == 0) & (xmax == 0)
    # The divisors are tensors: with a number, a GPU multiplies by the reciprocal, which gives other
    # bits.
    if symmetric:
        middle = (quant_min + quant_max + 1) // 2
        steps = xmax.new_tensor(quant_max - middle)
        scale = usable_scale(torch.maximum(-xmin, xmax) / steps, only_zeros)
        return scale, torch.full_like(scale, middle, dtype=torch.int32)
    # The halves prevent an overflow of the difference, and change no other bit.
    half_steps = xmax.new_tensor(0.5 * (quant_max - quant_min))
    scale = usable_scale((0.5 * xmax - 0.5 * xmin) / half_steps, only_zeros)
    z = (quant_min - torch.round(xmin / scale)).clamp(quant_min, quant_max)
    return scale, torch.where(z.isnan(), quant_min, z).to(torch.int32)


def is_known(low: Tensor, high: Tensor) -> Tensor:
    """Return whether these are the ends of a range: finite, and in ascending order."""
    return low.isfinite() & high.isfinite() & (low <= high)


def average(running: Tensor, new: Tensor, c: Tensor) -> Tensor:
    """Return ``running``, moved by the share ``c`` towards ``new``."""
    step = new - running
    return torch.where(step.isfinite(), running + c * step, (1 - c) * running + c * new)


def running_range(
    running: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], averaging_constant: float | None
) -> tuple[Tensor, Tensor]:
    """Return the minimum and the maximum after new ones, all of dtype ``C``.

    New ones that are not finite are ignored. Running ones that are not known are replaced.
    """
    (running_min, running_max), (new_min, new_max) = running, new
    c = None if averaging_constant is None else new_min.new_tensor(averaging_constant)
    if c is None:
        low = torch.where(new_min >= running_min, running_min, new_min)
        high = torch.where(new_max <= running_max, running_max, new_max)
    elif c == 1:  # exactly the new range, which the sum below would round
        low, high = new_min, new_max
    else:
        low, high = average(running_min, new_min, c), average(running_max, new_max, c)
    known, taken = is_known(*running), is_known(*new)
    low, high = torch.where(known, low, new_min), torch.where(known, high, new_max)
    return torch.where(taken, low, running_min), torch.where(taken, high, running_max)


# ---- The ops, and the rules of those of every granularity ----------------------------------------


def choose_qparams(
    input: Tensor, segments: Segments, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return a scale and a zero point for each segment; constants to autograd."""
    x = input.detach().to(compute_dtype(input.dtype))
    lowest, highest = minimum_of_segments(x, segments), maximum_of_segments(x, segments)
    return qparams_of_range(lowest, highest, quant_min, quant_max, symmetric)


def dynamic_range_quantize(
    input: Tensor,
    segments: Segments,
    quant_min: int,
    quant_max: int,
    symmetric: bool,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the integers, and the scale and the zero point that were used."""
    scale, zero_point = choose_qparams(input, segments, quant_min, quant_max, symmetric)
    grid = Grid(segments, scale, zero_point, quant_min, quant_max)
    return affine.quantize(input.detach(), grid, dtype), scale, zero_point


def dynamic_fake_quantize(
    input: Tensor, segments: Segments, quant_min: int, quant_max: int, symmetric: bool
) -> Tensor:
    """Return the rounded numbers. A symmetric scale clips nothing: its gradient is the identity."""
    scale, zero_point = choose_qparams(input, segments, quant_min, quant_max, symmetric)
    grid = Grid(segments, scale, zero_point, quant_min, quant_max)
    if not symmetric:
        return affine.fake_quantize(input, grid)

    def value() -> Tensor:
        return affine.fake_quantize(input.detach(), grid)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (dy,)

    return Rule.apply(value, gradient, input)


def _observe(a: Any, parts: Segments) -> None:
    if a.input.numel() == 0:
        return
    x = a.input.detach().to(a.min_val.dtype)
    new = minimum_of_segments(x, parts), maximum_of_segments(x, parts)
    running = a.min_val.reshape(parts.shape), a.max_val.reshape(parts.shape)
    low, high = running_range(running, new, a.averaging_constant)
    a.min_val.copy_(low.reshape(a.min_val.shape))
    a.max_val.copy_(high.reshape(a.max_val.shape))
    if a.skipped_batches is not None:
        a.skipped_batches.add_((~is_known(*new)).any())


@like_the_op
def observe_min_max_(a: Any) -> None:
    """Update the running range in place; an empty input changes nothing."""
    _observe(a, segments(a.input.shape, "per_channel", a.axis, device=a.input.device))


@like_the_op
def observe_fake_quantize(a: Any) -> Tensor:
    """Update range, scale and zero point in place and fake-quantize, each where it is enabled."""
    parts = segments(a.input.shape, "per_channel", a.axis, device=a.input.device)
    if a.observer_enabled and a.input.numel() > 0:
        _observe(a, parts)
        chosen = qparams_of_range(a.min_val, a.max_val, a.quant_min, a.quant_max, a.symmetric)
        known = is_known(a.min_val, a.max_val)
        for own, new in zip((a.scale, a.zero_point), chosen, strict=True):
            own.copy_(torch.where(known, new, own).reshape(own.shape))  # [] may stand for [1]
    if not a.fake_quant_enabled:
        return a.input.clone()
    # These are copies: the next call may change the originals before the backward pass.
    copies = a.scale.clone(), a.zero_point.clone()
    return affine.fake_quantize(a.input, Grid(parts, *copies, a.quant_min, a.quant_max))
