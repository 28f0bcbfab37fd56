# SPDX-License-Identifier: BSD-3-Clause
"""The range family: the scale comes from the data."""

import torch
from torch import Tensor

from . import affine
from ._functions import Rule, function, granularities
from .granularity import Segments, maximum_of_segments, minimum_of_segments
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


# ---- The ops, each for given segments -----------------------------------------------------------


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
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the integers, and the scale and the zero point that were used."""
    scale, zero_point = choose_qparams(input, segments, quant_min, quant_max, symmetric)
    q = affine.quantize(input.detach(), scale, zero_point, segments, quant_min, quant_max, dtype)
    return q, scale, zero_point


def dynamic_fake_quantize(
    input: Tensor, segments: Segments, quant_min: int, quant_max: int, symmetric: bool
) -> Tensor:
    """Return the rounded numbers. A symmetric scale clips nothing: its gradient is the identity."""
    scale, zero_point = choose_qparams(input, segments, quant_min, quant_max, symmetric)
    arguments = (scale, zero_point, segments, quant_min, quant_max)
    if not symmetric:
        return affine.fake_quantize(input, *arguments)

    def value() -> Tensor:
        return affine.fake_quantize(input.detach(), *arguments)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (dy,)

    return Rule.apply(value, gradient, input)


def observe_min_max(
    input: Tensor,
    min_val: Tensor,
    max_val: Tensor,
    segments: Segments,
    averaging_constant: float | None,
    skipped_batches: Tensor | None,
) -> None:
    """Update the running range in place; an empty input changes nothing."""
    if input.numel() == 0:
        return
    x = input.detach().to(min_val.dtype)
    new = minimum_of_segments(x, segments), maximum_of_segments(x, segments)
    running = min_val.reshape(segments.shape), max_val.reshape(segments.shape)
    low, high = running_range(running, new, averaging_constant)
    min_val.copy_(low.reshape(min_val.shape))
    max_val.copy_(high.reshape(max_val.shape))
    if skipped_batches is not None:
        skipped_batches.add_((~is_known(*new)).any())


def observe_and_fake_quantize(
    input: Tensor,
    min_val: Tensor,
    max_val: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    observer_enabled: Tensor,
    fake_quant_enabled: Tensor,
    segments: Segments,
    quant_min: int,
    quant_max: int,
    symmetric: bool,
    averaging_constant: float | None,
    skipped_batches: Tensor | None,
) -> Tensor:
    """Update range, scale and zero point in place and fake-quantize, each where it is enabled."""
    if observer_enabled and input.numel() > 0:
        observe_min_max(input, min_val, max_val, segments, averaging_constant, skipped_batches)
        chosen = qparams_of_range(min_val, max_val, quant_min, quant_max, symmetric)
        known = is_known(min_val, max_val)
        scale.copy_(torch.where(known, chosen[0], scale))
        zero_point.copy_(torch.where(known, chosen[1], zero_point))
    if not fake_quant_enabled:
        return input.clone()
    # These are copies: the next call may change the originals before the backward pass.
    return affine.fake_quantize(
        input, scale.clone(), zero_point.clone(), segments, quant_min, quant_max
    )


# ---- The public functions, of each granularity --------------------------------------------------

(
    choose_qparams_per_tensor,
    choose_qparams_per_channel,
    choose_qparams_per_token,
    choose_qparams_per_group,
) = granularities("choose_qparams_{}", choose_qparams)
(
    dynamic_range_quantize_per_tensor,
    dynamic_range_quantize_per_channel,
    dynamic_range_quantize_per_token,
    dynamic_range_quantize_per_group,
) = granularities("dynamic_range_quantize_{}", dynamic_range_quantize)
(
    dynamic_fake_quantize_per_tensor,
    dynamic_fake_quantize_per_channel,
    dynamic_fake_quantize_per_token,
    dynamic_fake_quantize_per_group,
) = granularities("dynamic_fake_quantize_{}", dynamic_fake_quantize)
# These are per channel, or per tensor if axis is None.
observe_min_max_ = function("observe_min_max_", "per_channel", observe_min_max)
observe_fake_quantize = function("observe_fake_quantize", "per_channel", observe_and_fake_quantize)
