# SPDX-License-Identifier: BSD-3-Clause
"""The product of a floating input and a weight of integers."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import affine
from ._functions import like_the_op
from .granularity import Grid, segments
from .int4 import expand_int4


@like_the_op
def weight_only_linear(a: Any) -> Tensor:
    """Return PyTorch's product with the dequantized weight; the op's last bits may differ."""
    weight, columns = a.weight, a.input.shape[-1]
    if weight.dtype == torch.uint8:
        weight = expand_int4(weight, torch.ones_like(weight[:, :1]), max(2 * columns, 2), columns)
    granularity, axis = ("per_channel", 0) if a.group_size is None else ("per_group", 1)
    parts = segments(weight.shape, granularity, axis, a.group_size or 1, weight.device)
    grid = Grid(parts, a.weight_scale.detach(), a.weight_zero_point)
    return F.linear(a.input, affine.dequantize(weight, grid, a.input.dtype), a.bias)
