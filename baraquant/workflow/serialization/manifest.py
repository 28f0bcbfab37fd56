# SPDX-License-Identifier: BSD-3-Clause
"""The JSON that ``baraquant.save`` writes in addition to the tensors: the classes of the modules.

``{"format": 4, "writer": ..., "modules": {path: {"class", "options", "packed", "further"}},
"shared_modules": {path: path}, "shared_tensors": {name: name}, "constants": {name: name},
"unpacked": [path], "fused": [path], "sha256": ...}``.

``packed`` has the shapes of the int8 tensors that the file holds as strings of bits
(:mod:`.packing`; their width is the ``weight_bits`` of the options). Integers of two or three bits
that are ``packed`` in memory are among them, by the shape of the int8 that they stand for. All
other tensors are stored unchanged. ``further`` names what a subclass has in addition to the tensors
of its layer.
``constants`` are the buffers that are in no state dict, such as rotary frequencies, each with the
name of a tensor in the file: a model on the meta device has no other source for them. ``unpacked``
are the attentions and recurrent modules that were unpacked into modules of linear layers, and
``fused`` the norms and activations that :func:`baraquant.use_fused_ops_` swapped. The checksum
covers everything else and the tensors. It finds damage; it is not a signature.

Formats 1 to 3 had no ``fused``, and no ``rotate`` in the options of linear layers. Formats 1 and 2
had other names for two classes, and ``attentions`` instead of ``unpacked``. Format 1 had no
constants, and called the integers ``weight`` instead of ``qweight``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..forms import Form
from ..layers import form_named, form_names
from .data import bytes_of
from .header import is_sizes, parse_json

FORMAT = 4
# The entry beside this JSON with the paths of convolutions whose floating weight is channels_last.
# Readers that do not know it get the same numbers, up to PyTorch's algorithm.
CHANNELS_LAST = "channels_last"
# The current names of classes in formats 1 and 2.
_RENAMED = {
    "DequantizedLinear": "WeightOnlyLinear",
    "SmoothQuantLinear": "StaticQuantizedLinear",
}
_KEYS = {
    "constants",
    "format",
    "fused",
    "modules",
    "sha256",
    "shared_modules",
    "shared_tensors",
    "unpacked",
    "writer",
}


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
        names: The current names of tensors that have another name in the file.
        sha256: The checksum.
        plain: Everything except the checksum, as in the file.
    """

    modules: dict[str, StoredModule]
    shared_modules: dict[str, str]
    shared_tensors: dict[str, str]
    constants: dict[str, str]
    unpacked: set[str]
    fused: set[str]
    names: dict[str, str]
    sha256: str
    plain: dict[str, Any]


def parse_manifest(text: str) -> Manifest:
    """Parse and check the JSON that :mod:`.save` has written.

    Raises:
        ValueError: The format is newer, or the JSON is invalid.
    """
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ValueError(f"expected its configuration to be JSON, but {error}") from None
    version = data.get("format") if isinstance(data, dict) else None
    if type(version) is not int or version < 1:
        raise ValueError(f"expected a format of 1 or more, but got {version!r:.80}")
    if version > FORMAT:
        writer = data.get("writer")
        raise ValueError(
            f"expected format {FORMAT} at most, but got {version}: {writer!r:.40} has written it; "
            "update baraquant"
        )
    unpacked = "unpacked" if version > 2 else "attentions"
    keys = _KEYS - {"unpacked"} | {unpacked}
    keys -= {"constants"} if version < 2 else set()
    keys -= {"fused"} if version < 4 else set()
    if data.keys() != keys:
        raise ValueError(
            f"expected its configuration to have {sorted(keys)}, but got {sorted(data)!r:.200}"
        )
    modules = data["modules"]
    if not isinstance(modules, dict) or not modules:
        raise ValueError("expected its configuration to name modules, but it names none")
    if not isinstance(data["sha256"], str):
        raise ValueError(f"expected sha256 to be a text, but got {data['sha256']!r:.80}")
    shared_modules = _names("shared_modules", data["shared_modules"])
    shared_tensors = _names("shared_tensors", data["shared_tensors"])
    names: dict[str, str] = {}
    if version == 1:
        names = {f"{path}.weight": f"{path}.qweight" for path in (*modules, *shared_modules)}
        shared_tensors = {
            names.get(alias, alias): names.get(name, name) for alias, name in shared_tensors.items()
        }
    return Manifest(
        {path: _module(path, value, version) for path, value in modules.items()},
        shared_modules,
        shared_tensors,
        _names("constants", data["constants"]) if version > 1 else {},
        _paths(unpacked, data[unpacked]),
        _paths("fused", data.get("fused", [])),
        names,
        data["sha256"],
        {name: value for name, value in data.items() if name != "sha256"},
    )


def _module(path: str, value: Any, version: int) -> StoredModule:
    keys = {"class", "options", "packed", "further"} - ({"further"} if version < 3 else set())
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"{path}: expected {', '.join(sorted(keys))}, but got {value!r:.80}")
    further = value.get("further", [])
    if not isinstance(further, list) or not all(isinstance(name, str) for name in further):
        raise ValueError(f"{path}: expected further to hold names, but got {further!r:.80}")
    name, packed = value["class"], value["packed"]
    if version < 3 and isinstance(name, str):
        name = _RENAMED.get(name, name)
    form = form_named(name) if isinstance(name, str) else None
    if form is None:
        raise ValueError(
            f"{path}: expected a class of {', '.join(form_names())}, but got {name!r:.80}; one of "
            "your own has to be registered first, by baraquant.register_layer"
        )
    if version == 1 and isinstance(packed, dict):
        packed = {"qweight" if name == "weight" else name: s for name, s in packed.items()}
    if not isinstance(packed, dict) or not all(
        name in form.tensors and is_sizes(shape) for name, shape in packed.items()
    ):
        raise ValueError(f"{path}: expected packed to hold shapes, but got {packed!r:.80}")
    try:
        options = form.parse(value["options"], version)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    shapes = {key: tuple(shape) for key, shape in packed.items()}
    return StoredModule(form, options, shapes, set(further))


def _paths(what: str, value: Any) -> set[str]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise ValueError(f"expected {what} to hold paths, but got {value!r:.80}")
    return set(value)


def _names(what: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise ValueError(f"expected {what} to hold names, but got {value!r:.80}")
    for alias, name in value.items():
        if name in value:
            raise ValueError(f"{alias}: expected {what} to name the first of all, but got {name}")
    return value


def write_manifest(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the JSON that :func:`parse_manifest` reads.

    Args:
        plain: Everything except the checksum.
        tensors: All stored tensors, on the CPU.
    """
    return json.dumps({**plain, "sha256": digest(plain, tensors)}, sort_keys=True)


def digest(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the configuration and of all tensors, in the order of their names."""
    total = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        values = tensor.contiguous()  # lives as long as its bytes are read
        total.update(bytes_of(values))
    return total.hexdigest()
