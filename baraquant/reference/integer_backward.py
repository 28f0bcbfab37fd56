# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of :func:`baraquant.reference.qat_linear` as products of integers."""

import math

import torch
from torch import Tensor, nn

from baraquant.ops.limits import MAX_FEATURES, MAX_SHIFTED_FEATURES

from . import scaled
from .products import rescaled, sums_of_products
from .rules import compute_dtype, round_to

_PIECE, _LANES = 32, 8  # rows that are added up in the compute type; sums of pieces, in float64


def _blocks(depth: int, limit: int) -> list[slice]:
    """Return the parts of a sum, each of which int32 holds: equal, but for the last one."""
    if depth <= limit:
        return [slice(0, depth)]
    most = limit // 16 * 16
    count = math.ceil(depth / most)
    size = math.ceil(depth / (16 * count)) * 16
    return [slice(begin, min(begin + size, depth)) for begin in range(0, depth, size)]


def _sum_of_blocks(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the sum in the compute type, in order; one part alone has the dtype already."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return round_to(total, dtype)


def rows_of(grad: Tensor) -> Tensor:
    """Return ``[tokens, N]`` of ``[..., N]``."""
    return grad.reshape(grad.shape[:-1].numel(), grad.shape[-1])


def bias_gradient(dy: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``sum_t dy[t, n]`` in the order that every device keeps."""
    rows = rows_of(dy.detach()).to(compute_dtype(dy.dtype))
    count = math.ceil(rows.shape[0] / _PIECE)
    missing = count * _PIECE - rows.shape[0]
    pieces = nn.functional.pad(rows, (0, 0, 0, missing)).reshape(count, _PIECE, rows.shape[1])
    sums = torch.zeros_like(pieces[:, 0])
    for row in range(_PIECE):
        sums = sums + pieces[:, row]
    lanes = [torch.zeros(rows.shape[1], dtype=torch.float64, device=dy.device)] * _LANES
    for piece in range(count):
        lanes[piece % _LANES] = lanes[piece % _LANES] + sums[piece].to(torch.float64)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return round_to(lanes[0].to(rows.dtype), dtype)


def integer_input_gradient(dy: Tensor, w: Tensor, sw: Tensor, random: Tensor | None) -> Tensor:
    """Return ``sum_n q(dy[t, n] * sw[n]) * w[n, k]``, scaled back."""
    rows, parts = rows_of(dy.detach()), []
    u = scaled.numbers(rows, random)
    blocks = _blocks(rows.shape[1], MAX_FEATURES)
    dtype = dy.dtype if len(blocks) == 1 else sw.dtype
    for block in blocks:
        v = rows[:, block].to(sw.dtype) * sw[block]
        of_dy, scale = scaled.quantized_rows(v, None if u is None else u[:, block])
        acc = sums_of_products(of_dy, None, w[block].T)
        parts.append(rescaled(acc, scale, sw.new_ones(w.shape[1]), None, dtype))
    return _sum_of_blocks(parts, dy.dtype).reshape(*dy.shape[:-1], w.shape[1])


def integer_weight_gradient(
    dy: Tensor, q: Tensor, s: Tensor, z: Tensor | None, random: Tensor | None
) -> Tensor:
    """Return ``sum_t q(dy[t, n] * s[t]) * (q[t, k] - z[t])``, scaled back."""
    rows, of_input, s, parts = rows_of(dy.detach()), rows_of(q), s.reshape(-1, 1), []
    u = None
    if random is not None:
        u = scaled.numbers(rows, random + random.new_tensor([0, 1]))
    blocks = _blocks(rows.shape[0], MAX_FEATURES if z is None else MAX_SHIFTED_FEATURES)
    dtype = dy.dtype if len(blocks) == 1 else s.dtype
    for block in blocks:
        v = rows[block].to(s.dtype) * s[block]
        of_dy, scale = scaled.quantized_rows(v.T, None if u is None else u[block].T)
        acc = sums_of_products(of_dy, None, of_input[block].T)
        if z is not None:
            shifts = of_dy.to(torch.int64) @ z.reshape(-1)[block].to(torch.int64)
            acc = acc - shifts.to(torch.int32).unsqueeze(1)
        parts.append(rescaled(acc, scale, s.new_ones(of_input.shape[1]), None, dtype))
    return _sum_of_blocks(parts, dy.dtype)
