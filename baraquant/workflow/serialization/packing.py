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
    """Pack signed integers, int8 of any shape, each as two's complement of 2 to 8 bits.

    Returns:
        uint8 ``[packed_size(numel, bits)]``, on the CPU.
    """
    packed: Tensor = torch.ops.baraquant._pack_bits(integers, bits)
    return packed


def check_spare_bits(packed: Tensor, bits: int, numel: int) -> None:
    """Check that the bits after the last integer are 0, so that each tensor has one encoding."""
    used = numel * bits % 8
    if used > 0 and int(packed[-1]) >> used != 0:
        raise ValueError(
            f"expected the {8 - used} bits behind the last integer to be 0, but its last byte is "
            f"{int(packed[-1]):#010b}"
        )


def unpack(packed: Tensor, bits: int, shape: Sequence[int]) -> Tensor:
    """Undo :func:`pack`: return int8 integers of the given shape for its uint8, on the CPU."""
    integers: Tensor = torch.ops.baraquant._unpack_bits(packed, bits, shape)
    return integers


# ---- What tensors take in a file of :func:`baraquant.save`, without its header ------------------


def packed_shapes(module: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of a module's integers that are wider in memory than in a file, as int8."""
    form = form_of(module)
    if form is None or getattr(module, "weight_bits", 8) == 8:
        return {}
    if isinstance(module, WeightOnlyInt4Linear):  # four bits are stored as they are
        shape = [module.out_features, module.in_features]
        return {"packed": shape} if module.weight_bits < 4 else {}
    own = module.state_dict().items()
    names = [name for name in form.tensors if name.endswith("qweight")]
    return {name: list(tensor.shape) for name, tensor in own if name in names}


def place_of(tensor: Tensor, bits: int | None) -> tuple[Any, ...]:
    """Return what two tensors with data have in common if the file holds them once.

    ``bits`` is the width of the integers in the file; None: the tensor is stored unchanged.
    """
    where = (tensor.data_ptr(), tensor.device, tensor.shape, tensor.stride())
    return (*where, tensor.dtype, bits)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a float or converted layer, without what a subclass has besides."""
    further = further_names(module)
    tensors = module.state_dict().items()
    return {name: tensor for name, tensor in tensors if name.split(".")[0] not in further}


class Counter:
    """Counts the bytes of tensors, each once, and not those that another one has counted.

    The tensors have to stay in memory.
    """

    def __init__(self, before: Counter | None = None) -> None:
        self._places: set[tuple[Any, ...]] = set() if before is None else set(before._places)

    def add(self, tensor: Tensor, bits: int | None = None, numel: int | None = None) -> int:
        """Return the bytes that a tensor adds, with ``bits`` as in :func:`place_of`.

        ``numel`` says how many integers the file has for it, if not as many as it has elements.
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
