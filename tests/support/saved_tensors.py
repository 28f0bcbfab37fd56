# SPDX-License-Identifier: BSD-3-Clause
"""What autograd functions keep between forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


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
