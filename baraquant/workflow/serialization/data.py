# SPDX-License-Identifier: BSD-3-Clause
"""Reads and writes the data of a safetensors file, without NumPy.

The functions of ``safetensors.torch`` that write need NumPy, which neither safetensors nor PyTorch
installs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .header import Entry

_NOTHING = (ctypes.c_ubyte * 0)()


def import_safetensors(caller: str) -> Any:
    """Import ``safetensors.torch``, or say how to install it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f"{caller}: expected safetensors; pip install safetensors") from error
    return safetensors


def bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor on the CPU, which must outlive what is returned."""
    if tensor.nbytes == 0:
        return _NOTHING
    return (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], caller: str
) -> None:
    """Write a whole file.

    Args:
        file: The file.
        tensors: On the CPU and contiguous.
        metadata: Texts for its header.
        caller: The public function, for messages.

    Raises:
        ImportError: safetensors is not installed.
    """
    safetensors = import_safetensors(caller)
    described: dict[str, Any] = {}
    for name, tensor in tensors.items():
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        content = bytes_of(tensor)
        if hasattr(safetensors, "TensorSpec"):  # since 0.8
            address = ctypes.addressof(content)
            described[name] = safetensors.TensorSpec(
                dtype=dtype, shape=shape, data_ptr=address, data_len=tensor.nbytes
            )
        else:
            described[name] = {"dtype": dtype, "shape": shape, "data": bytes(content)}
    safetensors.serialize_file(described, file, metadata=metadata)


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
