# SPDX-License-Identifier: BSD-3-Clause
"""Reads a folder of compressed-tensors into a float model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn._experts import is_experts
from ..workflow.layers import inside, is_converted, is_prepared, layer_of
from ..workflow.replace import check_model
from ..workflow.serialization.data import read_tensors
from ..workflow.serialization.header import Entry, parse_json, read_header
from ..workflow.serialization.meta import Built, check_constants
from ..workflow.serialization.place import put, registered
from ._ct_config import CtConfig, read_config
from ._ct_read_experts import Files, StoredExperts
from ._ct_scheme import METHOD, Scheme
from ._ct_tensors import TENSORS, build_layer

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def load_folder(given: nn.Module | Callable[[], nn.Module], folder: Path, caller: str) -> nn.Module:
    """Load a folder; the model is unchanged if an error is raised."""
    built = Built(given)
    model = built.model
    check_model(model, caller)
    _check_float(model, caller)
    config = read_folder_config(folder, caller)
    try:
        files = _read_headers(folder)
        stored = {name: entry for file in files.values() for name, entry in file.items()}
        in_memory = Files(model, config)
        entries = in_memory.entries(stored)
        plan = _plan(model, config, entries, in_memory.quantized())
        metas = {n: torch.empty(e.shape, dtype=e.dtype, device="meta") for n, e in stored.items()}
        _build(plan, in_memory.values(metas), caller)
        for one in in_memory.quantized():
            one.built(metas, caller)
        quantized = {path: layer.module for layer in plan.values() for path in layer.paths}
        quantized |= {one.path: one.module for one in in_memory.quantized()}
        is_inside = inside(quantized)
        _check_rest(model, plan, entries, is_inside)
        check_constants(model, {}, is_inside, f"{caller}(lambda: Model(...), folder)")
        read = _read(folder, files, caller)
        values = in_memory.values(read)
        _check_ties(model, plan, values, is_inside)
        modules = _build(plan, values, caller)
        experts = {one.path: one.built(read, caller) for one in in_memory.quantized()}
    except ValueError as error:
        text = str(error).removeprefix(f"{caller}: ")
        raise ValueError(f"{caller}: {text}") from error
    _place(built, plan, modules, experts, values, caller)
    return model


def read_folder_config(folder: Path, caller: str) -> CtConfig:
    """Read the configuration of a folder.

    Raises:
        NotADirectoryError: There is no such folder.
        FileNotFoundError: It has no config.json.
        ValueError: config.json is damaged, or is not that of a model in this format.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{caller}: expected a folder, but {folder} is none")
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{caller}: expected a file config.json in {folder}")
    try:
        config = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{caller}: expected config.json to be JSON, but {error}") from None
    given = config.get("quantization_config") if isinstance(config, dict) else None
    given = (
        config.get("compression_config") if given is None and isinstance(config, dict) else given
    )
    if given is None:
        raise ValueError(
            f"{caller}: expected config.json with a quantization_config of {METHOD}, but it has "
            "none: the folder holds a floating model"
        )
    return read_config(given, caller)


def _check_float(model: nn.Module, caller: str) -> None:
    for path, module in model.named_modules():
        if is_prepared(module) or is_converted(module):
            raise ValueError(
                f"{caller}: {path}: expected a float model, but it is "
                f"{'prepared' if is_prepared(module) else 'quantized'} already; build a new one"
            )


def _read_headers(folder: Path) -> dict[str, dict[str, Entry]]:
    """Return the entries of each file, checked against the index if there is one."""
    index = folder / _INDEX
    if not index.is_file():
        if not (folder / _SINGLE).is_file():
            raise FileNotFoundError(
                f"expected {_SINGLE} or {_INDEX} in {folder}, but there is neither"
            )
        return {_SINGLE: _header(folder, _SINGLE)}
    try:
        plain = parse_json(index.read_bytes())
    except ValueError as error:
        raise ValueError(f"{_INDEX}: expected JSON, but {error}") from None
    weight_map = plain.get("weight_map") if isinstance(plain, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{_INDEX}: expected an object weight_map with the file of each tensor")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise ValueError(f"{_INDEX}: {name}: expected the name of a file, but got {file!r:.60}")
    files = {file: _header(folder, file) for file in sorted(set(weight_map.values()))}
    for file, entries in files.items():
        named = {name for name, home in weight_map.items() if home == file}
        if named != entries.keys():
            name = min(named ^ entries.keys())
            where = "in the index only" if name in named else "in the file only"
            raise ValueError(
                f"{_INDEX}: {file}: expected the tensors of the file, but {name} is {where}"
            )
    return files


def _header(folder: Path, file: str) -> dict[str, Entry]:
    if not (folder / file).is_file():
        raise FileNotFoundError(f"expected a file {file} in {folder}, but there is none")
    try:
        return read_header(folder / file, "a safetensors file").tensors
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


@dataclass
class _Layer:
    """A layer that will be swapped: its float module, its scheme, and all of its paths."""

    module: nn.Module
    scheme: Scheme
    paths: list[str]
    home: str = ""  # the path under which the file has it


def _plan(
    model: nn.Module,
    config: CtConfig,
    entries: dict[str, Entry],
    experts: list[StoredExperts],
) -> dict[int, _Layer]:
    plan: dict[int, _Layer] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        scheme = config.scheme_of(path, module)
        if scheme is None or is_experts(module):
            continue
        if layer_of(module) is None:
            # A target may be a class that also names modules without a weight of their own.
            if not any(name.rpartition(".")[0] == path for name in entries):
                continue
            raise ValueError(f"{path}: baraquant has no quantized {type(module).__name__}")
        plan.setdefault(id(module), _Layer(module, scheme, [])).paths.append(path)
    for layer in plan.values():
        stored = [p for p in layer.paths if f"{p}.weight_scale" in entries]
        layer.home = stored[0] if stored else layer.paths[0]
    if not plan and not experts:
        raise ValueError(
            "expected a model with layers that the folder quantizes, but no target of its "
            f"config_groups matches a layer of {type(model).__name__}; it may be of another "
            "architecture, or wrapped under another name"
        )
    return plan


def _build(
    plan: dict[int, _Layer], tensors: dict[str, Tensor], caller: str
) -> dict[int, nn.Module]:
    """Build all layers from their tensors; on the meta device everything is checked."""
    built = {}
    for key, layer in plan.items():
        prefix = f"{layer.home}."
        own = {name: tensors[full] for name in TENSORS if (full := f"{prefix}{name}") in tensors}
        has_bias = getattr(layer.module, "bias", None) is not None
        if has_bias != ("bias" in own):
            raise ValueError(
                f"{layer.home}: expected {'a' if has_bias else 'no'} bias, as in the model, but "
                f"the folder has {'none' if has_bias else 'one'}"
            )
        built[key] = build_layer(layer.home, layer.scheme, own, layer.module, caller)
    return built


def _check_rest(
    model: nn.Module,
    plan: dict[int, _Layer],
    entries: dict[str, Entry],
    is_inside: Callable[[str], bool],
) -> None:
    """Check the tensors outside of quantized layers: names, shapes and dtypes."""
    known = {f"{layer.home}.{name}" for layer in plan.values() for name in TENSORS}
    tied: dict[int, list[str]] = {}
    for name, tensor in registered(model).items():
        tied.setdefault(id(tensor), []).append(name)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if is_inside(name):
            continue
        names = tied.get(id(tensor), [name])
        stored = [n for n in names if n in entries and not is_inside(n)]
        if not stored:
            hint = _hint(name, entries)
            raise ValueError(f"{name}: expected it in the folder, but it is missing{hint}")
        for home in stored:
            entry = entries[home]
            if entry.shape != tuple(tensor.shape):
                raise ValueError(
                    f"{name}: expected {list(tensor.shape)} as in the model, but the folder has "
                    f"{list(entry.shape)}"
                )
            if entry.dtype != tensor.dtype:
                convert = f"; convert the model first: model.to({entry.dtype})"
                raise ValueError(
                    f"{name}: expected {tensor.dtype} as in the model, but the folder has "
                    f"{entry.dtype}{_hint(name, entries) or convert}"
                )
    rest = {name for names in tied.values() for name in names} | model.state_dict().keys()
    rest = {name for name in rest if not is_inside(name)}
    unknown = sorted(entries.keys() - known - rest)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ValueError(
            f"{unknown[0]}{more}: the folder has it, but the model and its schemes have no place "
            "for it"
        )


def _check_ties(
    model: nn.Module,
    plan: dict[int, _Layer],
    values: dict[str, Tensor],
    is_inside: Callable[[str], bool],
) -> None:
    """Check that a folder has one value for what is one tensor or one layer in the model.

    Raises:
        ValueError: It has several values.
    """
    tied: dict[int, list[str]] = {}
    for name, tensor in registered(model).items():
        if not is_inside(name):
            tied.setdefault(id(tensor), []).append(name)
    groups = list(tied.values())
    for layer in plan.values():
        groups += [[f"{path}.{leaf}" for path in layer.paths] for leaf in TENSORS]
    for names in groups:
        first, *others = [name for name in names if name in values] or [""]
        for other in others:
            if not torch.equal(values[first], values[other]):
                raise ValueError(
                    f"{other}: expected the values of {first}, to which the model ties it, but the "
                    "folder has others; build the model with untied weights "
                    "(config.tie_word_embeddings = False)"
                )


def _hint(name: str, entries: dict[str, Entry]) -> str:
    path = name.rpartition(".")[0]
    if f"{path}.weight_scale" in entries:
        return f": {path} is quantized in the folder, but no target of config_groups names it"
    return ""


def _read(folder: Path, files: dict[str, dict[str, Entry]], caller: str) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for file, entries in files.items():
        try:
            values |= read_tensors(folder / file, entries, caller)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return values


def _place(
    built: Built,
    plan: dict[int, _Layer],
    modules: dict[int, nn.Module],
    experts: dict[str, nn.Module],
    values: dict[str, Tensor],
    caller: str,
) -> None:
    """Change the model: each tensor goes to the device of the one that it replaces."""
    own = {f"{layer.home}.{name}" for layer in plan.values() for name in TENSORS}
    devices = built.devices()
    named = registered(built.model)
    homes: dict[int, Tensor] = {}
    for name, tensor in named.items():
        if name in values and name not in own:
            homes.setdefault(id(tensor), values[name].to(devices.get(name, tensor.device)))
    rest = {name: homes[id(tensor)] for name, tensor in named.items() if id(tensor) in homes}
    swapped: dict[str, Any] = {}
    for key, module in modules.items():
        path = plan[key].paths[0]
        swapped[path] = module.to(devices[f"{path}.weight"])
    for path, module in experts.items():
        swapped[path] = module.to(devices[f"{path}.down_proj"])
    put(built.model, caller, swapped, rest, {})
