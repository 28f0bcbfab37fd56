# SPDX-License-Identifier: BSD-3-Clause
"""A model with layers that are rotated, and every scheme that rotates them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from baraquant import PerTensor, QuantConfig, TensorConfig

W8 = baraquant.W8A8(rotate=16)
SCHEMES: dict[str, QuantConfig] = {
    "w8a8": W8,
    "w8a8_asymmetric": baraquant.W8A8(False, rotate=64),
    "static": baraquant.W8A8Static(rotate=32),
    "static_mse": baraquant.W8A8Static("mse", False, rotate=8),
    "per_tensor": QuantConfig(TensorConfig(8), TensorConfig(8, PerTensor()), rotate=16),
    "w8a16": baraquant.W8A16(rotate=16),
    "w4a16": baraquant.W4A16(16, rotate=32),
    "w4a8": baraquant.W4A8(None, rotate=16),
    "w4a8_groups": baraquant.W4A8(16, False, rotate=16, group_factors=False),
    "learned": QuantConfig(
        TensorConfig(8, learned=True), TensorConfig(8, PerTensor(), learned=True), rotate=16
    ),
}


class Block(nn.Module):
    """Layers that are rotated in blocks of 32, 64 and 8, and one that cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(32, 64), nn.LayerNorm(64)
        self.down, self.head, self.odd = nn.Linear(64, 40), nn.Linear(40, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.odd(self.head(self.down(self.norm(torch.relu(self.up(x))))))
        return y


def block(seed: int = 0, **options: Any) -> Block:
    torch.manual_seed(seed)
    return Block().to(**options) if options else Block()


def inputs(seed: int = 1) -> Tensor:
    x = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(seed))
    x[..., 5] *= 20
    return x


def quantized(scheme: str) -> Any:
    model = block()
    baraquant.quantize_(model, SCHEMES[scheme], calibration=[inputs()], progress=False)
    return model.eval()
