# SPDX-License-Identifier: BSD-3-Clause
"""Small models whose activations have outliers, as real ones do: what `quantize_` gets."""

import torch
from torch import nn
from torch.nn import functional as F

from baraquant import W8A8, SmoothQuant, W8A8Static

CALIBRATED = [W8A8Static(), W8A8Static("moving_average")]
CALIBRATED += [W8A8Static("percentile", symmetric=False), W8A8Static("mse")]
CALIBRATED += [SmoothQuant(), SmoothQuant(0.6, W8A8Static(symmetric=False))]
SCHEMES = [W8A8(), W8A8(symmetric=False), *CALIBRATED]


class OwnRMSNorm(nn.Module):
    """As large language models write it."""

    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.offset = offset

    def forward(self, x):
        reciprocal = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * reciprocal * (self.offset + self.weight)


class OffsetRMSNorm(OwnRMSNorm):
    """Its factor is one more than its weight: nothing can be folded into that."""

    def __init__(self, size: int) -> None:
        super().__init__(size, offset=1.0)


class Block(nn.Module):
    """A residual block of a Transformer, its norm before or behind the layers."""

    def __init__(self, size: int = 16, norm=nn.LayerNorm, pre_norm: bool = True) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.norm1, self.norm2 = norm(size), norm(size)
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
        self.out = nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        with torch.no_grad():
            self.norm1.weight[3] = self.norm2.weight[1] = 30.0

    def forward(self, x):
        y = self.norm1(x) if self.pre_norm else x
        # The limits, as models of float16 have them, let no factor through.
        x = x + self.out(self.query(y).clamp(-1e4, 1e4) * torch.sigmoid(self.key(y)))
        x = x if self.pre_norm else self.norm1(x)
        y = self.norm2(x) if self.pre_norm else x
        x = x + self.down(F.dropout(F.relu(self.up(y)), 0.1, self.training))
        x = x if self.pre_norm else self.norm2(x)
        return x  # noqa: RET504 - what a branch returns itself might be read


class Tied(nn.Module):
    """A language model whose head is its embedding, and whose two blocks are one."""

    def __init__(self, vocabulary: int = 20, size: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size, padding_idx=0)
        self.first = Block(size)
        self.second = self.first
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.second(self.first(self.embedding(tokens)))))


def seeded(build, *args, **kwargs):
    """Return ``build(...)`` in evaluation, the same in every run."""
    torch.manual_seed(0)
    return build(*args, **kwargs).eval()


def batches(size: int = 16, count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 5, size, generator=generator) for _ in range(count)]


def tokens(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 20, (2, 5), generator=generator) for _ in range(count)]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference by that of what was expected."""
    difference = (got.double() - expected.double()).norm()
    return float(difference.detach() / expected.detach().double().norm())


def unchanged(model, original):
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]
    states = model.state_dict(), original.state_dict()
    for (name, value), expected in zip(states[0].items(), states[1].values(), strict=True):
        assert torch.equal(value, expected), name
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert [m.training for m in model.modules()] == [m.training for m in original.modules()]
    return True
