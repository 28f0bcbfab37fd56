# SPDX-License-Identifier: BSD-3-Clause
"""``FinishedBlocks``: a folder with the blocks that are done, from which a later call goes on.

``manifest.json`` says what is reconstructed, and how. Each block has a file of its own, with the
learned tensors by their paths within the block, and its errors. A file is written beside its place
and then moved there, so that it is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...configs import Config
from ..serialization.disk import new_file, open_file
from ..serialization.tensor_file import (
    bytes_of,
    parse_json,
    read_header,
    read_tensors,
    write_tensors,
)
from .float_values import write
from .learned_parameter import LearnedParameter

_VERSION = 1
_MANIFEST = "manifest.json"


class FinishedBlocks:
    """The blocks of one reconstruction that are done.

    Args:
        folder: Where they are; it is made if it is not there.
        manifest: What is reconstructed, and how, as plain data.
        caller: The public function, for messages.

    Raises:
        ValueError: The folder holds another reconstruction, or other files.
        OSError: It cannot be read or written to.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], caller: str) -> None:
        self._folder, self._caller = folder, caller
        wanted = parse_json(json.dumps({"version": _VERSION, **manifest}))
        file = folder / _MANIFEST
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            if any(folder.glob("*.safetensors")):
                raise ValueError(
                    f"{caller}: expected resume to be a new folder, or one of an earlier call, but "
                    f"{folder} has other files"
                )
            with new_file(caller, file) as partial:
                partial.write_text(json.dumps(wanted, indent=1))
            return
        with open_file(file) as opened:
            found = parse_json(opened.read())
        other = [
            key for key in wanted if not isinstance(found, dict) or found.get(key) != wanted[key]
        ]
        if other:
            raise ValueError(
                f"{caller}: expected resume to be the folder of the same reconstruction, but "
                f"{folder} differs in: {', '.join(other)}; give another folder, or remove this one"
            )

    def load(
        self, index: int, path: str, learned: Iterable[LearnedParameter]
    ) -> tuple[float, float] | None:
        """Give parameters what a block has learned; return its errors. None: it is not done.

        Raises:
            ValueError: The file is damaged, or of another block.
        """
        file = self._file(index)
        if not file.exists():
            return None
        with open_file(file) as opened:
            header = read_header(opened, "a file of a finished block")
            tensors = read_tensors(opened, header)
        parameters = {one.name: one.parameter for one in learned}
        fits = tensors.keys() == parameters.keys() and all(
            (tensors[name].shape, tensors[name].dtype) == (one.shape, one.dtype)
            for name, one in parameters.items()
        )
        if not fits or header.metadata.get("block") != path:
            raise ValueError(
                f"{self._caller}: expected {file} to hold what {path} has learned, but it does not"
            )
        for name, one in parameters.items():
            write(one, tensors[name])
        return float.fromhex(header.metadata["before"]), float.fromhex(header.metadata["after"])

    def save(
        self,
        index: int,
        path: str,
        learned: Iterable[LearnedParameter],
        errors: tuple[float, float],
    ) -> None:
        """Keep what a block has learned."""
        tensors = {one.name: one.parameter.detach().cpu().contiguous() for one in learned}
        before, after = map(float.hex, errors)
        metadata = {"block": path, "before": before, "after": after}
        with new_file(self._caller, self._file(index)) as partial:
            write_tensors(partial, tensors, metadata, self._caller)

    def _file(self, index: int) -> Path:
        return self._folder / f"block-{index:05d}.safetensors"


def described(config: Any) -> Any:
    """Return a configuration, or a dictionary of some, as plain data."""
    if not isinstance(config, Mapping):
        return config.to_dict()
    return [
        [
            key if isinstance(key, str) else f"{key.__module__}.{key.__qualname__}",
            value.to_dict() if isinstance(value, Config) else None,
        ]
        for key, value in config.items()
    ]


def digest_of_model(model: nn.Module) -> str:
    """Return the SHA-256 of the names and values of parameters and buffers."""
    found = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _add(found, name, tensor)
    return found.hexdigest()


def digest_of_batches(batches: Iterable[Any]) -> str:
    """Return the SHA-256 of the tensors of batches."""
    found = hashlib.sha256()
    for number, batch in enumerate(batches):
        for leaf in tree_leaves(batch):
            if isinstance(leaf, Tensor):
                _add(found, str(number), leaf)
    return found.hexdigest()


def _add(found: Any, name: str, tensor: Tensor) -> None:
    found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
    if not tensor.is_meta:
        values = tensor.detach().to("cpu", memory_format=torch.contiguous_format).contiguous()
        found.update(bytes_of(values))
