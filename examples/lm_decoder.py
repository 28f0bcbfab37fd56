# SPDX-License-Identifier: BSD-3-Clause
"""A decoder as large language models have it, in plain PyTorch: nothing here knows of quantization.

RMSNorm before each part, rotary positions, causal attention, and a feed-forward part with SwiGLU or
GELU. The linear layers within the blocks hold nearly all parameters. To write text, it keeps the
keys and values of earlier tokens in a ``Cache``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_text import TOKENS

MLPS = ("swiglu", "gelu")
Past = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Size:
    """A model and what it is trained with.

    Attributes:
        width: Of the residual stream.
        layers: Blocks.
        heads: Of the attention.
        context: Tokens that a prediction can look back on.
        batch: Windows of so many tokens in a step.
        steps: Of training from scratch.
        learning_rate: Its maximum. With two or four times as much the small model learns faster,
            but in so few steps float and W8A8 end up to 0.8 % apart, in either direction. That is
            noise, and too much to compare schemes.
        windows: Of the validation text.
        group: Neighbours in a row of a weight that share a scale, in schemes with groups.
    """

    width: int
    layers: int
    heads: int
    context: int
    batch: int
    steps: int
    learning_rate: float
    windows: int
    group: int


SIZES = {
    "tiny": Size(32, 1, 2, 32, 4, 20, 3e-3, 4, 8),  # 29 thousand parameters: a test
    "cpu": Size(128, 4, 4, 128, 8, 240, 1e-3, 128, 32),  # 0.9 million
    "gpu": Size(512, 8, 8, 512, 32, 300, 1e-3, 256, 128),  # 26 million
}


class Cache:
    """The keys and values of earlier tokens, with room for a whole context.

    Shapes and addresses stay the same while it fills, so that a CUDA graph of one step serves for
    all positions.

    Args:
        size: Of the model.
        batch: Rows.
        device: Where it lies.
        dtype: Of the keys and values, which is that of the model's stream.
    """

    def __init__(self, size: Size, batch: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (size.layers, 2, batch, size.heads, size.context, size.width // size.heads)
        self.stored = torch.zeros(shape, dtype=dtype, device=device)
        self.length = torch.zeros(1, dtype=torch.int64, device=device)  # of the text so far

    def positions(self, time: int) -> Tensor:
        """Return the places of the next tokens, int64 ``[time]``."""
        return self.length + torch.arange(time, device=self.length.device)

    def add(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of new tokens; return those of the whole context."""
        keys, values = self.stored[layer]
        return keys.index_copy_(2, positions, k), values.index_copy_(2, positions, v)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None = None) -> Tensor:
        """Return ``[batch, time, width]`` of the same; ``cos`` and ``sin`` are ``[time, half]``.

        ``past`` takes the new keys and values, and returns all of them with a mask of those that
        each token may see.
        """
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [batch, time, 3, heads, head width]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v, seen = past(k, v)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of features by an angle that grows with the position (Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(x.dtype)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020), or GELU with about as many parameters."""

    def __init__(self, width: int, mlp: str) -> None:
        super().__init__()
        self.is_gated = mlp == "swiglu"
        hidden = 11 * width // 4 if self.is_gated else 4 * width
        self.up = nn.Linear(width, 2 * hidden if self.is_gated else hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, time, width]`` of the same."""
        if not self.is_gated:
            return self.down(F.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """Attention, then the feed-forward part, each added to the residual stream."""

    def __init__(self, size: Size, mlp: str) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size.width, size.heads)
        self.mlp_norm = nn.RMSNorm(size.width)
        self.mlp = FeedForward(size.width, mlp)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None = None) -> Tensor:
        """Return the stream ``[batch, time, width]`` after this block."""
        x = x + self.attention(self.attention_norm(x), cos, sin, past)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Predicts the next byte.

    Args:
        size: Of the model.
        mlp: ``swiglu`` or ``gelu``.
    """

    def __init__(self, size: Size, mlp: str = "swiglu") -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(TOKENS, size.width)
        self.blocks = nn.ModuleList(Block(size, mlp) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, TOKENS, bias=False)
        half = size.width // size.heads // 2
        angles = torch.outer(
            torch.arange(size.context), 10_000.0 ** (-torch.arange(half) / half)
        )  # [context, half]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What writes to the stream starts smaller, as in GPT-2: many blocks are added.
                is_last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 * ((2 * size.layers) ** -0.5 if is_last else 1))

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits of each next token, ``[batch, time, 256]``, for int64 tokens.

        With a cache they go on where its text ends; their keys and values are added to it.
        """
        x = self.embedding(tokens)
        time = tokens.shape[1]
        if cache is None:
            for block in self.blocks:
                x = block(x, self.cos[:time], self.sin[:time])
            return self.head(self.norm(x))
        positions = cache.positions(time)
        seen = positions[:, None] >= torch.arange(self.size.context, device=x.device)
        cos, sin = self.cos[positions], self.sin[positions]
        for layer, block in enumerate(self.blocks):

            def past(k: Tensor, v: Tensor, layer: int = layer) -> tuple[Tensor, Tensor, Tensor]:
                return *cache.add(layer, positions, k, v), seen

            x = block(x, cos, sin, past)
        cache.length += time
        return self.head(self.norm(x))
