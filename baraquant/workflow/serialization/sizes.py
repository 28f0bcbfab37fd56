# SPDX-License-Identifier: BSD-3-Clause
"""The bytes that tensors take in a file of :func:`baraquant.save`, without the file's header."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from ...nn import WeightOnlyInt4Linear
from ..layers import form_of, further_names
from .packing import packed_size


def packed_names(module: nn.Module) -> list[str]:
    """Return the names of a module's integer tensors that are wider in memory than in a file."""
    form = form_of(module)
    if form is None or getattr(module, "weight_bits", 8) == 8:
        return []
    if isinstance(module, WeightOnlyInt4Linear):  # four bits are stored as they are
        return ["packed"] if module.weight_bits < 4 else []
    own = module.state_dict().keys()
    return [name for name in form.integers() if name in own]


def integers_of(module: nn.Module, name: str) -> Tensor:
    """Return the int8 that stand for one of :func:`packed_names`."""
    integers: Tensor = module.qweight if name == "packed" else module.state_dict()[name]
    return integers


def shape_of(module: nn.Module, name: str) -> list[int]:
    """Return the shape of :func:`integers_of`."""
    if name == "packed":
        return [module.out_features, module.in_features]
    return list(module.state_dict()[name].shape)


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
        packed = {name: math.prod(shape_of(module, name)) for name in packed_names(module)}
        bits = module.weight_bits if packed else None
        return sum(
            self.add(tensor, bits if name in packed else None, packed.get(name))
            for name, tensor in own_tensors(module).items()
        )
