# SPDX-License-Identifier: BSD-3-Clause
"""Reads a folder of compressed-tensors into a float model.

A folder has a mixture of experts as a layer for each expert and projection. :mod:`.experts`
says how files differ from what is in memory; the same numbers of rows lead back: they say which row
of a weight a row in the folder is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ..._table import one_line, placed, shown, some
from ...nn import QuantizedExperts
from ...nn.shared.experts import form_of, is_experts
from ...workflow.layers import inside, is_converted, is_prepared, layer_of
from ...workflow.serialization.disk import opened_folder
from ...workflow.serialization.meta import Built, check_constants, put, registered
from ...workflow.serialization.tensor_file import (
    Entry,
    Header,
    on_meta,
    parse_json,
    read_header,
    read_tensors,
)
from ...workflow.view import check_model
from .config import CtConfig, read_config
from .experts import Places, has_experts, in_files, places_of
from .scheme import METHOD, Scheme
from .tensors import TENSORS, build_layer


@dataclass
class StoredExperts:
    """Floating experts of the model, and their scheme in the folder; None where they float."""

    path: str
    module: Any
    places: dict[str, Places]  # by the names of the weights
    scheme: Scheme | None = None

    def layers(self) -> Iterator[str]:
        """Yield the paths that its layers have in the folder."""
        for places in self.places.values():
            yield from places

    def like(self, name: str, rows: int) -> nn.Linear:
        """Return the floating layer of an expert."""
        form = form_of(self.module)
        assert form is not None
        weight = self.module._parameters[name]
        columns = form.canonical(weight).shape[-1]
        return nn.Linear(columns, rows, bias=False, device="meta", dtype=weight.dtype)

    def built(self, tensors: Mapping[str, Tensor], caller: str) -> nn.Module:
        """Return the quantized experts of the folder's tensors."""
        assert self.scheme is not None
        weight, input = self.scheme.weight, self.scheme.input
        given: dict[str, Tensor] = {}
        for name, places in self.places.items():
            made: list[tuple[Tensor, Any]] = []
            for layer, rows in places.items():
                own = {n: t for n in TENSORS if (t := tensors.get(f"{layer}.{n}")) is not None}
                like = self.like(name, len(rows))
                made.append((rows, build_layer(layer, self.scheme, own, like, caller)))
            count = self.module.num_experts
            given[f"{name}_qweight"] = _joined([(r, m.qweight) for r, m in made], count)
            given[f"{name}_scale"] = _joined([(r, m.weight_scale) for r, m in made], count)
            if not weight.symmetric:
                zeros = [(r, m.weight_zero_point) for r, m in made]
                given[f"{name}_zero_point"] = _joined(zeros, count)
            if input is not None and not input.dynamic:
                for end in ("scale", "zero_point"):
                    stored = [tensors.get(f"{layer}.input_{end}") for layer in places]
                    given[f"{name}_input_fake_quant.{end}"] = _shared(
                        stored, f"{caller}: {self.path}.{name}: expected one input_{end}"
                    )
        return QuantizedExperts(
            given,
            self.module,
            group_size=weight.group_size,
            weight_bits=weight.bits,
            granularity=None if input is None else f"per_{input.strategy}",
            bits=8 if input is None else input.bits,
            symmetric=input is None or input.symmetric,
            is_static=input is not None and not input.dynamic,
            input_group_size=None if input is None else input.group_size,
            dtype=self.module._parameters[next(iter(self.places))].dtype,
        )


def _joined(parts: list[tuple[Tensor, Tensor]], experts: int) -> Tensor:
    """Put rows at their places; the result has a dimension for the expert."""
    first, total = parts[0][1], sum(len(rows) for rows, _ in parts)
    whole = first.new_empty(total, *first.shape[1:])
    for rows, values in parts:
        whole[rows.to(whole.device)] = values
    return whole.view(experts, total // experts, *first.shape[1:])


def _shared(stored: list[Tensor | None], message: str) -> Tensor:
    first = stored[0]
    if first is None:  # symmetric
        return torch.zeros((), dtype=torch.int32)
    if not first.is_meta and any(t is None or not torch.equal(t, first) for t in stored):
        raise ValueError(f"{message} for all experts, but the folder has several")
    kind = torch.float32 if first.is_floating_point() else torch.int32
    return first.reshape(()).to(kind)


class Files:
    """The tensors of a folder under the names and in the shapes of a floating model in memory."""

    def __init__(self, model: nn.Module, config: CtConfig) -> None:
        self.experts: list[StoredExperts] = []
        for path, module in model.named_modules():
            places = places_of(model, path, module) if is_experts(module) else None
            if places is not None:
                self.experts.append(_with_scheme(StoredExperts(path, module, places), config))
        self._apart = {layer for one in self.experts for layer in one.layers()}
        self._memory = self._names(model) if has_experts(model) else {}
        # The paths of layers, whose tensors in the folder have other leaves than in memory.
        paths = [(a.rpartition("."), b.rpartition(".")) for a, b in self._memory.items()]
        self._paths = {a[0]: b[0] for a, b in paths if a[2] == b[2]}

    def _names(self, model: nn.Module) -> dict[str, str]:
        """Return names in memory by names in files, where they differ."""
        is_inside = inside({one.path: one.module for one in self.experts})
        names = [name for name in registered(model) if not is_inside(name)]
        numbered = {name: torch.tensor([i]) for i, name in enumerate(names)}
        found = in_files(model, numbered)
        pairs = [(stored, names[int(number)]) for stored, number in found.items()]
        return {stored: name for stored, name in pairs if stored != name}

    def quantized(self) -> list[StoredExperts]:
        """Return the experts that the folder has integers of."""
        return [one for one in self.experts if one.scheme is not None]

    def entries(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """Return the entries that the model has names for."""
        found = {self._name(n): e for n, e in entries.items() if not self._is_apart(n)}
        for name, places, like in self._floating():
            if name in found:
                continue
            for layer, rows in places.items():
                part = f"{layer}.weight"
                entry = _of_shape(part, entries.get(part), (len(rows), like.shape[-1]))
                found.setdefault(name, replace(entry, shape=tuple(like.shape)))
        return found

    def values(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that the model has names for."""
        found = {self._name(n): v for n, v in values.items() if not self._is_apart(n)}
        for name, places, like in self._floating():
            if name not in found:
                parts = [(rows, values[f"{layer}.weight"]) for layer, rows in places.items()]
                found[name] = _joined(parts, like.shape[0])
        return found

    def _is_apart(self, name: str) -> bool:
        path, _, leaf = name.rpartition(".")
        return path in self._apart and leaf in TENSORS

    def _name(self, name: str) -> str:
        if name in self._memory:
            return self._memory[name]
        path, _, leaf = name.rpartition(".")
        path = self._paths.get(path, path)
        return f"{path}.{leaf}" if path else leaf

    def _floating(self) -> Iterator[tuple[str, Places, Tensor]]:
        """Yield the names of floating weights, their places, and the weights as ``[E, N, K]``."""
        for one in self.experts:
            form = form_of(one.module)
            if one.scheme is None and form is not None:
                for name, places in one.places.items():
                    yield f"{one.path}.{name}", places, form.canonical(one.module._parameters[name])


def _with_scheme(one: StoredExperts, config: CtConfig) -> StoredExperts:
    schemes = {
        layer: config.scheme_of(layer, one.like(name, len(rows)))
        for name, places in one.places.items()
        for layer, rows in places.items()
    }
    first = next(iter(schemes))
    for layer, scheme in schemes.items():
        if scheme != schemes[first]:
            raise ValueError(
                f"{layer}: expected the scheme of {first} ({schemes[first] or 'floating'}), as "
                f"they are one module in memory, but the folder has {scheme or 'floating'}"
            )
    return replace(one, scheme=schemes[first])


_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


Opener = Callable[[str], BinaryIO]
OpenFiles = dict[str, tuple[BinaryIO, Header]]


def load_folder(
    given: nn.Module | Callable[[], nn.Module], folder: Path, caller: str, allow_missing: bool
) -> nn.Module:
    """Load a folder; the model is unchanged if an error is raised."""
    built = Built(given, caller)
    check_model(built.model, caller)
    _check_float(built.model, caller)
    with opened_folder(caller, folder) as opened:
        _load(built, opened, folder.name, caller, allow_missing)
    return built.model


def _load(built: Built, opened: Opener, folder: str, caller: str, allow_missing: bool) -> None:
    model = built.model
    try:
        config = _read_config(opened, caller)
        files = _read_headers(opened, config)
        stored = {n: entry for _, header in files.values() for n, entry in header.tensors.items()}
        in_memory = Files(model, config)
        entries = in_memory.entries(stored)
        plan = _plan(model, config, entries, in_memory.quantized())
        metas = {name: on_meta(name, one.shape, one.dtype) for name, one in stored.items()}
        _build(plan, in_memory.values(metas), caller)
        for one in in_memory.quantized():
            one.built(metas, caller)
        quantized = {path: layer.module for layer in plan.values() for path in layer.paths}
        quantized |= {one.path: one.module for one in in_memory.quantized()}
        is_inside = inside(quantized)
        _check_rest(model, plan, entries, is_inside, allow_missing)
        check_constants(model, {}, is_inside, f"{caller}(lambda: Model(...), folder)")
        read = _read(files)
        values = in_memory.values(read)
        _check_ties(model, plan, values, is_inside)
        modules = _build(plan, values, caller)
        experts = {one.path: one.built(read, caller) for one in in_memory.quantized()}
    except ValueError as error:
        text = one_line(str(error).removeprefix(f"{caller}: "))
        raise ValueError(f"{caller}: {folder}: {text}") from error
    _place(built, plan, modules, experts, values, caller)


def _read_config(opened: Opener, caller: str) -> CtConfig:
    """Read the configuration of a folder."""
    try:
        config = parse_json(opened("config.json").read())
    except ValueError as error:
        raise ValueError(f"{caller}: expected config.json to be JSON, but {error}") from None
    parts = config if isinstance(config, dict) else {}
    names = ("quantization_config", "compression_config")
    given = next((parts[name] for name in names if parts.get(name) is not None), None)
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


def _read_headers(opened: Opener, config: CtConfig) -> OpenFiles:
    """Open the files, read their headers, and check them against the index if there is one."""
    try:
        index = opened(_INDEX)
    except FileNotFoundError:
        return {_SINGLE: _header(opened, config, _SINGLE)}
    try:
        plain = parse_json(index.read())
    except ValueError as error:
        raise ValueError(f"{_INDEX}: expected JSON, but {error}") from None
    weight_map = plain.get("weight_map") if isinstance(plain, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{_INDEX}: expected an object weight_map with the file of each tensor")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise ValueError(
                f"{_INDEX}: {name}: expected the name of a file, but got {shown(file)}"
            )
    names: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        names.setdefault(file, set()).add(name)
    files = {file: _header(opened, config, file) for file in sorted(names)}
    for file, (_, header) in files.items():
        entries, named = header.tensors, names[file]
        if named != entries.keys():
            name = min(named ^ entries.keys())
            where = "in the index only" if name in named else "in the file only"
            raise ValueError(
                f"{_INDEX}: {file}: expected the tensors of the file, but {name} is {where}"
            )
    return files


def _header(opened: Opener, config: CtConfig, name: str) -> tuple[BinaryIO, Header]:
    file = opened(name)
    with placed(name):
        header = read_header(file, "a safetensors file")
        config.check_save(header.metadata)
        return file, header


@dataclass
class _Layer:
    """A layer that will be swapped: its float module, its scheme, and all of its paths."""

    module: nn.Module
    scheme: Scheme
    paths: list[str]
    home: str = ""  # the path under which the file has it


def _plan(
    model: nn.Module, config: CtConfig, entries: dict[str, Entry], experts: list[StoredExperts]
) -> dict[int, _Layer]:
    plan: dict[int, _Layer] = {}
    homes = {name.rpartition(".")[0] for name in entries}
    for path, module in model.named_modules(remove_duplicate=False):
        scheme = config.scheme_of(path, module)
        if scheme is None or is_experts(module):
            continue
        if layer_of(module) is None:
            # A target may be a class that also names modules without a weight of their own.
            if path not in homes:
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


def _of_shape(name: str, entry: Entry | None, shape: tuple[int, ...], hint: str = "") -> Entry:
    """Return an entry that is there, and has the shape of the model's tensor."""
    if entry is None:
        raise ValueError(f"{name}: expected it in the folder, but it is missing{hint}")
    if entry.shape != shape:
        raise ValueError(
            f"{name}: expected {list(shape)} as in the model, but the folder has "
            f"{list(entry.shape)}"
        )
    return entry


def _names_of_tensors(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of each parameter and buffer, by its identity."""
    names: dict[int, list[str]] = {}
    for name, tensor in registered(model).items():
        names.setdefault(id(tensor), []).append(name)
    return names


def _check_rest(
    model: nn.Module,
    plan: dict[int, _Layer],
    entries: dict[str, Entry],
    is_inside: Callable[[str], bool],
    allow_missing: bool,
) -> None:
    """Check the tensors outside of quantized layers: names, shapes and dtypes."""
    known = {f"{layer.home}.{name}" for layer in plan.values() for name in TENSORS}
    tied = _names_of_tensors(model)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if is_inside(name):
            continue
        names = tied.get(id(tensor), [name])
        stored: list[Entry | None]
        stored = [entries[n] for n in names if n in entries and not is_inside(n)]
        may_miss = allow_missing and not tensor.is_meta
        hint = _hint(name, entries) or "; allow_missing=True keeps what a model has that is given"
        for given in stored or ([] if may_miss else [None]):
            entry = _of_shape(name, given, tuple(tensor.shape), hint)
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
        raise ValueError(
            f"{some(unknown, 1)}: the folder has it, but the model and its schemes have no place "
            "for it"
        )


def _check_ties(
    model: nn.Module,
    plan: dict[int, _Layer],
    values: dict[str, Tensor],
    is_inside: Callable[[str], bool],
) -> None:
    """Check that a folder has one value for what is one tensor or one layer in the model."""
    groups = [[n for n in one if not is_inside(n)] for one in _names_of_tensors(model).values()]
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


def _read(files: OpenFiles) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for name, (file, header) in files.items():
        with placed(name):
            values |= read_tensors(file, header)
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
