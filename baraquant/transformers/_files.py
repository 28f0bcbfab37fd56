# SPDX-License-Identifier: BSD-3-Clause
"""The headers of the safetensors files that ``from_pretrained`` is about to read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..workflow.serialization.header import Entry, read_header

_SUFFIXES = ("weight_packed", "weight_scale")


class Headers:
    """The names, shapes and dtypes of the tensors in some files.

    It is empty where transformers does not say which files it reads (before version 5), or where
    they are in another format.

    Args:
        prefixes: What may stand before a name in the files or in the model alone.
        entries: The tensors by name.
    """

    def __init__(self, prefixes: Iterable[str], entries: dict[str, Entry]) -> None:
        self._prefixes, self._entries = list(prefixes), entries

    @classmethod
    def read(cls, files: Any, base: str, caller: str) -> Headers:
        """Read the headers of some files.

        Args:
            files: Their paths, or None.
            base: The name of the model without its head in the model with a head.
            caller: The public function, for messages.

        Raises:
            ValueError: A file is damaged.
        """
        entries: dict[str, Entry] = {}
        for file in files or ():
            if not str(file).endswith(".safetensors"):
                return cls([], {})
            try:
                entries |= read_header(Path(file), "a safetensors file").tensors
            except ValueError as error:
                raise ValueError(f"{caller}: {Path(file).name}: {error}") from None
        return cls([f"{base}."] if base else [], entries)

    def quantized(self) -> set[str]:
        """Return the paths of the layers whose weights are stored as integers."""
        return {
            name.rpartition(".")[0]
            for name in self._entries
            if name.rpartition(".")[2] in _SUFFIXES
        }

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name; True if nothing is known."""
        return not self._entries or self._entry(name) is not None

    def check(self, name: str, place: torch.Tensor, caller: str) -> None:
        """Compare a tensor with its place. One under another name is not found, which is no error.

        Raises:
            ValueError: Its shape differs, or it is floating where integers belong.
        """
        entry = self._entry(name)
        if entry is None:
            return
        check_fits(name, entry.shape, entry.dtype, place, caller)

    def _entry(self, name: str) -> Entry | None:
        for prefix in self._prefixes:
            for other in (f"{prefix}{name}", name.removeprefix(prefix)):
                if other in self._entries:
                    return self._entries[other]
        return self._entries.get(name)


def check_fits(
    name: str, got: tuple[int, ...], dtype: torch.dtype, place: torch.Tensor, caller: str
) -> None:
    """Check that a stored tensor has the shape of its place, and is floating if the place is.

    Raises:
        ValueError: It does not fit.
    """
    shape = tuple(place.shape)
    if got != shape and not (got == () and shape == (1,)):
        raise ValueError(
            f"{caller}: {name}: expected the shape {list(shape)} by the model and the scheme, "
            f"but the folder has {list(got)}"
        )
    if dtype.is_floating_point != place.dtype.is_floating_point:
        raise ValueError(
            f"{caller}: {name}: expected {place.dtype} by the scheme, but the folder has {dtype}"
        )
