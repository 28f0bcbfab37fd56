# SPDX-License-Identifier: BSD-3-Clause
"""The contract's convolution of integers: whole numbers of each patch, rescaled in NumPy."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.support.oracle import int8_mm as int8_oracle

Sizes = Sequence[int]


def for_each(numbers: int | Sizes, space: int) -> tuple[int, ...]:
    """One number for each dimension of space, or as many as are given where that is not one."""
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return given * space if len(given) == 1 else given


def rows_of(
    numbers: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Tensor:
    """The patches [*batch, C, *out, *kernel] of [*batch, C, *space]; outside of it all are 0."""
    lead, space = numbers.shape[: -len(kernel)], numbers.shape[-len(kernel) :]
    sizes = [
        (n + 2 * p - (k - 1) * d - 1) // s + 1
        for n, p, k, d, s in zip(space, padding, kernel, dilation, stride, strict=True)
    ]
    around = [p for p in reversed(padding) for _ in range(2)]
    padded = torch.nn.functional.pad(numbers, around)
    rows = numbers.new_zeros((*lead, *sizes, *kernel))
    for at in itertools.product(*map(range, kernel)):
        places = (
            slice(k * d, k * d + (size - 1) * s + 1, s)
            for k, d, size, s in zip(at, dilation, sizes, stride, strict=True)
        )
        rows[(..., *at)] = padded[(..., *places)]
    return rows


def int8_conv(
    input: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    stride: int | Sizes = 1,
    padding: int | Sizes = 0,
    dilation: int | Sizes = 1,
    groups: int = 1,
    dtype: torch.dtype | None = None,
) -> np.ndarray:
    """The sums of each group's patches, in int64, rescaled; `weight_sum` only saves a sum."""
    outputs, inputs, *kernel = weight.shape
    space = len(kernel)
    batch = input.dim() - space - 1
    numbers = input.to(torch.int64)
    if input_zero_point is not None:
        integers = torch.iinfo(input.dtype)
        point = input_zero_point.to(torch.float64).clamp(integers.min, integers.max)
        numbers = numbers - point.to(torch.int64).reshape(())
    options = (for_each(option, space) for option in (stride, padding, dilation))
    rows = rows_of(numbers, kernel, *options).movedim(batch, batch + space)
    lead = rows.shape[: batch + space]  # the channels are behind the output
    depth = inputs * math.prod(kernel)
    w = weight.to(torch.int64).reshape(outputs, depth)
    acc = rows.new_zeros(math.prod(lead), outputs)
    if outputs > 0:
        grouped = rows.reshape(len(acc), groups, depth)
        size = outputs // groups
        for g in range(groups):
            part = slice(g * size, (g + 1) * size)
            acc[:, part] = grouped[:, g] @ w[part].T
    y = int8_oracle.rescale_product(
        acc.to(torch.int32), input_scale, weight_scale, bias, dtype=dtype or weight_scale.dtype
    )
    return np.moveaxis(y.reshape(*lead, outputs), -1, batch)
