# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are integers times scales, as quantization-aware training elsewhere leaves them."""

import torch
from torch import Tensor

from baraquant import TensorConfig


def lattice(
    shape: tuple[int, int],
    bits: int,
    scale_dtype: torch.dtype,
    dtype: torch.dtype,
    size: int | None = 32,
    symmetric: bool = True,
) -> Tensor:
    """A weight with a scale for groups of this size, or for rows (None).

    Each group has all kinds of integers, and the least that there is.
    """
    config = TensorConfig(bits)
    rows = (-1, shape[1] if size is None else size)
    number = torch.randint(config.quant_min, config.quant_max + 1, shape).reshape(rows)
    number[:, 5] = config.quant_min
    groups = len(number)
    if not symmetric:
        number = number - torch.randint(0, config.quant_max // 4 + 1, (groups, 1))
    scale = (torch.rand(groups, 1) * 0.02 + 1e-3).to(scale_dtype)
    return (number * scale.float()).to(dtype).reshape(shape)
