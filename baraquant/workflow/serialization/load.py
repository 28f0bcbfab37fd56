# SPDX-License-Identifier: BSD-3-Clause
"""``load_``: loads a quantized model from a file that need not be trusted.

Everything is checked before the model changes and before a kernel reads a value: the consistency of
the file, its modules by their constructors (on the meta device), names, shapes and dtypes against
the model, then the checksum of the data and the values.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ... import ops
from ..fused_ops import with_fused_ops
from ..inference_mode import makes_normal_tensors
from ..layers import parents
from ..unpack import unpacked
from ..view import check_model
from .data import import_safetensors, read_tensors
from .fits import Metas, build_module, check_fits
from .header import Header, read_header
from .manifest import Manifest, is_whole, parse_manifest
from .meta import Built, put
from .packing import check_spare_bits, unpack

_CALLER = "baraquant.load_"
_CPU = torch.device("cpu")
_LONGEST = 900  # characters of a message
_HALF = 440


@makes_normal_tensors
def load_(model: nn.Module | Callable[[], nn.Module], path: str | os.PathLike[str]) -> nn.Module:
    """Load a file of :func:`baraquant.save` into a float model, which becomes a quantized one.

    The previous values of the model do not matter. Each tensor goes to the device of the one that
    it replaces. It is best to give a function that builds the model: this takes no memory for
    weights that are discarded, and has everything that a constructor computes. A model that is
    given keeps all of its weights until the whole file is read and checked, so that an error leaves
    it as it was: the peak is the float model and all that is in the file. A model on the meta
    device is filled too, on the CPU; plain tensors on the meta device, which are not buffers, are
    an error. Buffers that are in no state dict get the values in the file if shape and dtype are
    the model's.

    Args:
        model: A float model of the same architecture as the quantized one; it is changed in place.
            Or a function that builds one: ``lambda: Model(config)``.
        path: The file.

    Returns:
        The model.

    Raises:
        ValueError: The file is damaged, of another kind, of another format, or does not fit the
            model. The message has the path of the module or the tensor. The model is unchanged.
        TypeError: ``model`` is neither a module nor a function that returns one.
        ImportError: safetensors is not installed.
        OSError: The file cannot be read.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> baraquant.save(model, "model.safetensors")
        >>> fresh = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> x = torch.randn(3, 4)
        >>> torch.equal(baraquant.load_(fresh, "model.safetensors")(x), model(x))
        True
    """
    file = Path(path)
    import_safetensors(_CALLER)
    built = Built(model, _CALLER)
    model = built.model
    check_model(model, _CALLER)
    try:
        header = read_header(file)
        manifest = _manifest(header)
        metas = Metas(header.tensors, manifest)
        swapped = {*manifest.unpacked, *manifest.modules, *manifest.shared_modules}
        with (
            with_fused_ops(model, _CALLER, manifest.fused),
            unpacked(model, _CALLER, lambda _, name: name in swapped),
        ):
            check_fits(model, manifest, metas)
            values = _read(file, header, manifest)
            modules = _build(built, manifest, values)
            for path in manifest.channels_last:
                modules[path].channels_last = modules[path].qweight.dim() > 3
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_CALLER}: {file.name}: {_shown(str(error))}") from error
    constants = {name: values[stored] for name, stored in manifest.constants.items()}
    put(model, _CALLER, modules, values, constants)
    return model


def _manifest(header: Header) -> Manifest:
    if "baraquant" not in header.metadata:
        raise ValueError(
            "expected a file of baraquant.save, but it is a safetensors file without its "
            "configuration"
        )
    return parse_manifest(header.metadata["baraquant"])


def _shown(text: str) -> str:
    """Return a message in one line of bounded length; names of a file may be anything."""
    text = re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)
    return text if len(text) <= _LONGEST else f"{text[:_HALF]}...{text[-_HALF:]}"


def _read(file: Path, header: Header, manifest: Manifest) -> dict[str, Tensor]:
    """Read all tensors, shared ones as the same object, and check the checksum."""
    stored = read_tensors(file, header.tensors, _CALLER)
    if not is_whole(manifest.text, stored):
        raise ValueError("expected the data that was saved, but its checksum differs: damaged")
    for path, module in manifest.modules.items():
        for name, shape in module.packed.items():
            full = f"{path}.{name}"
            if full in stored:
                stored[full] = _unpacked(full, stored[full], module.weight_bits, shape)
    stored |= {alias: stored[name] for alias, name in manifest.shared_tensors.items()}
    return dict(stored)


def _unpacked(name: str, packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    try:
        check_spare_bits(packed, bits, math.prod(shape))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    integers = unpack(packed, bits, shape)
    return ops.pack_int4(integers) if name.endswith(".packed") else integers


def _build(built: Built, manifest: Manifest, values: dict[str, Tensor]) -> dict[str, nn.Module]:
    """Build the modules with their data on their devices, and move ``values`` to their devices."""
    devices = built.devices()
    at = dict(built.model.named_modules(remove_duplicate=False))
    quantized = {*manifest.modules, *manifest.shared_modules}
    device_of: dict[str, torch.device] = {}  # that of the first tensor of a module
    for name, device in devices.items():
        for path in parents(name):
            if path in quantized:
                device_of.setdefault(path, device)
    moved: dict[tuple[int, torch.device], Tensor] = {}
    originals = dict(values)
    for name, tensor in originals.items():
        device = devices.get(name)
        if device is None:  # of a quantized module, or of a buffer on the meta device
            places = [device_of[p] for p in reversed(parents(name)) if p in device_of]
            device = places[0] if places else _CPU
        key = (id(tensor), device)
        values[name] = moved.setdefault(key, tensor.to(device))
    modules = {}
    for path, stored in manifest.modules.items():
        modules[path] = build_module(path, stored, values, at[path])
        try:
            stored.form.check_values(modules[path])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return modules
