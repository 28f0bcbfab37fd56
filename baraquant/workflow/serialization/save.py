# SPDX-License-Identifier: BSD-3-Clause
"""``save``: a quantized model as one safetensors file."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from baraquant._C import build_info

from ..._table import placed
from ...nn.shared.subclassed import plain_type
from ..fused_ops import FUSED
from ..layers import form_of, further_names, inside, is_prepared
from ..unpack import UNPACKED
from ..view import check_whole
from .disk import new_file
from .manifest import FORMAT, write_manifest
from .meta import other_buffers
from .packing import pack, packed_shapes, place_of
from .tensor_file import DTYPES, bytes_of, import_safetensors, write_tensors

_CALLER = "baraquant.save"
_STORABLE = set(DTYPES.values())


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a quantized model to one safetensors file that also holds its configuration as JSON.

    The file contains no code and no pickle. Integers of fewer than eight bits take their true
    width. A tensor that several modules share is written once. Buffers that the state dict leaves
    out, such as rotary frequencies, are written too: a model on the meta device gets them from the
    file. The file appears whole or not at all, when it is on the disk, with the permissions that
    ``open(path, "wb")`` would give it. Several threads and processes may save to one path.

    Args:
        model: A model from :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_`, on any
            device.
        path: The file to write; an existing file is replaced.

    Raises:
        ValueError: The model has no quantized module, has prepared modules, or has a tensor that
            cannot be stored. The message has its path.
        ImportError: safetensors is not installed.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> baraquant.save(model, "model.safetensors")
        >>> fresh = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> fresh = baraquant.load_(fresh, "model.safetensors")
    """
    import_safetensors(_CALLER)
    if isinstance(model, nn.Module):
        for name, module in model.named_modules():
            check_whole(module, _CALLER, f"{name}: " if name else "")
    modules, shared_modules = _quantized(model)
    entries = {name: _entry(name, module) for name, module in modules.items()}
    at = modules | {alias: modules[name] for alias, name in shared_modules.items()}
    narrow = {
        f"{name}.{tensor}": module
        for name, module in at.items()
        for tensor in packed_shapes(module)
    }
    widths = {name: module.weight_bits for name, module in narrow.items()}
    tensors, shared_tensors = _tensors(model, widths)
    stored = {
        name: pack(narrow[name].qweight if name.endswith(".packed") else tensor, widths[name])
        if name in narrow
        else tensor.cpu().contiguous()
        for name, tensor in tensors.items()
    }
    constants = add_constants(model, stored, inside(at))
    named = list(model.named_modules(remove_duplicate=False))
    plain = {
        "format": FORMAT,
        "writer": f"baraquant {build_info()['version']}",
        "modules": entries,
        "shared_modules": shared_modules,
        "shared_tensors": shared_tensors,
        "constants": constants,
        "unpacked": [name for name, module in named if type(module) in UNPACKED.values()],
        "fused": [name for name, module in named if type(module) in FUSED],
        "channels_last": [
            name for name, module in modules.items() if getattr(module, "channels_last", False)
        ],
    }
    metadata = {"baraquant": write_manifest(plain, stored)}
    with new_file(_CALLER, path) as partial:
        write_tensors(partial, stored, metadata, _CALLER)


def _entry(name: str, module: nn.Module) -> dict[str, Any]:
    """Return the configuration's entry for a module, whose values are checked first."""
    form = form_of(module)
    assert form is not None
    with placed(_CALLER, name):
        form.check_values(module)
        options = form.read(module)
    return {
        "class": plain_type(module).__name__,
        "options": options,
        "packed": packed_shapes(module),
        "further": sorted(further_names(module)),
    }


def _quantized(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the quantized modules by their first paths, and the other paths of shared ones."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{_CALLER}: expected a Module, but got {type(model).__name__}")
    modules: dict[str, nn.Module] = {}
    shared: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if form_of(module) is None:
            if is_prepared(module):
                raise ValueError(
                    f"{_CALLER}: {name}: expected a converted model, but {type(module).__name__} "
                    "is prepared for training; call baraquant.qat.convert_ first"
                )
            continue
        if name == "":
            raise ValueError(
                f"{_CALLER}: expected a model that contains {type(module).__name__}, but got one "
                "itself; wrap it in nn.Sequential"
            )
        if id(module) in first:
            shared[name] = first[id(module)]
        else:
            first[id(module)] = name
            modules[name] = module
    if not modules:
        raise ValueError(
            f"{_CALLER}: expected a quantized model, but got a {type(model).__name__} without a "
            "quantized module"
        )
    return modules, shared


def _tensors(model: nn.Module, widths: dict[str, int]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of the state dict, each once, and the names that share a tensor.

    If modules share a weight but not its width, each width has its own copy, because packing
    differs.
    """
    tensors: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        if type(tensor) not in (Tensor, nn.Parameter):
            raise ValueError(
                f"{_CALLER}: {name}: expected a plain tensor, but got {type(tensor).__name__}"
            )
        if tensor.layout != torch.strided or tensor.dtype not in _STORABLE or tensor.is_meta:
            raise ValueError(
                f"{_CALLER}: {name}: expected a dense tensor of a common dtype, with data, but got "
                f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            )
        place = place_of(tensor, widths.get(name))
        if tensor.numel() > 0 and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            tensors[name] = tensor.detach()
    return tensors, shared


def add_constants(
    model: nn.Module, stored: dict[str, Tensor], is_inside: Callable[[str], bool]
) -> dict[str, str]:
    """Add the buffers that are in no state dict to ``stored``; return their names there.

    Buffers with the same values are stored once, for example a mask that every layer has.
    """
    constants: dict[str, str] = {}
    known: dict[tuple[Any, ...], str] = {}
    for name, buffer in other_buffers(model, is_inside).items():
        is_plain = type(buffer) is Tensor and buffer.layout == torch.strided and not buffer.is_meta
        if not is_plain or buffer.dtype not in _STORABLE:
            continue
        values = buffer.detach().cpu().contiguous().clone()
        key = (hashlib.sha256(bytes_of(values)).digest(), values.dtype, values.shape)
        if key not in known:
            known[key] = next(
                free for n in itertools.count() if (free := f"constant:{n}") not in stored
            )
            stored[known[key]] = values
        constants[name] = known[key]
    return constants
