# SPDX-License-Identifier: BSD-3-Clause
"""Safetensors files: the header, all of which is checked, and the data, without NumPy.

Layout: eight bytes, little-endian, the length of the header; the header, a JSON object
``{name: {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}``; the data. Everything
is checked before a tensor is created: a file that passes is complete, and every tensor has its
place. The functions of ``safetensors.torch`` that write need NumPy, which neither safetensors nor
PyTorch installs.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..._table import shown

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_LONGEST_HEADER = 100_000_000  # as in safetensors itself
_DEEPEST = 100  # values within values
_MOST_SIZES = 64  # of a shape, as in PyTorch
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, as torch.save writes it",
    b"\x80\x02": "a pickle",
    b"\x80\x04": "a pickle",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip file",
}


@dataclass(frozen=True)
class Entry:
    """The entry of one tensor in the header; bytes count from the start of the data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A checked header: the tensors fill the data, from ``start`` on, without gap or overlap."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]
    start: int


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, refusing repeated keys, NaN, infinity, deep nests and what UTF-8 cannot hold."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise ValueError(f"the key {shown(key)} stands there twice")
            result[key] = value
        return result

    def whole(digits: str) -> float:  # Python refuses, or is slow for, thousands of digits
        return int(digits) if len(digits) < 100 else float(digits)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=whole, parse_constant=constant)
        _check_depth(value)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # refuses one half of a surrogate pair
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _check_depth(value: Any) -> None:
    """Refuse a nest that another function, such as repr, may find too deep."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        holders = [entry for entry in level if isinstance(entry, (dict, list))]
        level = [e for h in holders for e in (h.values() if isinstance(h, dict) else h)]
        if not holders:
            return
    raise ValueError("it is nested too deeply")


def read_header(file: BinaryIO, expected: str = "a file of baraquant.save") -> Header:
    """Read and check the header of a file, which ``open_file`` has opened.

    Raises:
        ValueError: The file is truncated, is not what is expected, or its header is inconsistent.
        OSError: The file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    # The bytes of the length 640 are also the start of a pickle, but no other kind of file
    # starts with a length.
    is_possible = len(start) == 8 and length <= _LONGEST_HEADER
    for magic, kind in _FOREIGN.items():
        if start.startswith(magic) and not is_possible:
            raise ValueError(f"expected {expected}, but it is {kind}")
    if len(start) < 8:
        raise ValueError(f"expected at least 8 bytes, but it has {size}: it is cut off")
    if length > _LONGEST_HEADER:
        raise ValueError(
            f"expected a header of at most {_LONGEST_HEADER} bytes, but its length is given as "
            f"{length}: it is no safetensors file, or damaged"
        )
    if 8 + length > size:
        raise ValueError(
            f"expected {8 + length} bytes for the header, but it has {size}: it is cut off"
        )
    raw = file.read(length)
    try:
        header = parse_json(raw)
    except ValueError as error:  # UnicodeDecodeError is one
        raise ValueError(f"expected its header to be JSON, but {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"expected its header to be an object, but got {type(header).__name__}")
    metadata = _metadata(header.pop("__metadata__", {}))
    tensors = {name: _entry(name, value) for name, value in header.items()}
    _check_places(tensors, size - 8 - length)
    return Header(tensors, metadata, 8 + length)


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("expected __metadata__ to hold texts, but it does not")
    return value


def _entry(name: str, value: Any) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(
            f"{name}: expected an entry with dtype, shape and data_offsets, but got {shown(value)}"
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name}: expected a dtype of {', '.join(DTYPES)}, but got {shown(dtype)}")
    if not is_sizes(shape):
        raise ValueError(f"{name}: expected a shape of whole sizes, but got {shown(shape)}")
    if not is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{name}: expected a begin and an end, but got {shown(offsets)}")
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if nbytes != offsets[1] - offsets[0]:
        raise ValueError(
            f"{name}: expected {nbytes} bytes ({dtype} {shown(shape)}), but its offsets are "
            f"{offsets[0]} and {offsets[1]}"
        )
    return Entry(DTYPES[dtype], tuple(shape), offsets[0], offsets[1])


def is_sizes(value: Any) -> bool:
    """Return whether ``value`` lists at most 64 nonnegative integers of 64 bits."""
    return (
        isinstance(value, list)
        and len(value) <= _MOST_SIZES
        and all(type(size) is int and 0 <= size < 2**63 for size in value)
    )


def _check_places(tensors: dict[str, Entry], size: int) -> None:
    """Check that the tensors fill the data in order, without gap, overlap or remainder."""
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda t: (t[1].begin, t[1].end, t[0])):
        if entry.begin != end:
            raise ValueError(
                f"{name}: expected its data to begin at {end}, where the one before it ends, but "
                f"got {entry.begin}"
            )
        end = entry.end
    if end > size:
        raise ValueError(f"expected {end} bytes of data, but it has {size}: it is cut off")
    if end < size:
        raise ValueError(f"expected {end} bytes of data, but it has {size}: the rest has no name")


def on_meta(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor on the meta device; a ValueError says that none can have the shape."""
    try:
        return torch.empty(shape, dtype=dtype, device="meta")
    except RuntimeError:  # a dimension of 0 beside others whose product 64 bits do not hold
        raise ValueError(
            f"{name}: expected a shape that a tensor can have, but got {shape}"
        ) from None


# ---- The data -----------------------------------------------------------------------------------

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
    """Write a whole file of tensors, on the CPU and contiguous, with texts for its header."""
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


def read_tensors(file: BinaryIO, header: Header) -> dict[str, Tensor]:
    """Read all tensors, in memory of their own, of a file that may have been cut off since."""
    tensors: dict[str, Tensor] = {}
    for name, entry in header.tensors.items():
        tensor = tensors[name] = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        file.seek(header.start + entry.begin)
        if file.readinto(bytes_of(tensor)) < tensor.nbytes:  # type: ignore[attr-defined]
            raise ValueError("expected a whole file, but it was cut off while it was read")
    return tensors
