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
from typing import Any

import torch
from torch import Tensor, nn

from ...nn import WeightOnlyInt4Linear
from ..layers import form_of, further_names


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


# ---- What tensors take in a file of :func:`baraquant.save`, without its header ------------------


def packed_shapes(module: nn.Module) -> dict[str, list[int]]:
    """Return a module's integer tensors that are wider in memory than in a file, as int8.

    Returns:
        The shapes of the integers that they stand for, by the names of the tensors.
    """
    form = form_of(module)
    if form is None or getattr(module, "weight_bits", 8) == 8:
        return {}
    if isinstance(module, WeightOnlyInt4Linear):  # four bits are stored as they are
        shape = [module.out_features, module.in_features]
        return {"packed": shape} if module.weight_bits < 4 else {}
    own = module.state_dict()
    return {name: list(own[name].shape) for name in form.integers() if name in own}


def integers_of(module: nn.Module, name: str) -> Tensor:
    """Return the int8 that stand for one of :func:`packed_shapes`."""
    integers: Tensor = module.qweight if name == "packed" else module.state_dict()[name]
    return integers


def place_of(tensor: Tensor, bits: int | None) -> tuple[Any, ...]:
    """Return what two tensors have in common if the file holds them once.

    Args:
        tensor: A tensor with data.
        bits: The width of the integers in the file; None: the tensor is stored unchanged.
    """
    where = (tensor.data_ptr(), tensor.device, tensor.shape, tensor.stride())
    return (*where, tensor.dtype, bits)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a float or converted layer, without what a subclass has besides."""
    further = further_names(module)
    tensors = module.state_dict().items()
    return {name: tensor for name, tensor in tensors if name.split(".")[0] not in further}


class Counter:
    """Counts the bytes of tensors, each once. The tensors have to stay in memory.

    Args:
        before: Counted tensors that count no more.
    """

    def __init__(self, before: Counter | None = None) -> None:
        self._places: set[tuple[Any, ...]] = set() if before is None else set(before._places)

    def add(self, tensor: Tensor, bits: int | None = None, numel: int | None = None) -> int:
        """Return the bytes that a tensor adds.

        Args:
            tensor: The tensor.
            bits: As in :func:`place_of`.
            numel: How many integers the file has for it. None: as many as it has elements.
        """
        place = place_of(tensor, bits)
        if tensor.numel() == 0 or place in self._places:
            return 0
        self._places.add(place)
        if bits is not None:
            return packed_size(tensor.numel() if numel is None else numel, bits)
        return int(tensor.nbytes)

    def add_layer(self, module: nn.Module) -> int:
        """Return the bytes that a float or converted layer adds."""
        packed = {name: math.prod(shape) for name, shape in packed_shapes(module).items()}
        bits = module.weight_bits if packed else None
        return sum(
            self.add(tensor, bits if name in packed else None, packed.get(name))
            for name, tensor in own_tensors(module).items()
        )
