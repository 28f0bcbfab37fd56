# SPDX-License-Identifier: BSD-3-Clause
"""``load_``: loads a quantized model from a file that need not be trusted.

Everything is checked before the model changes and before a kernel reads a value: the consistency of
the file, its modules by their constructors (on the meta device), names, shapes and dtypes against
the model, then the checksum of the data and the values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from ... import ops
from ..._table import one_line, placed, some
from ...nn.shared.subclassed import plain_type
from ..fused_ops import swap_fused
from ..layers import (
    further_names,
    inside,
    is_transposed,
    layer_of,
    layer_with,
    parents,
    weights_of,
)
from ..transaction import changes_model
from ..unpack import UNPACKED, unpack_modules
from ..view import check_model, paths_of
from .disk import open_file
from .manifest import Manifest, StoredModule, is_whole, parse_manifest
from .meta import Built, check_alike, check_constants, put, registered
from .packing import check_spare_bits, packed_size, place_of, unpack
from .tensor_file import Entry, Header, on_meta, read_header, read_tensors

_CALLER = "baraquant.load_"
_CPU = torch.device("cpu")


@changes_model
def load_(model: nn.Module | Callable[[], nn.Module], path: str | os.PathLike[str]) -> nn.Module:
    """Load a file of :func:`baraquant.save` into a float model, which becomes a quantized one.

    The previous values of the model do not matter. Each tensor goes to the device of the one that
    it replaces. It is best to give a function that builds the model: this takes no memory for
    weights that are discarded, and has everything that a constructor computes. A model that is
    given keeps all of its weights until the end, so that an error of any kind, also an interrupt or
    one of its own hooks, leaves it as it was: the peak is the float model and all that is in the
    file. A model on the meta device is filled too, on the CPU; plain tensors on the meta device,
    which are not buffers, are an error. Buffers that are in no state dict get the values in the
    file if shape and dtype are the model's.

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
    called = Path(path).name
    built = Built(model, _CALLER)
    model = built.model
    check_model(model, _CALLER)
    try:
        with open_file(path) as file:
            header = read_header(file)
            if "baraquant" not in header.metadata:
                raise ValueError(
                    "expected a file of baraquant.save, but it is a safetensors file without its "
                    "configuration"
                )
            manifest = parse_manifest(header.metadata["baraquant"])
            metas = _meta_tensors(header.tensors, manifest)
            swapped = {*manifest.unpacked, *manifest.modules, *manifest.shared_modules}
            swap_fused(model, _CALLER, manifest.fused)
            unpack_modules(model, _CALLER, lambda _, name: name in swapped)
            check_fits(model, manifest, metas)
            values = _read(file, header, manifest)
        modules = _build(built, manifest, values)
        for name in manifest.channels_last:
            modules[name].channels_last = modules[name].qweight.dim() > 3
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_CALLER}: {called}: {one_line(str(error))}") from error
    constants = {name: values[stored] for name, stored in manifest.constants.items()}
    put(model, _CALLER, modules, values, constants)
    return model


def _read(file: BinaryIO, header: Header, manifest: Manifest) -> dict[str, Tensor]:
    """Read all tensors, shared ones as the same object, and check the checksum."""
    stored = read_tensors(file, header)
    if not is_whole(manifest.text, stored):
        raise ValueError("expected the data that was saved, but its checksum differs: damaged")
    for path, module in manifest.modules.items():
        for name, shape in module.packed.items():
            full = f"{path}.{name}"
            if full in stored:
                stored[full] = _integers(full, stored[full], module.weight_bits, shape)
    stored |= {alias: stored[name] for alias, name in manifest.shared_tensors.items()}
    return dict(stored)


def _integers(name: str, packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    with placed(name):
        check_spare_bits(packed, bits, math.prod(shape))
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
    own = by_module(manifest, values)
    for path, stored in manifest.modules.items():
        modules[path] = build_module(path, stored, own[path], at[path])
        with placed(path):
            stored.form.check_values(modules[path])
    return modules


# ---- Whether a file fits a model: on the meta device, without the data --------------------------


def _meta_tensors(entries: dict[str, Entry], manifest: Manifest) -> dict[str, Tensor]:
    """Return the tensors of a file on the meta device, by all of their names."""
    tensors = {name: on_meta(name, entry.shape, entry.dtype) for name, entry in entries.items()}
    packed = [
        (f"{path}.{name}", shape, stored)
        for path, stored in manifest.modules.items()
        for name, shape in stored.packed.items()
    ]
    for name, shape, stored in packed:
        _check_packed(name, entries.get(name), shape, stored)
        if name in tensors:
            tensors[name] = _unpacked(name, shape)
    for alias, name in manifest.shared_tensors.items():
        if name not in tensors or alias in tensors:
            raise ValueError(
                f"{alias}: expected to be the same tensor as {name}, but the file has "
                f"{'both' if alias in tensors else 'none'}"
            )
    tensors |= {alias: tensors[name] for alias, name in manifest.shared_tensors.items()}
    for name, _, _ in packed:
        if name not in tensors:
            path, _, own = name.rpartition(".")
            raise ValueError(f"{path}: expected a tensor {own}, but there is none")
    return tensors


def _unpacked(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return what a string of bits becomes: int8, or two integers in a byte for ``packed``."""
    if not name.endswith(".packed"):
        return on_meta(name, shape, torch.int8)
    if len(shape) != 2:
        raise ValueError(f"{name}: expected a shape of two dimensions, but got {list(shape)}")
    return on_meta(name, (shape[0], -(-shape[1] // 2)), torch.uint8)


def by_module(manifest: Manifest, tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each module by their names in it; one walk, as a file may have many."""
    found: dict[str, dict[str, Tensor]] = {path: {} for path in manifest.modules}
    longest = max(map(len, found))
    for name, tensor in tensors.items():
        for path in parents(name[: longest + 1]):
            own = name[len(path) + 1 :]
            if path in found and own.split(".", 1)[0] not in manifest.modules[path].further:
                found[path][own] = tensor
    return found


def build_module(
    path: str, stored: StoredModule, own: dict[str, Tensor], like: nn.Module
) -> nn.Module:
    """Build the module of a path from its tensors; it replaces a module of the model."""
    try:
        return stored.form.build(stored.options, own, like)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _check_packed(
    name: str, entry: Entry | None, shape: tuple[int, ...], stored: StoredModule
) -> None:
    bits = stored.weight_bits
    if not 2 <= bits <= 7:
        raise ValueError(f"{name}: expected a width of 2 to 7 bits for packed integers, not {bits}")
    if entry is None:
        return  # another module's tensor, or missing, which is noticed later
    size = packed_size(math.prod(shape), bits)
    if entry.dtype != torch.uint8 or entry.shape != (size,):
        raise ValueError(
            f"{name}: expected {size} bytes for packed integers of shape {list(shape)}, but got "
            f"{entry.dtype} {list(entry.shape)}"
        )


def check_fits(model: nn.Module, manifest: Manifest, metas: dict[str, Tensor]) -> None:
    """Check the file's modules, and all its tensors, against the model."""
    paths = paths_of(model)
    at = dict(model.named_modules(remove_duplicate=False))
    for path in sorted(manifest.unpacked):
        if type(at.get(path)) not in UNPACKED.values():
            got = type(at[path]).__name__ if path in at else "no such module"
            names = ", ".join(sorted({kind.__name__ for kind in UNPACKED}))
            raise ValueError(f"{path}: expected a module of {names}, but the model has {got}")
    own = by_module(manifest, metas)
    shared: dict[str, list[str]] = {path: [path] for path in manifest.modules}
    for alias, path in manifest.shared_modules.items():
        shared.setdefault(path, []).append(alias)
    built: dict[str, nn.Module] = {}
    for path, stored in manifest.modules.items():
        _check_kind(path, at.get(path), stored)
        built[path] = build_module(path, stored, own[path], at[path])
        _check_place(path, at[path], stored, built[path])
        if sorted(shared[path]) != sorted(paths[id(at[path])]):
            raise ValueError(
                f"{path}: expected a module shared by {some(sorted(shared[path]), 9)}, but the "
                f"model's is shared by {some(sorted(paths[id(at[path])]), 9)}"
            )
    unknown = set(manifest.shared_modules.values()) - manifest.modules.keys()
    if unknown:
        raise ValueError(f"{min(unknown)}: expected a module of the file, but there is none")
    for path, name in manifest.shared_modules.items():
        for key in built[name].state_dict():
            if manifest.shared_tensors.get(f"{path}.{key}") is None:
                raise ValueError(f"{path}.{key}: expected to be the tensor of {name}")
    _check_tensors(model, manifest, metas)


def _check_kind(path: str, module: nn.Module | None, stored: StoredModule) -> None:
    """Check that the module of a path is of a kind that can become the stored one."""
    name = f"{stored.form.module.__name__} of the file"
    expected = f"{path}: expected a {layer_with(stored.form).name} for the {name}"
    if module is None:
        raise ValueError(f"{expected}, but the model has no such module")
    layer = layer_of(module)
    is_same = plain_type(module) is stored.form.module
    if not is_same and (layer is None or stored.form not in layer.forms):
        raise ValueError(f"{expected}, but the model has a {type(module).__name__}")


def _check_place(path: str, module: nn.Module, stored: StoredModule, quantized: nn.Module) -> None:
    is_same = plain_type(module) is stored.form.module
    layer = layer_of(module) or layer_with(stored.form)
    for size, own in layer.sizes.items():
        wanted, got = getattr(quantized, size), getattr(module, size if is_same else own)
        if wanted != got:
            raise ValueError(
                f"{path}: expected {size} to be {wanted}, as in the file, but the model has {got}"
            )
    if further_names(module) != stored.further:
        raise ValueError(
            f"{path}: expected a module with {sorted(stored.further)} beside the layer's own "
            f"tensors, as in the file, but the model's has {sorted(further_names(module))}"
        )
    bias, has_bias = getattr(quantized, "bias", None), getattr(module, "bias", None)
    if (bias is None) != (has_bias is None):
        raise ValueError(
            f"{path}: expected {'no bias' if bias is None else 'a bias'}, as in the file, but the "
            f"model has {'one' if bias is None else 'none'}"
        )
    transposed = stored.options.get("transposed", False)
    if transposed != is_transposed(module):
        raise ValueError(
            f"{path}: expected transposed to be {not transposed} for a {type(module).__name__}, "
            f"but got {transposed}"
        )
    dtype = stored.options["dtype"]
    if is_same:
        return
    model_dtype = weights_of(module)[0].dtype
    if dtype != model_dtype:
        raise ValueError(
            f"{path}: expected a model of {dtype}, as in the file, but it is {model_dtype}; "
            f"convert it first: model.to({dtype})"
        )


def _check_tensors(model: nn.Module, manifest: Manifest, metas: dict[str, Tensor]) -> None:
    at = dict(model.named_modules(remove_duplicate=False))
    quantized = {path: at[path] for path in (*manifest.modules, *manifest.shared_modules)}
    is_inside = inside(quantized)
    wanted = {n: t for n, t in model.state_dict().items() if not is_inside(n)}
    constants = set(manifest.constants.values()) - wanted.keys()
    given = {n: t for n, t in metas.items() if not is_inside(n) and n not in constants}
    if wanted.keys() != given.keys():
        raise ValueError(
            f"expected the tensors of the model, but {_few(wanted.keys() - given.keys())} missing "
            f"in the file, and {_few(given.keys() - wanted.keys())} unknown to the model"
        )
    for name, tensor in wanted.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{name}: expected a model of tensors, but got {type(tensor).__name__}"
            )
        check_alike(name, tensor, given[name])
    for name, tensor_name in manifest.constants.items():
        if tensor_name not in metas:
            raise ValueError(
                f"{name}: expected a tensor {tensor_name} in the file, but it has none"
            )
    buffers = {name: metas[stored] for name, stored in manifest.constants.items()}
    check_constants(model, buffers, is_inside, "baraquant.load_(lambda: Model(...), path)")
    _check_ties(model, manifest, is_inside)


def _check_ties(model: nn.Module, manifest: Manifest, is_inside: Callable[[str], bool]) -> None:
    """Check that the file shares what the model does, and besides only tensors of one kind.

    These are parameters of the same name in their modules, or tensors of quantized layers.
    """
    tensors, parameters = registered(model), model.named_parameters(remove_duplicate=False)
    outside = {name for name, _ in parameters if not is_inside(name)}
    for alias, name in sorted(manifest.shared_tensors.items()):
        pair = alias, name
        are_alike = len({one.rpartition(".")[2] for one in pair}) == 1 and (
            all(map(is_inside, pair)) or outside.issuperset(pair)
        )
        if not are_alike and not _are_one(tensors.get(alias), tensors.get(name)):
            raise ValueError(
                f"{alias}: expected a tensor of its own, as in the model, but the file has that of "
                f"{name}"
            )
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not is_inside(name):
            groups.setdefault(id(parameter), []).append(name)
    for names in groups.values():
        firsts = {manifest.shared_tensors.get(name, name) for name in names}
        if len(firsts) > 1:
            raise ValueError(
                f"{names[0]}: expected one tensor for {', '.join(names)}, which the model shares, "
                f"but the file has {len(firsts)}"
            )


def _are_one(tensor: Tensor | None, other: Tensor | None) -> bool:
    """Whether a model has one tensor for two names, as an object or in memory."""
    if tensor is None or other is None or tensor.is_meta:
        return tensor is not None and tensor is other
    return place_of(tensor, None) == place_of(other, None)


def _few(names: set[str]) -> str:
    listed = sorted(names)
    verb = "is" if len(listed) == 1 else "are"
    return f"{some(listed, 3) or 'none'} {verb}"
