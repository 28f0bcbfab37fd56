# SPDX-License-Identifier: BSD-3-Clause
"""Integers of two to seven bits, stored as a string of bits.

A tensor is one stream, in the order of its elements: integer ``i`` takes the bits ``i * bits`` to
``(i + 1) * bits - 1``, its low bit first, and bit ``j`` of the stream is bit ``j % 8`` of byte
``j // 8``. The unused bits of the last byte are 0. The whole tensor is one stream: kernels read
int8, no row is looked up in a file, and rows padded to bytes would cost up to 7 bits each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# The number of integers at a time, so that the temporaries stay small. Eight integers of any width
# end on a byte.
_CHUNK = 1 << 20


def packed_size(numel: int, bits: int) -> int:
    """Return the number of bytes that ``numel`` integers of ``bits`` bits take."""
    return (numel * bits + 7) // 8


def pack(integers: Tensor, bits: int) -> Tensor:
    """Pack signed integers, each as two's complement of ``bits`` bits.

    Args:
        integers: int8, of any shape, in ``[-2^(bits-1), 2^(bits-1) - 1]``.
        bits: 2 to 8.

    Returns:
        uint8 ``[packed_size(numel, bits)]``, on the CPU.
    """
    integers = integers.detach().cpu().reshape(-1)
    parts = [torch.empty(0, dtype=torch.uint8)]
    for chunk in integers.split(_CHUNK):
        columns = _columns(chunk.view(torch.uint8) & (1 << bits) - 1, 8)
        packed = torch.zeros(bits, columns.shape[1], dtype=torch.uint8)
        for integer, byte, shift in _overlaps(bits):
            packed[byte] |= _shifted(columns[integer], shift)
        parts.append(packed.t().reshape(-1))
    return torch.cat(parts)[: packed_size(integers.numel(), bits)].clone()


def check_spare_bits(packed: Tensor, bits: int, numel: int) -> None:
    """Check that the bits after the last integer are 0, so that each tensor has one encoding.

    Args:
        packed: uint8 ``[packed_size(numel, bits)]``, on the CPU.
        bits: 2 to 8.
        numel: The number of integers.

    Raises:
        ValueError: One of these bits is 1.
    """
    used = numel * bits % 8
    if used > 0 and int(packed[-1]) >> used != 0:
        raise ValueError(
            f"expected the {8 - used} bits behind the last integer to be 0, but its last byte is "
            f"{int(packed[-1]):#010b}"
        )


def unpack(packed: Tensor, bits: int, shape: Sequence[int]) -> Tensor:
    """Undo :func:`pack`: int8 integers of the given shape.

    Args:
        packed: uint8 ``[packed_size(numel, bits)]``, on the CPU.
        bits: 2 to 8.
        shape: The shape that the integers had.
    """
    sign = 1 << (bits - 1)
    parts = [torch.empty(0, dtype=torch.int8)]
    for chunk in packed.split(_CHUNK // 8 * bits):
        columns = _columns(chunk, bits)
        integers = torch.zeros(8, columns.shape[1], dtype=torch.uint8)
        for integer, byte, shift in _overlaps(bits):
            integers[integer] |= _shifted(columns[byte], -shift)
        integers = (integers & (1 << bits) - 1 ^ sign) - sign  # extends the sign bit
        parts.append(integers.view(torch.int8).t().reshape(-1))
    return torch.cat(parts)[: math.prod(shape)].reshape(tuple(shape)).clone()


def _columns(values: Tensor, count: int) -> Tensor:
    """Return ``[count, ceil(n / count)]``: every ``count``-th value of ``[n]`` in a row."""
    padded = torch.nn.functional.pad(values, (0, -len(values) % count))
    return padded.reshape(-1, count).t().contiguous()


def _overlaps(bits: int) -> list[tuple[int, int, int]]:
    """Return how eight integers overlap their ``bits`` bytes: (integer, byte, left shift)."""
    return [
        (integer, byte, bits * integer - 8 * byte)
        for integer in range(8)
        for byte in range(bits)
        if -bits < bits * integer - 8 * byte < 8
    ]


def _shifted(values: Tensor, left: int) -> Tensor:
    """Return shifted uint8 values; bits shifted out of the byte are lost."""
    return values << left if left >= 0 else values >> -left
