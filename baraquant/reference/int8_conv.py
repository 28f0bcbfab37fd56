# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers: exact sums, rescaled."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ._functions import Rule, like_the_op
from .products import among_integers, rescaled


@like_the_op
def int8_conv(a: Any) -> Tensor:
    """Return the rescaled convolution; ``weight_sum`` only saves a sum."""
    input, weight, bias = a.input, a.weight, a.bias
    space = weight.dim() - 2
    channel = input.dim() - space - 1
    steps, sides, spread = (_for_each(each, space) for each in (a.stride, a.padding, a.dilation))

    def value() -> Tensor:
        z = torch.zeros((), dtype=torch.int64, device=input.device)
        if a.input_zero_point is not None:
            z = among_integers(a.input_zero_point, input.dtype).long().reshape(())
        outside = z.to(input.dtype)
        sums = _sums(input, outside, weight, steps, sides, spread, a.groups).to(torch.int64)
        acc = sums.movedim(channel, -1) - z * weight.flatten(1).sum(1, dtype=torch.int64)
        scale = a.input_scale.reshape(())
        to = a.dtype or a.weight_scale.dtype
        y = rescaled(acc.to(torch.int32), scale, a.weight_scale, bias, to)
        return y.movedim(-1, channel).contiguous(memory_format=_format_of(input, weight))

    def gradient(dy: Tensor, needed: bool) -> tuple[Tensor]:
        return (dy.movedim(channel, -1).flatten(0, -2).sum(0, dtype=bias.dtype),)

    return Rule.apply(value, gradient, bias)


def _for_each(option: int | Sequence[int], space: int) -> list[int]:
    numbers = [option] if isinstance(option, int) else list(option)
    return numbers * space if len(numbers) == 1 else numbers


def _sums(
    input: Tensor, outside: Tensor, weight: Tensor, stride: list[int], padding: list[int],
    dilation: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """Return the sums of ``q * w`` as whole numbers in float64, which holds every one of them.

    Places outside of the input hold ``outside``.
    """
    space = weight.dim() - 2
    is_batched = input.dim() == weight.dim()
    x, edge = input.to(torch.float64), outside.to(torch.float64)
    x = x if is_batched else x.unsqueeze(0)
    x = F.pad(x - edge, [size for size in reversed(padding) for _ in range(2)]) + edge
    sums: Tensor | None = None
    for place in torch.cartesian_prod(*(torch.arange(k) for k in weight.shape[2:])).reshape(
        -1, space
    ):
        values, w = x, weight.to(torch.float64)
        for d in range(space):
            start, spread = int(place[d]) * dilation[d], (weight.shape[d + 2] - 1) * dilation[d]
            stop = start + x.shape[d + 2] - spread
            values = values.movedim(d + 2, 0)[start : stop : stride[d]].movedim(0, d + 2)
            w = w.select(2, int(place[d]))
        grouped = values.unflatten(1, (groups, weight.shape[1]))  # [N, groups, C, *out]
        w = w.unflatten(0, (groups, weight.shape[0] // groups))  # [groups, OC, C]
        part = torch.einsum("ngc...,goc->ngo...", grouped, w).flatten(1, 2)
        sums = part if sums is None else sums + part
    assert sums is not None
    return sums if is_batched else sums.squeeze(0)


def _format_of(input: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the memory format of the result: that of a copy of the input."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(input.dim()) if input.dim() == weight.dim() else None
    copy = torch.empty_like(input, device="meta")
    if wanted is None or not copy.is_contiguous(memory_format=wanted) or copy.is_contiguous():
        return torch.contiguous_format
    return wanted
