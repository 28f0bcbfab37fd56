# SPDX-License-Identifier: BSD-3-Clause
"""The product of a floating input and a weight of integers."""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import affine
from ._functions import like_the_op
from .int4 import expand_int4


@like_the_op
def weight_only_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    weight_zero_point: Tensor | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Return PyTorch's product with the dequantized weight; the op's last bits may differ."""
    if weight.dtype == torch.uint8:
        columns = input.shape[-1]
        weight = expand_int4(weight, torch.ones_like(weight[:, :1]), max(2 * columns, 2), columns)
    scale, zero_point = weight_scale.detach(), weight_zero_point
    if group_size is None:
        dequantized = affine.dequantize_per_channel(weight, scale, zero_point, 0, dtype=input.dtype)
    else:
        dequantized = affine.dequantize_per_group(
            weight, scale, zero_point, group_size, 1, dtype=input.dtype
        )
    return F.linear(input, dequantized, bias)
