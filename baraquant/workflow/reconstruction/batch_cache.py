# SPDX-License-Identifier: BSD-3-Clause
"""``BatchCache``: keeps tensors of batches, the first in memory and the others in plain files."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, slice)


def is_plain(leaf: Any) -> bool:
    """Whether a leaf of a call's arguments is a value that nothing can change."""
    return isinstance(leaf, (*_PLAIN, type, nn.Module)) or callable(leaf)


@dataclass(frozen=True)
class _Kept:
    """A tensor on the CPU, with its device and its shape: dimensions of stride 0 are kept once."""

    values: Tensor
    device: torch.device
    shape: torch.Size

    def tensor(self) -> Tensor:
        """Return the tensor where it was, with its strides."""
        values = self.values.to(self.device, copy=True)
        return values if values.shape == self.shape else values.expand(self.shape)


@dataclass
class Item:
    """What the cache keeps of one value; only the cache looks into it.

    Attributes:
        spec: Its structure.
        leaves: Its leaves; None if they are in the file.
        size: The bytes of its tensors, and of objects that hold some.
        file: Where the leaves are; None: in memory.
    """

    spec: TreeSpec
    leaves: list[Any] | None
    size: int
    file: Path | None = None


class BatchCache:
    """Keeps nested values with tensors, copies of them, until they are dropped.

    Tensors are kept on the CPU and come back on the device that they had. The memory does not grow
    with the number of values: those beyond the limit are files, which are written and read as a
    whole. Objects that can change, such as a cache of keys, come back as they were.

    Args:
        limit: How many bytes of tensors stay in memory.
        folder: Where the other ones go. Whoever made the folder deletes it.

    Attributes:
        held: The bytes that are in memory now.
        peak: The most that were.
    """

    def __init__(self, limit: int, folder: Path) -> None:
        self._limit, self._folder = limit, folder
        self._names = map(str, itertools.count())
        self.held = self.peak = 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def put(self, value: Any, *, in_memory: bool = True) -> Item:
        """Keep a copy of a value; one that is rarely read need not be in memory."""
        leaves, spec = tree_flatten(value)
        kept = [_copy_of(leaf) for leaf in leaves]
        size = sum(map(_bytes_of, kept))
        if size > 0 and not (in_memory and self.held + size <= self._limit):
            file = self._folder / next(self._names)
            torch.save(kept, file)
            return Item(spec, None, size, file)
        self.held += size
        self.peak = max(self.peak, self.held)
        return Item(spec, kept, size)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def get(self, item: Item) -> Any:
        """Return a value; whoever gets it may change it."""
        leaves = item.leaves
        if leaves is None:
            assert item.file is not None
            # The file is our own, in a folder of our own: it may hold any object.
            leaves = torch.load(item.file, weights_only=False, mmap=False)
        return tree_unflatten([_value_of(leaf) for leaf in leaves], item.spec)

    def drop(self, item: Item) -> None:
        """Forget a value, and delete its file."""
        if item.file is not None:
            item.file.unlink(missing_ok=True)
        elif item.leaves is not None:
            self.held -= item.size
        item.leaves = item.file = None


class Batches:
    """The batches of an iterable, which is gone through once; each is read when it is asked for."""

    def __init__(self, cache: BatchCache, batches: Iterable[Any]) -> None:
        self._cache = cache
        # A mapping of a kind that PyTorch does not look into holds tensors too.
        plain = (dict(one) if isinstance(one, Mapping) else one for one in batches)
        self._items = [cache.put(one) for one in plain]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._cache.get, self._items)


def _copy_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        compact = leaf.detach()
        for axis, (size, stride) in enumerate(zip(leaf.shape, leaf.stride(), strict=True)):
            if size > 1 and stride == 0:
                compact = compact.narrow(axis, 0, 1)
        return _Kept(compact.to("cpu", copy=True), leaf.device, leaf.shape)
    if is_plain(leaf):
        return leaf
    buffer = io.BytesIO()
    try:
        torch.save(leaf, buffer)
    except Exception:  # an object may raise anything where it cannot be copied: it is kept itself
        return leaf
    return buffer


def _bytes_of(kept: Any) -> int:
    if isinstance(kept, io.BytesIO):
        return kept.getbuffer().nbytes
    return kept.values.nbytes if isinstance(kept, _Kept) else 0


def _value_of(kept: Any) -> Any:
    if isinstance(kept, _Kept):
        return kept.tensor()
    if isinstance(kept, io.BytesIO):
        kept.seek(0)
        return torch.load(kept, weights_only=False)
    return kept
