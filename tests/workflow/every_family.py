# SPDX-License-Identifier: BSD-3-Clause
"""A model with a layer of each family, and what it reads."""

import torch
from torch import Tensor, nn

TOKENS = torch.randint(0, 11, (6, 7), generator=torch.Generator().manual_seed(0))


class EveryFamily(nn.Module):
    """Dimensions that groups of 4 and 8 divide."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16, padding_idx=0)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose1d(16, 16, 3, padding=1, bias=False)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.recurrent = nn.GRU(16, 8, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens).transpose(1, 2)
        x = self.up(torch.relu(self.conv(x))).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(self.recurrent(x)[0]))


LINEAR = {*(f"attention.{part}_proj" for part in ("q", "k", "v", "out")), "head"}
PARTS = LINEAR | {"table", "conv", "up", "recurrent.cells.l0.ih", "recurrent.cells.l0.hh"}
