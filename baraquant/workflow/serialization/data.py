# SPDX-License-Identifier: BSD-3-Clause
"""Reads the data of a safetensors file whose header has been checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from .header import Entry
from .save import import_safetensors


def read_tensors(file: Path, entries: Mapping[str, Entry], caller: str) -> dict[str, Tensor]:
    """Read all tensors of a file, in memory of their own.

    Args:
        file: The file.
        entries: Its header, as it was checked.
        caller: The public function, for messages.

    Raises:
        ValueError: The file is cut off, or has changed since its header was read.
        ImportError: safetensors is not installed.
    """
    safetensors = import_safetensors(caller)
    try:
        loaded = safetensors.torch.load_file(file)
    except safetensors.SafetensorError as error:
        raise ValueError(f"expected a whole file, but {error}") from error
    tensors: dict[str, Tensor] = {}
    for name, tensor in loaded.items():
        entry = entries.get(name)
        if entry is None or (entry.dtype, entry.shape) != (tensor.dtype, tuple(tensor.shape)):
            raise ValueError(f"{name}: expected the header that was read before, but it changed")
        # This copies: a mapped file could still change after the check.
        tensors[name] = tensor.clone()
    return tensors
