# SPDX-License-Identifier: BSD-3-Clause
"""Weights, quantizers and layers with learned factors, for the tests of these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import PerGroup, QuantConfig, TensorConfig
from baraquant.nn import FakeQuantizedLinear, LearnedFakeQuantizeInt4
from tests.support import cases

N, K, SIZE = 12, 48, 8
by_scheme = pytest.mark.parametrize("symmetric", (True, False))
by_dtype = pytest.mark.parametrize(
    "dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64)
)


def weight(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Groups of different sizes, so that every factor occurs."""
    generator = cases.generator(seed)
    sizes = torch.exp2(-4 * torch.rand(N, K // SIZE, generator=generator))
    values = torch.randn(N, K, generator=generator) * sizes.repeat_interleave(SIZE, dim=1)
    return values.to(dtype)


def quantizer_of(values: Tensor, symmetric: bool = True, **options: Any) -> LearnedFakeQuantizeInt4:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    made = LearnedFakeQuantizeInt4(
        SIZE,
        shape=(len(values), values.shape[1] // SIZE),
        symmetric=symmetric,
        dtype=dtype,
        device=values.device,
        **options,
    )
    made.initialize(values)
    return made


def moved(made: LearnedFakeQuantizeInt4, seed: int = 3) -> LearnedFakeQuantizeInt4:
    """The quantizer as training could leave it: some factors clamped, weights too, odd zeros."""
    generator = cases.generator(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if name == "zero_point":
                parameter.add_(3 * noise)
            else:
                parameter.mul_(torch.exp2(0.8 * noise) * (0.6 if name == "scale" else 1))
    return made


def layer_of(
    config: QuantConfig, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> FakeQuantizedLinear:
    torch.manual_seed(0)
    return FakeQuantizedLinear(K, N, config=config, dtype=dtype, device=device).train()


def inputs(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(5, K, generator=cases.generator(2)).to(device, dtype)


def static(symmetric: bool) -> QuantConfig:
    return QuantConfig(
        TensorConfig(4, PerGroup(SIZE), symmetric, learned=True, group_factors=True),
        TensorConfig(8, "per_tensor", symmetric, learned=True),
    )
