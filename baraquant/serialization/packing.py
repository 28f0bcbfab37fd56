# SPDX-License-Identifier: BSD-3-Clause
"""Integers of two to seven bits, stored as a string of bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Integers at a time: eight of any width end on a byte, and the temporaries stay small.
_CHUNK = 1 << 20


def packed_size(numel: int, bits: int) -> int:
    """Return how many bytes ``numel`` integers of ``bits`` bits take."""
    return (numel * bits + 7) // 8


def pack(integers: Tensor, bits: int) -> Tensor:
    """Pack signed integers, each as two's complement of ``bits`` bits, the low bit first.

    Args:
        integers: int8, of any shape, in ``[-2^(bits-1), 2^(bits-1) - 1]``.
        bits: 2 to 8.

    Returns:
        uint8 ``[ceil(numel * bits / 8)]``, on the CPU.
    """
    integers = integers.detach().cpu().reshape(-1)
    places = torch.arange(bits, dtype=torch.uint8)
    weights = torch.ones(8, dtype=torch.uint8) << torch.arange(8, dtype=torch.uint8)
    parts = []
    for chunk in integers.split(_CHUNK):
        stream = (chunk.view(torch.uint8)[:, None] >> places & 1).reshape(-1)
        stream = torch.nn.functional.pad(stream, (0, -len(stream) % 8)).reshape(-1, 8)
        parts.append((stream * weights).sum(dim=1, dtype=torch.uint8))
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, shape: Sequence[int]) -> Tensor:
    """Undo :func:`pack`: int8 integers of the given shape.

    Args:
        packed: uint8 ``[packed_size(numel, bits)]``, on the CPU.
        bits: 2 to 8.
        shape: The shape that the integers had.
    """
    numel = math.prod(shape)
    places = torch.arange(8, dtype=torch.uint8)
    weights = torch.ones(bits, dtype=torch.uint8) << torch.arange(bits, dtype=torch.uint8)
    sign = 1 << (bits - 1)
    parts = []
    for start in range(0, numel, _CHUNK):
        count = min(_CHUNK, numel - start)
        begin = start * bits // 8  # whole: a chunk is a multiple of eight integers
        chunk = packed[begin : begin + packed_size(count, bits)]
        stream = (chunk[:, None] >> places & 1).reshape(-1)[: count * bits].reshape(-1, bits)
        values = (stream * weights).sum(dim=1, dtype=torch.uint8)
        parts.append(((values ^ sign) - sign).view(torch.int8))  # extends the sign bit
    whole = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int8)
    return whole.reshape(tuple(shape))
