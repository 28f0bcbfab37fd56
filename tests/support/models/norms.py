# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers, and norms with random parameters, that do not depend on the default device."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Norm = TypeVar("Norm", bound=nn.Module)


def numbers(
    *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device="cpu") * 3).to(device, dtype)


def random_norm(norm: Norm) -> Norm:
    for seed, parameter in enumerate(norm.parameters()):
        parameter.data.copy_(numbers(*parameter.shape, seed=seed + 5))
    return norm
