# SPDX-License-Identifier: BSD-3-Clause
"""Reads mixtures of experts out of the layers that a folder has for each expert and projection.

:mod:`._ct_experts` says how files differ from what is in memory. Here the same numbers of rows lead
back: they say which row of a weight a row in the folder is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import QuantizedExperts
from ..nn._experts import form_of, is_experts
from ..workflow.layers import inside
from ..workflow.serialization.header import Entry
from ..workflow.serialization.place import registered
from ._ct_config import CtConfig
from ._ct_experts import Places, has_experts, in_files, places_of
from ._ct_scheme import Scheme
from ._ct_tensors import TENSORS, build_layer


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
        """Return the quantized experts of the folder's tensors.

        Raises:
            ValueError: A tensor is missing or does not fit, or experts have different input scales.
        """
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
    """The tensors of a folder under the names and in the shapes of a floating model in memory.

    Args:
        model: The model.
        config: The configuration of the folder.

    Raises:
        ValueError: The layers of some experts have several schemes.
    """

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
        """Return the entries that the model has names for.

        Raises:
            ValueError: A weight of floating experts is missing, or its shape does not fit.
        """
        found = {self._name(n): e for n, e in entries.items() if not self._is_apart(n)}
        for name, places, like in self._floating():
            if name in found:
                continue
            parts = [(layer, entries.get(f"{layer}.weight")) for layer in places]
            for (layer, entry), rows in zip(parts, places.values(), strict=True):
                shape = (len(rows), like.shape[-1])
                if entry is None:
                    raise ValueError(
                        f"{layer}.weight: expected it in the folder, but it is missing"
                    )
                if entry.shape != shape:
                    raise ValueError(
                        f"{layer}.weight: expected {list(shape)} as in the model, but the folder "
                        f"has {list(entry.shape)}"
                    )
            entry = parts[0][1]
            assert entry is not None
            found[name] = replace(entry, shape=tuple(like.shape))
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
