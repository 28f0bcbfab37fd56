# SPDX-License-Identifier: BSD-3-Clause
"""What autograd functions keep between forward and backward."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@contextmanager
def saved_tensors() -> Iterator[list[Tensor]]:
    """Everything that autograd functions save for their backward meanwhile."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def storages(tensors: list[Tensor]) -> dict[int, int]:
    """Bytes of each distinct storage, by its address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def assert_freed_after(
    forward: Callable[[Tensor], Tensor], activation: Callable[[], Tensor]
) -> None:
    """No hidden reference: the activation's memory goes as soon as the caller lets go of it."""
    x = activation()
    alive = StorageWeakRef(x.untyped_storage())
    y = forward(x)
    del x
    gc.collect()
    assert alive.expired()
    y.backward(torch.ones_like(y))


def assert_a_bit_per_element(kept: list[Tensor], count: int, *others: Tensor) -> None:
    """A mask of so many bits is all that is held, and none of the others."""
    held = storages(kept)
    for tensor in others:
        assert tensor.untyped_storage().data_ptr() not in held
    bits = -(-count // 8)
    assert bits <= sum(held.values()) <= bits + 64
