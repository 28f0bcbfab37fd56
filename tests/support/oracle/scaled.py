# SPDX-License-Identifier: BSD-3-Clause
"""The contract's scaled family and backward of integers in NumPy, independent of the reference.

    v = C(x) * f          s = amax |v| / 127 of a row (1 for zeros)
    nearest:     q = clamp(rint(v / s), -128, 127)
    stochastic:  q = clamp(floor(v / s + u), -128, 127),  u = (k + 1/2) / 2^16

k are bits of Philox4x32-10, which `philox` computes one block at a time with Python's integers.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.support.bits import to_numpy
from tests.support.oracle import affine as oracle
from tests.support.oracle import int8_mm as int8_oracle
from tests.support.oracle.range import qparams

WORD = 2**32 - 1
DEEPEST, DEEPEST_SHIFTED = 131071, 65536
Random = tuple[int, int] | None  # two numbers of a state; None rounds to nearest
Array = np.ndarray

# --- random bits ---------------------------------------------------------------------------------


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Salmon et al. 2011: ten rounds on four words of 32 bits."""
    c, (k0, k1) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = (second >> 32 ^ c[1] ^ k0, second & WORD, first >> 32 ^ c[3] ^ k1, first & WORD)
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c


def bits(random: tuple[int, int], count: int) -> Array:
    """The 16 bits of the elements 0 to count - 1."""
    seed, offset = (number % 2**64 for number in random)
    found: list[int] = []
    for block in range((count + 7) // 8):
        counter = (offset & WORD, offset >> 32, block & WORD, block >> 32)
        for word in philox(counter, (seed & WORD, seed >> 32)):
            found += [word & 0xFFFF, word >> 16]
    return np.array(found[:count], np.int64)


def uniform(random: tuple[int, int], shape: tuple[int, ...], compute: np.dtype) -> Array:
    count = math.prod(shape)
    return ((bits(random, count) + 0.5) / 65536).astype(compute).reshape(shape)


# --- rows of numbers -----------------------------------------------------------------------------


class Quantized(NamedTuple):
    """int8 [rows, columns] and a scale [rows] of the compute type."""

    values: Array
    scale: Array


def quantize_rows(v: Array, u: Array | None) -> Quantized:
    with np.errstate(all="ignore"):
        high = np.abs(v).max(1, initial=0)
        scale, _ = qparams(-high, high, (-128, 127), symmetric=True)
        ratio = v / scale[:, None]
        q = np.rint(ratio) if u is None else np.floor(ratio + u)
        return Quantized(np.where(np.isnan(q), 0, np.clip(q, -128, 127)).astype(np.int8), scale)


def scaled_rows(x: Array, factor: Array, random: Random) -> tuple[Array, Array | None]:
    """v and u of a matrix; the factor is [columns] or [rows, 1]."""
    with np.errstate(all="ignore"):
        v = x.astype(factor.dtype) * factor
    return v, None if random is None else uniform(random, x.shape, factor.dtype)


def matrix(x: Tensor) -> Array:
    rows = math.prod(x.shape[:-1])
    return to_numpy(x).reshape(rows, x.shape[-1])


def scaled_quantize_per_token(x: Tensor, factor: Tensor, random: Random = None) -> Quantized:
    q = quantize_rows(*scaled_rows(matrix(x), to_numpy(factor), random))
    return Quantized(q.values.reshape(x.shape), q.scale.reshape(*x.shape[:-1], 1))


def scaled_quantize_transposed(x: Tensor, factor: Tensor, random: Random = None) -> Quantized:
    v, u = scaled_rows(matrix(x), to_numpy(factor).reshape(-1, 1), random)
    return quantize_rows(v.T, None if u is None else u.T)


# --- gradients -----------------------------------------------------------------------------------


def blocks(depth: int, limit: int) -> list[slice]:
    """The fewest parts of a sum that int32 holds, of equal length up to a multiple of 16."""
    if depth <= limit:
        return [slice(0, depth)]
    count = next(n for n in range(2, depth) if -(-depth // n) <= limit - limit % 16)
    size = next(s for s in range(16, depth, 16) if s * count >= depth)
    return [slice(begin, begin + size) for begin in range(0, depth, size)]


def _added(parts: list[Array], dtype: torch.dtype) -> Array:
    return oracle.round_to(sum(parts[1:], parts[0]), dtype)


def _number_product(acc: Array, scale: Array) -> Array:
    with np.errstate(all="ignore"):
        return acc.astype(scale.dtype) * scale[:, None]


def input_gradient(dy: Tensor, w: Array, sw: Array, random: Random) -> Array:
    """`sd[m] * sum_n q(dy[m, n] * sw[n]) * w[n, k]`, in the shape [tokens, K]."""
    v, u = scaled_rows(matrix(dy), sw, random)
    parts = []
    for block in blocks(v.shape[1], DEEPEST):
        q = quantize_rows(v[:, block], None if u is None else u[:, block])
        acc = int8_oracle.sums(q.values, np.ascontiguousarray(w[block].T))
        parts.append(_number_product(acc, q.scale))
    return _added(parts, dy.dtype)


def weight_gradient(dy: Tensor, x: Array, sx: Array, zx: Array | None, random: Random) -> Array:
    """`sd[n] * sum_m q(dy[m, n] * sx[m]) * (x[m, k] - zx[m])`; sx and zx are [tokens]."""
    if random is not None:
        random = (random[0], random[1] + 1)
    v, u = scaled_rows(matrix(dy), sx.reshape(-1, 1), random)
    parts = []
    for block in blocks(v.shape[0], DEEPEST if zx is None else DEEPEST_SHIFTED):
        q = quantize_rows(v[block].T, None if u is None else u[block].T)
        of_x = x[block].astype(np.int64) - (0 if zx is None else zx[block, None].astype(np.int64))
        acc = (q.values.astype(np.float64) @ of_x.astype(np.float64)).astype(np.int64)
        assert np.abs(acc).max(initial=0) < 2**31
        parts.append(_number_product(acc, q.scale))
    return _added(parts, dy.dtype)


def bias_gradient(dy: Tensor, dtype: torch.dtype) -> Array:
    """`sum_m dy[m, n]`: 32 rows at a time in C; of these, each eighth in float64; the eight so."""
    rows = matrix(dy).astype(np.float64 if dy.dtype == torch.float64 else np.float32)
    lanes = np.zeros((8, rows.shape[1]))
    with np.errstate(all="ignore"):
        for piece, begin in enumerate(range(0, rows.shape[0], 32)):
            total = np.zeros(rows.shape[1], rows.dtype)
            for row in rows[begin : begin + 32]:
                total += row
            lanes[piece % 8] += total
        a, b, c, d, e, f, g, h = lanes
        total = ((a + e) + (c + g)) + ((b + f) + (d + h))
        return oracle.round_to(total.astype(rows.dtype), dtype)
