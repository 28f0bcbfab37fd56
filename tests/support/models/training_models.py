# SPDX-License-Identifier: BSD-3-Clause
"""Small models to train, and every configuration that `prepare_` takes."""

import itertools

import torch
from torch import Tensor, nn

from baraquant import W4A8, W8A8, TensorConfig, W8A8Static
from baraquant.configs import Config
from tests.support import cases
from tests.support.schemes import described

HOW: tuple[dict[str, bool], ...] = ({}, {"dynamic": False}, {"learned": True})


def weight_configs(bits: tuple[int, ...]) -> list[TensorConfig]:
    kinds = {"per_channel": None, "per_tensor": None, "per_group": 4}
    found = [
        TensorConfig(b, kind, symmetric, group_size=kinds[kind], **how)
        for b, kind, symmetric, how in itertools.product(bits, kinds, (True, False), HOW)
    ]
    if 2 in bits:
        found += [TensorConfig(2, k, group_size=size, ternary=True) for k, size in kinds.items()]
    return found


def activation_configs(bits: tuple[int, ...] = (8,)) -> list[TensorConfig | None]:
    """Every kind of activation, and none."""
    found: list[TensorConfig | None] = [None]
    for b, symmetric in itertools.product(bits, (True, False)):
        found += [TensorConfig(b, kind, symmetric) for kind in ("per_token", "per_tensor")]
        found += [TensorConfig(b, "per_group", symmetric, group_size=2)]
        found += [TensorConfig(b, "per_tensor", symmetric, **how) for how in HOW[1:]]
    return found


LEARNED = described("int4 learned, int8 per_tensor asymmetric learned")
STATIC = W8A8Static("moving_average", symmetric=False)
GROUPS = described("int4 per_group(4), int8 per_token asymmetric")
FOUR_BITS = described("int4, int8 per_token")
# One of each way to compute a layer.
SCHEMES: dict[str, Config] = {
    "w8a8": W8A8(),
    "w8a8_asymmetric": W8A8(symmetric=False),
    "w4a8": FOUR_BITS,
    "static": STATIC,
    "learned": LEARNED,
    "groups": GROUPS,
    "learned_factors": W4A8(4, learned=True),
    "weight_only": described("int3 asymmetric"),
}


class Block(nn.Module):
    """A Transformer's block."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class TiedHead(nn.Module):
    """An embedding, whose weight the head may share, and a layer between them."""

    def __init__(
        self, rows: int = 11, size: int = 8, max_norm: float | None = None, *, tied: bool = True
    ) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(rows, size, max_norm=max_norm), nn.Linear(size, size)
        self.head = nn.Linear(size, rows, bias=False)
        if tied:
            self.head.weight = self.table.weight


def train(model: nn.Module, *batches: Tensor, lr: float = 0.05) -> nn.Module:
    """Take a step for each batch, down the squares of the outputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for x in batches:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()
    return model


def linear_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8, bias=False), nn.GELU(), nn.Linear(8, 4)
    )


def block(size: int = 16) -> Block:
    torch.manual_seed(0)
    return Block(size)


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=cases.generator(seed))
