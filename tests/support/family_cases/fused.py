# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the fused family: lengths of rows around every edge of a kernel, and hard values."""

import math

import torch
from torch import Tensor

from tests.support import cases

# Around a pack, a warp's team, a block's, the lanes of a sum, and what registers hold.
LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 255, 257, 500, 512, 513)
LONG_LENGTHS = (1000, 2048, 2880, 4095, 4096, 4097, 5120, 8192, 12288, 14336, 16384, 20480)
LONGEST_LENGTHS = (32768, 32769, 40000, 65536)
ACTIVATION_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CHARACTERS = ("plain", "large", "tiny", "constant", "shifted", "zeros", "spiked")


def rows(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, character: str = "") -> Tensor:
    """Numbers of a character, which follows from the seed if it is not given."""
    character = character or CHARACTERS[seed % len(CHARACTERS)]
    x = torch.randn(shape, generator=cases.generator(seed), dtype=torch.float64)
    largest = torch.finfo(dtype).max
    if character == "large":
        x = x * (largest**0.4)
    elif character == "tiny":
        x = x * torch.finfo(dtype).smallest_normal * 4
    elif character == "constant":
        x = torch.full_like(x, 1.7)
    elif character == "shifted":
        x = x + 300
    elif character == "zeros":
        x = x.copysign(torch.tensor(1.0)) * 0 * (-1) ** seed
    elif character == "spiked" and x.numel():
        x.view(-1)[:: max(1, shape[-1] // 2)] *= 100
    return x.to(dtype)


def hostile(dtype: torch.dtype) -> Tensor:
    """Rows [n, 40], each with numbers that nobody should pass."""
    largest, small = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    special = (math.nan, math.inf, -math.inf, largest, -largest, small, -small / 4, 0.0, -0.0)
    x = rows((len(special) + 2, 40), dtype, character="plain")
    for i, value in enumerate(special):
        x[i, 3 * i] = value
    x[-2] = torch.tensor([special[i % len(special)] for i in range(40)]).to(dtype)
    x[-1] = largest
    return x
