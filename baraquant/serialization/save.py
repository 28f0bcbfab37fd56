# SPDX-License-Identifier: BSD-3-Clause
"""``save``: a quantized model as one safetensors file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import MultiheadAttention
from ..nn._quantizers import QuantizesWeight
from .header import DTYPES
from .kinds import KINDS, check_values
from .manifest import FORMAT, write_manifest
from .packing import pack

_CALLER = "baraquant.save"
_STORABLE = set(DTYPES.values())


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a quantized model to one file: safetensors, with its configuration as JSON in there.

    Nothing in it is code, and no pickle. Integers of fewer than eight bits take their true width.
    A tensor that several modules share is written once. The file appears whole or not at all.

    Args:
        model: What :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_` made, on any
            device.
        path: Where to; an existing file is replaced.

    Raises:
        ValueError: The model has no quantized module, is still prepared for training, or has a
            tensor that cannot be stored. The message has its path.
        ImportError: safetensors is not installed.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> baraquant.save(model, "model.safetensors")
        >>> fresh = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> fresh = baraquant.load(fresh, "model.safetensors")
    """
    save_file = import_safetensors(_CALLER).torch.save_file
    modules, shared_modules = _quantized(model)
    packed: dict[str, int] = {}  # names of tensors, and their bits
    entries: dict[str, Any] = {}
    for name, module in modules.items():
        try:
            check_values(module)
        except ValueError as error:
            raise ValueError(f"{_CALLER}: {name}: {error}") from None
        entry = {
            "class": type(module).__name__,
            "options": KINDS[type(module).__name__].read(module),
        }
        is_packed = module.weight_bits < 8
        entry["packed"] = {"weight": list(module.weight.shape)} if is_packed else {}
        if is_packed:
            packed[f"{name}.weight"] = module.weight_bits
        entries[name] = entry
    tensors, shared_tensors = _tensors(model)
    for name, bits in packed.items():
        # Two modules that share a weight agree on its width, or it is stored for each.
        first = shared_tensors.get(name)
        if first is not None and packed.get(first) != bits:
            tensors[name] = tensors[first]
            del shared_tensors[name]
    stored = {
        name: pack(tensor, packed[name]) if name in packed else tensor.cpu().contiguous()
        for name, tensor in tensors.items()
    }
    plain = {
        "format": FORMAT,
        "writer": f"baraquant {_version()}",
        "modules": entries,
        "shared_modules": shared_modules,
        "shared_tensors": shared_tensors,
        "attentions": [
            name
            for name, module in model.named_modules(remove_duplicate=False)
            if type(module) is MultiheadAttention
        ],
    }
    metadata = {"baraquant": write_manifest(plain, stored)}
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        save_file(stored, partial, metadata)
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def import_safetensors(caller: str) -> Any:
    """Import ``safetensors`` with its ``torch``, or say how to get it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f"{caller}: expected safetensors; pip install safetensors") from error
    return safetensors


def _version() -> str:
    from .. import __version__

    return __version__


def _quantized(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the quantized modules by their first path, and the other paths of shared ones."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{_CALLER}: expected a Module, but got {type(model).__name__}")
    modules: dict[str, nn.Module] = {}
    shared: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        kind = KINDS.get(type(module).__name__)
        if kind is None or type(module) is not kind.module:
            if isinstance(module, QuantizesWeight):
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


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of the state dict, each once, and the names that share one of them."""
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
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() > 0 and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            tensors[name] = tensor.detach()
    return tensors, shared
