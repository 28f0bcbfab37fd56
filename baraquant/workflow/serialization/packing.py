# SPDX-License-Identifier: BSD-3-Clause
"""Integers of two to seven bits, stored as a string of bits.

A tensor is one stream, in the order of its elements: integer ``i`` takes the bits ``i * bits`` to
``(i + 1) * bits - 1``, its low bit first, and bit ``j`` of the stream is bit ``j % 8`` of byte
``j // 8``. The unused bits of the last byte are 0. The whole tensor is one stream: kernels read
int8, no row is looked up in a file, and rows padded to bytes would cost up to 7 bits each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
    packed: Tensor = torch.ops.baraquant._pack_bits(integers, bits)
    return packed


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
    integers: Tensor = torch.ops.baraquant._unpack_bits(packed, bits, shape)
    return integers
