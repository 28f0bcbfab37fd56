# SPDX-License-Identifier: BSD-3-Clause
"""The JSON that ``baraquant.save`` writes in addition to the tensors: the classes of the modules.

``{"channels_last": [path], "constants": {name: name}, "format": 1, "fused": [path],
"modules": {path: {"class", "further", "options", "packed"}}, "shared_modules": {path: path},
"shared_tensors": {name: name}, "unpacked": [path], "writer": text, "sha256": text}``.

``packed`` has the shapes of the int8 tensors that the file holds as strings of bits
(:mod:`.packing`; their width is the ``weight_bits`` of the options). Integers of two or three bits
that are ``packed`` in memory are among them, by the shape of the int8 that they stand for. All
other tensors are stored unchanged. ``further`` names what a subclass has in addition to the tensors
of its layer.
``constants`` are the buffers that are in no state dict, such as rotary frequencies, each with the
name of a tensor in the file: a model on the meta device has no other source for them. ``unpacked``
are the attentions and recurrent modules that were unpacked into modules of linear layers, and
``fused`` the norms and activations that :func:`baraquant.use_fused_ops_` swapped.
``channels_last`` are the convolutions whose floating weight has that memory format: a reader that
leaves it out gets the same numbers, up to PyTorch's algorithm.

The checksum is the last member, ``, "sha256": "<64 digits>"}``, so that a reader cuts it off. It is
the SHA-256 of the bytes of the text before it, and of each tensor, in the order of their names: the
name, the dtype as safetensors names it and the sizes as decimal numbers, each with a zero byte
behind it, then the bytes that are stored. It finds damage; it is not a signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from ..._table import placed, shown
from ...nn.inference.conv import Convolution
from ..layers import form_named, form_names
from ..served import Form
from .tensor_file import DTYPES, bytes_of, is_sizes, parse_json

FORMAT = 1
_CHECKSUM = ', "sha256": "{}"}}'
_LENGTH = len(_CHECKSUM.format("0" * 64))
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class StoredModule:
    """A module of a file.

    Attributes:
        form: Its class, and how this is stored.
        options: The constructor's plain arguments.
        packed: The shapes of the tensors that are stored as strings of bits.
        further: What a subclass registers beside the tensors of its layer.
    """

    form: Form
    options: dict[str, Any]
    packed: dict[str, tuple[int, ...]]
    further: set[str]

    @property
    def weight_bits(self) -> int:
        """The width of the integers; 8 for a class without the option, of which none is packed."""
        bits: int = self.options.get("weight_bits", 8)
        return bits


@dataclass(frozen=True)
class Manifest:
    """The configuration in a file, checked as far as possible without the model.

    Attributes:
        modules: The quantized modules by their paths.
        shared_modules: Further paths of shared modules, and their first path.
        shared_tensors: Further names of shared tensors, and their first name.
        constants: The tensors of the file that hold buffers of no state dict, by the names of the
            buffers.
        unpacked: The paths of the modules that were unpacked into linear layers.
        fused: The paths of the norms and activations that compute with fused ops.
        channels_last: The paths of the convolutions whose floating weight has that memory format.
        text: The JSON.
    """

    modules: dict[str, StoredModule]
    shared_modules: dict[str, str]
    shared_tensors: dict[str, str]
    constants: dict[str, str]
    unpacked: set[str]
    fused: set[str]
    channels_last: set[str]
    text: str


def parse_manifest(text: str) -> Manifest:
    """Parse and check the JSON that :mod:`.save` has written."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ValueError(f"expected its configuration to be JSON, but {error}") from None
    version = data.get("format") if isinstance(data, dict) else None
    if type(version) is not int or version != FORMAT:
        writer = data.get("writer") if isinstance(data, dict) else None
        raise ValueError(
            f"expected format {FORMAT}, but got {shown(version)}, which {shown(writer, 40)} has "
            "written"
        )
    keys = {field.name for field in fields(Manifest)} - {"text"} | {"format", "writer", "sha256"}
    if data.keys() != keys:
        got = shown(sorted(data), 200)
        raise ValueError(f"expected its configuration to have {sorted(keys)}, but got {got}")
    modules = data["modules"]
    if not isinstance(modules, dict) or not modules:
        raise ValueError("expected its configuration to name modules, but it names none")
    if not isinstance(data["writer"], str):
        raise ValueError(f"expected writer to be a text, but got {shown(data['writer'])}")
    manifest = Manifest(
        {path: _module(path, value) for path, value in modules.items()},
        _names("shared_modules", data["shared_modules"]),
        _names("shared_tensors", data["shared_tensors"]),
        _names("constants", data["constants"]),
        _paths("unpacked", data["unpacked"]),
        _paths("fused", data["fused"]),
        _paths("channels_last", data["channels_last"]),
        text,
    )
    for path in sorted(manifest.channels_last):
        stored = manifest.modules.get(path)
        if stored is None or not issubclass(stored.form.module, Convolution):
            raise ValueError(f"{path}: expected a convolution, as it is in channels_last")
    return manifest


def _module(path: str, value: Any) -> StoredModule:
    keys = {"class", "further", "options", "packed"}
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"{path}: expected {', '.join(sorted(keys))}, but got {shown(value)}")
    name, further, packed = value["class"], value["further"], value["packed"]
    if not _holds_texts(further):
        raise ValueError(f"{path}: expected further to hold names, but got {shown(further)}")
    form = form_named(name) if isinstance(name, str) else None
    if form is None:
        raise ValueError(
            f"{path}: expected a class of {', '.join(form_names())}, but got {shown(name)}; one of "
            "your own has to be registered first, by baraquant.register_layer"
        )
    if not isinstance(packed, dict) or not all(
        name in form.tensors and is_sizes(shape) for name, shape in packed.items()
    ):
        raise ValueError(f"{path}: expected packed to hold shapes, but got {shown(packed)}")
    with placed(path):
        options = form.parse(value["options"])
    shapes = {key: tuple(shape) for key, shape in packed.items()}
    return StoredModule(form, options, shapes, set(further))


def _holds_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _paths(what: str, value: Any) -> set[str]:
    if not _holds_texts(value):
        raise ValueError(f"expected {what} to hold paths, but got {shown(value)}")
    return set(value)


def _names(what: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise ValueError(f"expected {what} to hold names, but got {shown(value)}")
    for alias, name in value.items():
        if name in value:
            raise ValueError(f"{alias}: expected {what} to name the first of all, but got {name}")
    return value


def write_manifest(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the JSON that :func:`parse_manifest` reads: plain data, and the checksum."""
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False).removesuffix("}")
    return text + _checksum(text, tensors)


def is_whole(text: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the JSON of a file has the checksum of itself and of the tensors."""
    plain = text[:-_LENGTH]
    return text == plain + _checksum(plain, tensors)


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        for part in (name, _NAMES[tensor.dtype], *tensor.shape):
            total.update(f"{part}\0".encode())
        values = tensor.contiguous()  # lives as long as its bytes are read
        total.update(bytes_of(values))
    return _CHECKSUM.format(total.hexdigest())
