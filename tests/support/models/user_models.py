# SPDX-License-Identifier: BSD-3-Clause
"""Models as users write them: Llama, GPT, ResNet and others, not what is easy to quantize."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 24


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class GroupedQueryAttention(nn.Module):
    """Four heads of queries, two of keys and values, no bias; rotary positions."""

    def __init__(self, size: int, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, size // heads
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, groups * self.width, bias=False)
        self.v_proj = nn.Linear(size, groups * self.width, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = rotated(self.q_proj(x).view(b, t, self.heads, self.width).transpose(1, 2))
        k = rotated(self.k_proj(x).view(b, t, self.groups, self.width).transpose(1, 2))
        v = self.v_proj(x).view(b, t, self.groups, self.width).transpose(1, 2)
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


def rotated(x: Tensor) -> Tensor:
    t, width = x.shape[-2:]
    steps = torch.arange(width // 2, device=x.device, dtype=torch.float32)
    angle = torch.arange(t, device=x.device)[:, None] * 10000.0 ** (-2 * steps / width)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class SwiGLU(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, hidden, bias=False)
        self.up_proj = nn.Linear(size, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(size), RMSNorm(size)
        self.self_attn, self.mlp = GroupedQueryAttention(size), SwiGLU(size, 2 * size + 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Head and embedding are two tables."""

    def __init__(self, size: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, size)
        self.layers = nn.ModuleList(LlamaLayer(size) for _ in range(layers))
        self.norm = RMSNorm(size)
        self.lm_head = nn.Linear(size, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Conv1D(nn.Module):
    """GPT-2's linear layer, as Hugging Face has it: its weight lies the other way round."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.2)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(
            *x.shape[:-1], self.nf
        )


class GPTBlock(nn.Module):
    def __init__(self, size: int, conv1d: bool) -> None:
        super().__init__()
        linear = (lambda n, k: Conv1D(n, k)) if conv1d else (lambda n, k: nn.Linear(k, n))
        self.ln_1, self.ln_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.c_attn, self.c_proj = linear(3 * size, size), linear(size, size)
        self.mlp = nn.Sequential(linear(4 * size, size), nn.GELU(), linear(size, 4 * size))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, size = x.shape
        q, k, v = (
            y.view(b, t, 2, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.c_proj(y.transpose(1, 2).reshape(b, t, size)))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    """Positions are an embedding; the head's weight is the table of words."""

    def __init__(self, size: int = 16, conv1d: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, size), nn.Embedding(12, size)
        self.h = nn.ModuleList(GPTBlock(size, conv1d) for _ in range(2))
        self.ln_f = nn.LayerNorm(size)
        self.lm_head = nn.Linear(size, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, groups=outputs, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """A stem, two stages (one depthwise convolution in each), a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 12, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Siamese(nn.Module):
    """One tower in two places, one weight in two layers, a layer that runs three times."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(size, size), nn.Tanh())
        self.right = self.left
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)
        self.second.weight = self.first.weight
        self.heads = nn.ModuleDict({"a": nn.Linear(size, 3)})

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x) - self.right(x.flip(-1))
        for _ in range(2):
            y = F.relu(self.first(y))
        return self.heads["a"](self.second(self.left(y)))


class Translator(nn.Module):
    """PyTorch's own Transformer, with masks."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size, padding_idx=0)
        self.transformer = nn.Transformer(size, 2, 2, 2, 24, batch_first=True)
        self.head = nn.Linear(size, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], source.device)
        y = self.transformer(
            self.words(source), self.words(target), tgt_mask=mask.to(self.words(source).dtype),
            src_key_padding_mask=source == 0, tgt_is_causal=True,
        )  # fmt: skip
        return self.head(y)


class LoRALinear(nn.Linear):
    """A linear layer of another class, whose forward does more."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = (
            nn.Linear(inputs, rank, bias=False),
            nn.Linear(rank, outputs, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
