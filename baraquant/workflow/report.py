# SPDX-License-Identifier: BSD-3-Clause
"""Reports: what became of the layers of a model, how these compute, and what stayed floating."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .. import nn as bnn
from .._table import Table, some
from ..configs import QuantConfig
from ..nn import LearnedFakeQuantize
from ..nn.shared.convolution import ConvolvesIntegers
from .layers import layer_with, stage_of

# Reasons that the caller chose: filter_fn, and the dictionary of configurations.
FILTERED = "filter_fn"
UNMATCHED = "no pattern of the configurations matches it"
FLOATING = "its configuration is None"
CHOSEN = (UNMATCHED, FLOATING)
PREPARED = "it is prepared already"
CONVERTED = "it is converted already"
# From this share on, what stays floating without being asked for is said first.
_CONSIDERABLE = 0.1
# How a quantized layer computes.
INTEGERS = "multiplies integers"
FLOATS = "stores integers and computes in floating point"
ROWS = "stores integers and looks up rows"
# The name of the model itself, whose path is empty.
ROOT = "(the model)"
# The name for norms, biases and other small parameters.
OTHERS = "biases, norms and other parameters"
_PRODUCTS = (
    bnn.QuantizedLinear,
    bnn.StaticQuantizedLinear,
    bnn.QuantizedInt4Linear,
    bnn.StaticQuantizedInt4Linear,
)
_SMALL = 0.1  # the share of integer products up to which nothing is faster


_Report = TypeVar("_Report", bound="Report")


@dataclass(frozen=True)
class Report(Table):
    """What became of a model's modules; ``print`` shows a table.

    Attributes:
        changed: What each swapped module became, by its path. A module with several paths is listed
            under the first.
        left_out: Why a module with weights was not changed, by its path.
        parameters: The number of elements of the floating weights of these modules, by the same
            paths. A shared weight counts for its first module.
        total_parameters: The number of elements of the model's floating parameters, each counted
            once.
        bytes_before: The size of parameters and buffers before.
        computes: How each quantized layer computes, by its path: ``multiplies integers``, ``stores
            integers and computes in floating point`` or ``stores integers and looks up rows``. Of a
            prepared layer: how it will compute after conversion.
        multiply_adds: The multiply-adds of these modules for one row or position, by the same
            paths: the elements of their weights, and 0 for embeddings.
        bytes_after: Their size now. A model that is prepared for training has the same size, plus
            what preparation adds.
    """

    titles = "layers", "what they are now", "parameters"

    changed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    total_parameters: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    computes: dict[str, str] = field(default_factory=dict)
    multiply_adds: dict[str, int] = field(default_factory=dict)

    @property
    def integer_products(self) -> float:
        """The share of the multiply-adds of weights that multiply integers, in [0, 1].

        Each element of a weight counts as one multiply-add, that of one row of a linear layer or
        one position of a convolution. A shared weight counts for each of its modules; embeddings,
        which look up rows, do not count, whether they are quantized or not.
        """
        total = sum(self.multiply_adds.values())
        counts = self.multiply_adds.items()
        products = sum(count for path, count in counts if self.computes.get(path) == INTEGERS)
        return products / total if total else 0.0

    @property
    def share(self) -> float:
        """The share of the model's parameters that became integers, in [0, 1]."""
        if self.total_parameters == 0:
            return 0.0
        return sum(self.parameters.get(name, 0) for name in self.changed) / self.total_parameters

    @property
    def floating(self) -> dict[str, int]:
        """The number of elements that stay floating, by the path of their module, largest first.

        All that belongs to no path of ``left_out`` is listed as
        ``biases, norms and other parameters``.
        """
        sizes = {name: self.parameters.get(name, 0) for name in self.left_out}
        known = sum(sizes.values()) + sum(self.parameters.get(name, 0) for name in self.changed)
        rest = self.total_parameters - known
        ordered = sorted(sizes.items(), key=lambda item: -item[1])
        return dict(ordered) | ({OTHERS: rest} if rest > 0 else {})

    def reasons(self) -> str:
        """Return the first reasons in brackets; ``filter_fn`` only if there is no other reason."""
        found = {name: reason for name, reason in self.left_out.items() if reason != FILTERED}
        items = list((found or self.left_out).items())
        some = [f"{name or ROOT}: {reason}" for name, reason in items[:5]]
        return f" ({'; '.join(some)})" if some else ""

    def headline(self) -> str:
        """Return which share stays floating without being asked for, and why.

        It is empty if that is less than a tenth of the parameters and of the multiply-adds.
        """
        asked = (FILTERED, *CHOSEN, PREPARED)
        left = {name: why for name, why in self.left_out.items() if why not in asked}
        parts = []
        for counts, total, what in (
            (self.parameters, self.total_parameters, "the parameters"),
            (self.multiply_adds, sum(self.multiply_adds.values()), "multiply-adds of weights"),
        ):
            share = sum(counts.get(name, 0) for name in left) / total if total else 0.0
            if share >= _CONSIDERABLE:
                parts.append(f"{_percent(share)} of {what}")
        if not parts:
            return ""
        counted = self.parameters, self.multiply_adds
        sizes = {name: max(counts.get(name, 0) for counts in counted) for name in left}
        rows = sorted(_grouped(left, sizes), key=lambda row: -row[2])
        why = "; ".join(f"{name}: {reason}" for name, reason, _ in rows[:3])
        more = f"; and {len(rows) - 3} more, below" if len(rows) > 3 else ""
        return f"{' and '.join(parts)} stay floating: {why}{more}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the layers, what became of them, and their shares of the parameters, as strings.

        Layers with the same result whose paths only differ in numbers share a row.
        """
        how = {name: f": {text}" for name, text in self.computes.items()}
        changed = {name: f"{what}{how.get(name, '')}" for name, what in self.changed.items()}
        left_out = {name: f"left out: {reason}" for name, reason in self.left_out.items()}
        found = _grouped(changed, self.parameters)
        found += sorted(_grouped(left_out, self.parameters), key=lambda row: -row[2])
        return [(name, what, self._part(size)) for name, what, size in found]

    def summary(self) -> str:
        """Return counts, shares and bytes in one line."""
        counts = f"{len(self.changed)} changed, {len(self.left_out)} left out"
        if self.total_parameters == 0:
            return counts
        sizes = f"{_bytes(self.bytes_before)} before, {_bytes(self.bytes_after)} now"
        share = f"{_percent(self.share)} of {self.total_parameters:,} parameters in integers"
        if self.computes:
            share += f", {_percent(self.integer_products)} of multiply-adds of weights by integers"
        return f"{counts}; {share}; {sizes}"

    def _part(self, size: int) -> str:
        return _percent(size / self.total_parameters) if size and self.total_parameters else ""


def _grouped(what: dict[str, str], sizes: dict[str, int]) -> list[tuple[str, str, int]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for name, text in what.items():
        groups.setdefault((re.sub(r"(?<![^.])\d+(?![^.])", "*", name), text), []).append(name)
    rows = []
    for (pattern, text), names in groups.items():
        title = names[0] or ROOT if len(names) == 1 else f"{pattern} ({len(names)})"
        rows.append((title, text, sum(sizes.get(name, 0) for name in names)))
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "100 %"


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def float_weights(module: nn.Module, counted: set[int], *, whole: bool) -> int:
    """Return the number of floating elements in a module's weights that were not counted before.

    The ids of the parameters are added to ``counted``. The weights of submodules count too if
    ``whole``.
    """
    named = list(module.named_parameters(recurse=whole))
    if parametrize.is_parametrized(module) and not whole:
        named += module.parametrizations.named_parameters()
    weights = [
        parameter
        for name, parameter in named
        if not is_lazy(parameter) and parameter.dim() > 1 and parameter.is_floating_point()
        if not name.endswith("bias") and id(parameter) not in counted
    ]
    counted.update(id(parameter) for parameter in weights)
    return sum(parameter.numel() for parameter in weights)


def multiply_adds(module: nn.Module, *, whole: bool) -> int:
    """Return the multiply-adds of a module for one row or position; embeddings have none."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return 0
    return float_weights(module, set(), whole=whole)


def total_parameters(model: nn.Module) -> int:
    """Return the number of floating elements in a model's parameters, each counted once.

    Learned scales do not count as the model's.
    """
    scales = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, LearnedFakeQuantize)
        for parameter in module.parameters()
    }
    return sum(
        parameter.numel()
        for parameter in model.parameters()
        if not is_lazy(parameter) and parameter.is_floating_point() and id(parameter) not in scales
    )


def total_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers, shared memory counted once."""
    seen: dict[Any, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if is_lazy(tensor):
            continue
        has_data = tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() > 0
        key = (tensor.data_ptr(), tensor.device) if has_data else id(tensor)
        seen[key] = max(seen.get(key, 0), tensor.numel() * tensor.element_size())
    return sum(seen.values())


def with_weights(report: Report, model: nn.Module, paths: Collection[str]) -> Report:
    """Return a report with the sizes of layers at some paths, whose weights became floating."""
    if not paths:
        return report
    parameters, products = dict(report.parameters), dict(report.multiply_adds)
    counted: set[int] = set()
    for path in paths:
        module = model.get_submodule(path)
        parameters[path] = float_weights(module, counted, whole=False)
        products[path] = multiply_adds(module, whole=False)
    total = total_parameters(model)
    return replace(report, parameters=parameters, multiply_adds=products, total_parameters=total)


def arithmetic_of(module: nn.Module) -> str | None:
    """Return how a converted module computes, or a prepared one after conversion; else None.

    A registered kind of layer says with ``is_integer`` that it multiplies integers.
    """
    layer, form = stage_of(module)
    known = layer if form is None else layer_with(form)
    if known is None:
        return None
    if issubclass(known.float_type or nn.Module, (nn.Embedding, nn.EmbeddingBag)):
        return ROWS
    is_integer = getattr(module, "is_integer", None)
    if is_integer is None:
        # A registered layer may say it in the class for inference alone.
        kind = type(module) if layer is None else layer.forms[0].module
        rounds = layer is None or bool(getattr(module, "rounds_input", False))
        is_integer = rounds and (issubclass(kind, _PRODUCTS) or getattr(kind, "is_integer", False))
    return INTEGERS if is_integer is True else FLOATS


def completed(report: _Report, model: nn.Module) -> _Report:
    """Return a report with how the changed layers compute, and with the current size."""
    at = dict(model.named_modules())
    size = total_bytes(model)
    computes = {p: how for p in report.changed if (how := arithmetic_of(at[p])) is not None}
    return replace(report, bytes_after=size, computes=computes)


def warn_if_no_faster(layers: Mapping[str, tuple[nn.Module, QuantConfig]], caller: str) -> None:
    """Warn of schemes that round inputs, but whose layers compute in floating point.

    The layers are given by their paths, as they will be converted, with the configurations that the
    caller gave.
    """
    by_scheme: dict[QuantConfig, dict[str, nn.Module]] = {}
    for path, (layer, scheme) in layers.items():
        if scheme.activation is not None:
            by_scheme.setdefault(scheme, {})[path] = layer
    for scheme, prepared in by_scheme.items():
        how = {path: arithmetic_of(layer) for path, layer in prepared.items()}
        counts: dict[str | None, int] = dict.fromkeys((INTEGERS, FLOATS, None), 0)
        for path, layer in prepared.items():
            if how[path] != ROWS:
                counts[how[path]] += multiply_adds(layer, whole=False)
        total = sum(counts.values())
        if total == 0 or (share := counts[INTEGERS] / total) > _SMALL:
            continue
        floating = [path for path in prepared if how[path] == FLOATS]
        is_conv = any(isinstance(prepared[path], ConvolvesIntegers) for path in floating)
        advice = (
            "; convolutions round their inputs with conv_inputs=True, one scale each: "
            "W8A8Static(conv_inputs=True)"
            if is_conv and not scheme.conv_inputs
            else ""
        )
        what = "all of them" if share == 0 else f"{100 * (1 - share):.0f} % of the multiply-adds"
        verb = "store integers and compute" if share == 0 else "belong to layers that compute"
        which = "the model is" if len(prepared) == len(layers) else f"{some(floating, 3)} are"
        warnings.warn(
            f"{caller}: expected layers that multiply integers with {scheme}, but {what} "
            f"{verb} in floating point: {which} smaller and no faster{advice}",
            stacklevel=4,
        )
