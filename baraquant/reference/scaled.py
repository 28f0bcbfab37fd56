# SPDX-License-Identifier: BSD-3-Clause
"""The scaled family: integers of numbers that were multiplied by a factor, and random bits."""

from typing import Any

import torch
from torch import Tensor

from ._functions import like_the_op
from .granularity import tokens
from .range import choose_qparams, dynamic_range_quantize
from .rules import compute_dtype

# ---- Random bits --------------------------------------------------------------------------------

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of ``a * b``, of 32 bits each; in int64, without overflow.

    ``a * (b % 2^16)`` and ``a * (b >> 16)`` are below 2^48.
    """
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def philox(seed: Tensor, counter: Tensor, number: Tensor) -> list[Tensor]:
    """Return the four words of Philox4x32-10 for each number: int64 below 2^32.

    The key is ``seed``; ``counter`` are the low 64 bits of the counter and ``number`` the high.
    """
    keys = [seed & WORD, (seed >> 32) & WORD]
    words = [counter & WORD, (counter >> 32) & WORD, number & WORD, (number >> 32) & WORD]
    c = [word.expand_as(number) for word in words]
    for _ in range(10):
        high0, low0 = _product(MULTIPLIERS[0], c[0])
        high1, low1 = _product(MULTIPLIERS[1], c[2])
        c = [high1 ^ c[1] ^ keys[0], low1, high0 ^ c[3] ^ keys[1], low0]
        keys = [(key + weyl) & WORD for key, weyl in zip(keys, WEYL, strict=True)]
    return c


def uniform_numbers(random: Tensor, element: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``u`` in (0, 1) for elements of these numbers: ``(k + 1/2) / 2^16``."""
    words = torch.stack(philox(random[0], random[1], element // 8), -1)
    half = element % 8
    word = words.gather(-1, (half // 2).unsqueeze(-1)).squeeze(-1)
    bits = word >> (half % 2 * 16) & 0xFFFF
    return (bits.to(dtype) + 0.5) / 65536


# ---- Rows of numbers ----------------------------------------------------------------------------


def quantized_rows(v: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return int8 and a scale ``[..., 1]`` for each row of numbers of the compute type."""
    if u is None:
        q, scale, _ = dynamic_range_quantize(v, tokens(v), -128, 127, symmetric=True)
        return q, scale
    scale, _ = choose_qparams(v, tokens(v), -128, 127, symmetric=True)
    position = torch.floor(v / scale + u).clamp(-128, 127)
    return torch.where(position.isnan(), 0, position).to(torch.int8), scale


def numbers(rows: Tensor, random: Tensor | None) -> Tensor | None:
    """Return ``u`` for each element of a matrix."""
    if random is None:
        return None
    element = torch.arange(rows.numel(), device=rows.device).reshape(rows.shape)
    return uniform_numbers(random, element, compute_dtype(rows.dtype))


# ---- The ops ------------------------------------------------------------------------------------


@like_the_op
def scaled_quantize_per_token(a: Any) -> tuple[Tensor, Tensor]:
    """Return the integers and the scales of the rows of ``C(input) * factor``."""
    x = a.input.detach()
    return quantized_rows(x.to(a.factor.dtype) * a.factor, numbers(x, a.random))


@like_the_op
def scaled_quantize_transposed(a: Any) -> tuple[Tensor, Tensor]:
    """Return the integers and the scales of the rows of the transpose."""
    x = a.input.detach().reshape(a.factor.numel(), a.input.shape[-1])
    u = numbers(x, a.random)
    v = x.to(a.factor.dtype) * a.factor.reshape(-1, 1)
    q, scale = quantized_rows(v.T, None if u is None else u.T)
    return q.contiguous(), scale.flatten()


@like_the_op
def transpose_int8(a: Any) -> Tensor:
    """Return the transpose, contiguous."""
    transposed: Tensor = a.input.t().contiguous()
    return transposed


@like_the_op
def draw_random(a: Any) -> Tensor:
    """Return what the op returns: which numbers a generator has drawn is no rule."""
    drawn: Tensor = torch.ops.baraquant.draw_random.default(a.like, a.count)
    return drawn
