# SPDX-License-Identifier: BSD-3-Clause
"""What each configuration costs each layer, and the choice of one for each."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..._fields import check_bool, check_type
from ..._table import Table, shown
from ...configs import QuantConfig
from ..report import _bytes, _percent
from .groups import FLOAT, as_pattern
from .knapsack import Option, least_bytes, solve

_CHOOSE, _PLOT = "baraquant.Sensitivity.choose", "baraquant.Sensitivity.plot"
_FROM_DICT = "baraquant.Sensitivity.from_dict"
_FORMAT, _VERSION = "baraquant.sensitivity", 1


def _maps(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_one, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# What a dictionary holds for a field of this type. NB: NaN is no error.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "int": lambda value: type(value) is int and 0 <= value < 2**63,
    "float": lambda value: type(value) in (int, float) and 0 <= value <= sys.float_info.max,
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "tuple[LayerSensitivity, ...]": lambda value: isinstance(value, list),
    "dict[str, QuantConfig]": _maps(lambda value: True),
    "dict[str, str]": _maps(_is_text),
}
_KINDS |= {f"dict[str, {name}]": _maps(_KINDS[name]) for name in ("int", "float")}


def _check_fields(place: str, data: Any, of: type[Any], *more: str) -> None:
    """Check that a dictionary has the fields of a class, each of its type, and some more."""
    types = {entry.name: str(entry.type) for entry in fields(of)}
    if not isinstance(data, dict) or data.keys() != types.keys() | set(more):
        names = ", ".join([*more, *types])
        raise ValueError(f"{_FROM_DICT}: {place}expected {names}, but got {shown(data, 200)}")
    for name, kind in types.items():
        if not _KINDS[kind](data[name]):
            got = shown(data[name])
            raise ValueError(f"{_FROM_DICT}: {place}expected {name} to be {kind}, but got {got}")


@dataclass(frozen=True)
class LayerSensitivity:
    """What was measured of one layer.

    Attributes:
        path: Its first path.
        paths: All of its paths.
        kind: The name of its class.
        parameters: The number of elements of its weights; 0 if a layer before has the same weights.
        float_bytes: The bytes of its tensors as they are. A shared tensor counts for its first
            layer, and not at all if a module outside the report has it too.
        bytes: The bytes that its tensors take in a file of :func:`baraquant.save`, by the name of
            the configuration: integers at their width, scales, zero points and the bias.
        errors: The relative squared errors of its output, by the name of the configuration. Empty
            if the calibration data does not reach the layer.
        refused: Why configurations have no error, by their names.
        group: The number of its group. The layers of a group get the same configuration.
    """

    path: str
    paths: tuple[str, ...]
    kind: str
    parameters: int
    float_bytes: int
    bytes: dict[str, int]
    errors: dict[str, float]
    refused: dict[str, str]
    group: int


class Choice(dict[str, QuantConfig | None], Table):
    """A configuration for each layer: a dictionary from paths, which ``quantize_`` takes.

    Attributes:
        bytes: The bytes of all tensors of the model in a file of :func:`baraquant.save`, without
            the file's header.
        bits: The mean bits of a weight: 8 times the bytes of the chosen layers, with scales, zero
            points and biases, by the number of their weights.
        error: The sum of the layers' errors.
        bound: A number that no choice within the budget has a smaller error than. Equal to
            ``error`` if the choice is the best one.
    """

    titles = "layer", "configuration"

    bytes: int
    bits: float
    error: float
    bound: float

    def rows(self) -> list[tuple[str, ...]]:
        """Return the paths and their configurations."""
        return [(path, FLOAT if one is None else str(one)) for path, one in self.items()]

    def summary(self) -> str:
        """Return bytes, bits and error in one line."""
        best = "the least" if self.bound >= self.error else f"at least {self.bound:.4g} in any case"
        size = f"{_bytes(self.bytes)}, {self.bits:.2f} bits a weight"
        return f"{size}; summed error {self.error:.4g} ({best})"


@dataclass(frozen=True)
class Sensitivity(Table):
    """How much the output of each layer suffers from each configuration; ``print`` shows a table.

    :func:`baraquant.sensitivity` returns it.

    Attributes:
        configs: The configurations by their names.
        layers: What was measured, in the order of the model.
        left_out: Why a module with weights was not measured, by its path. It stays floating.
        other_bytes: The bytes of all tensors of the model that belong to no measured layer.
        of: Whose output was compared: ``"layer"`` or ``"output"``, the model's.
    """

    configs: dict[str, QuantConfig]
    layers: tuple[LayerSensitivity, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    other_bytes: int = 0
    of: str = "layer"

    def choose(
        self, budget_bytes: int | None = None, *, bits: float | None = None, floating: bool = False
    ) -> Choice:
        """Return the configuration of each layer that gives the least summed error.

        The error of a choice is the sum of ``||y_q - y||^2 / ||y||^2`` over the layers. The layers
        of a group get the same configuration. The choice is the best one (exactly, but for the
        rounding of sums in float64) unless there are too many undecided partial choices; then its
        ``error`` is within ``error - bound`` of the best. Several hundred layers are no problem.
        Equal errors give the smaller choice, and each call gives the same one.

        Args:
            budget_bytes: The most bytes that all tensors of the model may take in a file of
                :func:`baraquant.save`, those of modules that stay floating too. The file has a
                header besides, of some hundred bytes a layer.
            bits: Instead of ``budget_bytes``: the most bits a weight that the measured layers may
                take on average, with scales, zero points and biases.
            floating: Whether layers may stay floating, at an error of 0.

        Returns:
            A dictionary from the paths of the measured layers to configurations, None for a layer
            that stays floating. :func:`baraquant.quantize_` and :func:`baraquant.qat.prepare_` take
            it, if not every layer is None. Its attribute ``bytes`` is what the tensors will take.

        Raises:
            ValueError: Both budgets are given or none, or the budget is too small; the message has
                the least possible one.
            TypeError: An argument has another type.
        """
        budget = self._budget(budget_bytes, bits)
        check_bool(_CHOOSE, "floating", floating)
        members: dict[int, list[LayerSensitivity]] = {}
        for layer in self.layers:
            members.setdefault(layer.group, []).append(layer)
        options = [self._options(layers, floating) for layers in members.values()]
        costs = [list(group.values()) for group in options]
        least = least_bytes(costs)
        if budget < least:
            raise ValueError(f"{_CHOOSE}: {self._too_small(budget_bytes, bits, least)}")
        solution = solve(costs, budget)
        choice = Choice()
        names = [list(group)[pick] for group, pick in zip(options, solution.picks, strict=True)]
        by_group = dict(zip(members, names, strict=True))
        for layer in self.layers:
            config = self.configs.get(by_group[layer.group])
            choice.update({as_pattern(path): config for path in layer.paths})
        choice.bytes = self.other_bytes + solution.bytes
        choice.bits = self._mean_bits(solution.bytes)
        choice.error, choice.bound = solution.error, solution.bound
        return choice

    def _budget(self, budget_bytes: Any, bits: Any) -> int:
        """Return the bytes that the measured layers may take."""
        if (budget_bytes is None) == (bits is None):
            raise ValueError(
                f"{_CHOOSE}: expected either budget_bytes or bits, but got "
                f"{'neither' if bits is None else 'both'}"
            )
        if budget_bytes is not None:
            is_right = type(budget_bytes) is int
            check_type(_CHOOSE, "budget_bytes", budget_bytes, is_right, "an int")
            return int(budget_bytes) - self.other_bytes
        check_type(_CHOOSE, "bits", bits, type(bits) in (int, float), "a number")
        if not math.isfinite(bits):
            raise ValueError(f"{_CHOOSE}: expected bits to be finite, but got {bits}")
        # The most bytes whose mean, as a choice states it, is no larger: a choice's own bits fit.
        sizes = (max([one.float_bytes, *one.bytes.values()]) for one in self.layers)
        least, most = -1, sum(sizes)
        while least < most:
            middle = (least + most + 1) // 2
            fits = self._mean_bits(middle) <= bits
            least, most = (middle, most) if fits else (least, middle - 1)
        return least

    def _mean_bits(self, size: int) -> float:
        """Return the mean bits of a weight if the measured layers take this many bytes."""
        return 8 * size / self._weights if self._weights else 0.0

    def _too_small(self, budget_bytes: int | None, bits: float | None, least: int) -> str:
        if bits is None:
            return (
                f"expected budget_bytes to be at least {self.other_bytes + least}, of which "
                f"{self.other_bytes} are for what stays floating in any case, but got "
                f"{budget_bytes}"
            )
        # Rounded up, so that the number itself is enough.
        rounded = -(-80_000 * least // max(1, self._weights)) / 1e4
        return f"expected bits to be at least {rounded:.15g}, but got {bits}"

    @property
    def _weights(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    def _options(self, layers: list[LayerSensitivity], floating: bool) -> dict[str, Option]:
        """Return the bytes and the error of each configuration that all layers of a group take."""
        options = {
            name: (
                sum(layer.bytes[name] for layer in layers),
                math.fsum(layer.errors[name] for layer in layers if layer.errors),
            )
            for name in common_names(layers, self.configs)
        }
        if floating:
            options[FLOAT] = sum(layer.float_bytes for layer in layers), 0.0
        return options

    def rows(self) -> list[tuple[str, ...]]:
        """Return the layers with their kinds, weights, and bytes and errors, in aligned columns."""
        every, rows = self._cells(), []
        widths = [max(map(len, column)) for column in zip(*every, strict=True)][1:]
        for name, kind, *cells in every:
            numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            rows.append((name, "  ".join([kind.ljust(widths[0]), *numbers])))
        return [*rows, *self._left()]

    def _left(self) -> list[tuple[str, ...]]:
        return [(name, f"left out: {reason}") for name, reason in self.left_out.items()]

    def _cells(self) -> list[tuple[str, ...]]:
        """Return a heading and the cells of each layer."""
        rows = [("layer", "kind", "weights", f"{FLOAT} bytes", *self.configs)]
        for one in sorted(self.layers, key=lambda one: -max(one.errors.values(), default=-1.0)):
            costs = [self._cell(one, name) for name in self.configs]
            rows.append(
                (one.path, one.kind, f"{one.parameters:,}", _bytes(one.float_bytes), *costs)
            )
        return rows

    def worst(self) -> tuple[str, float, str] | None:
        """Return the layer with the largest share of the errors of a configuration.

        Returns:
            Its path, its share of the sum over the layers, and the name of the configuration; None
            if no error is above 0.
        """
        found = None
        for name in self.configs:
            errors = {one.path: one.errors[name] for one in self.layers if name in one.errors}
            total = math.fsum(errors.values())
            if total > 0:
                path = max(errors, key=lambda path: errors[path])
                share = errors[path] / total
                found = found if found and found[1] >= share else (path, share, name)
        return found

    @staticmethod
    def _cell(layer: LayerSensitivity, name: str) -> str:
        if name not in layer.bytes:
            return "-"
        error = f"{layer.errors[name]:.2e}" if name in layer.errors else "unknown"
        return f"{_bytes(layer.bytes[name])}, {error}"

    def summary(self) -> str:
        """Return counts and bytes in one line."""
        worst = self.worst()
        whose = " of the model's output" if self.of == "output" else ""
        return (
            f"{len(self.layers)} measured, {len(self.left_out)} left out; {self._weights:,} weights"
            f"; {_bytes(self.other_bytes)} of other tensors; errors are ||y_q - y||^2 / ||y||^2"
            f"{whose}"
            + (f"; {worst[0]} makes {_percent(worst[1])} of those of {worst[2]}" if worst else "")
        )

    def __rich__(self) -> Any:
        """Return a table for :mod:`rich`."""
        titles, *cells = self._cells()
        empty = ("",) * (2 + len(self.configs))
        return self._rich(titles, [*cells, *((*row, *empty) for row in self._left())])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data (JSON can hold it), with a version."""
        layers = [asdict(layer) | {"paths": list(layer.paths)} for layer in self.layers]
        configs = {name: config.to_dict() for name, config in self.configs.items()}
        own = {**vars(self), "configs": configs, "layers": layers, "left_out": dict(self.left_out)}
        return {"format": _FORMAT, "version": _VERSION, **own}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sensitivity:
        """Return the report that :meth:`to_dict` wrote.

        Raises:
            ValueError: It is no such dictionary, or one of a newer version, or a value is of
                another kind, such as an error that is negative or NaN. The message has its place.
        """
        known = isinstance(data, dict) and data.get("format") == _FORMAT
        if not known or data.get("version") != _VERSION:
            raise ValueError(
                f"{_FROM_DICT}: expected a dictionary of to_dict, version {_VERSION}, but got "
                f"{shown(data)}"
            )
        _check_fields("", data, cls, "format", "version")
        if data["of"] not in ("layer", "output"):
            raise ValueError(f"{_FROM_DICT}: expected of to be layer or output, but got another")
        configs = {}
        for name, config in data["configs"].items():
            try:
                configs[name] = QuantConfig.from_dict(config)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{_FROM_DICT}: configs: {name:.80}: {error}") from None
        layers = []
        for number, layer in enumerate(data["layers"]):
            place = f"layers: {number}: "
            _check_fields(place, layer, LayerSensitivity)
            if layer["path"] not in layer["paths"]:
                raise ValueError(f"{_FROM_DICT}: {place}expected path to be one of its paths")
            unknown = {*layer["bytes"], *layer["errors"], *layer["refused"]} - configs.keys()
            if unknown or not layer["errors"].keys() <= layer["bytes"].keys():
                raise ValueError(
                    f"{_FROM_DICT}: {place}expected bytes, errors and refused of the configs, and "
                    "bytes for each error"
                )
            layers.append(LayerSensitivity(**(layer | {"paths": tuple(layer["paths"])})))
        other = data["other_bytes"], data["of"]
        return cls(configs, tuple(layers), dict(data["left_out"]), *other)

    def plot(
        self, path: str | os.PathLike[str], choice: Mapping[str, QuantConfig | None] | None = None
    ) -> None:
        """Draw the error of each layer against its bytes, and write the figure to a file.

        A grey line joins the configurations of a layer. The chosen ones are large dots, colored by
        configuration.

        Args:
            path: The file; its suffix says the format, for example ``.png`` or ``.svg``.
            choice: What :meth:`choose` returned; None shows no choice.

        Raises:
            ImportError: matplotlib is not installed.
            TypeError: ``choice`` is not a dictionary.
        """
        is_right = choice is None or isinstance(choice, Mapping)
        check_type(_PLOT, "choice", choice, is_right, "what choose returned")
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(f"{_PLOT}: expected matplotlib; pip install matplotlib") from error
        positive = [e for layer in self.layers for e in layer.errors.values() if e > 0]
        floor = min(positive, default=1e-12) / 10  # where an error of 0 is drawn
        axes: Any
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        picked: dict[str, list[tuple[float, float]]] = {}
        for layer in self.layers:
            points = sorted(
                (layer.bytes[name], max(error, floor)) for name, error in layer.errors.items()
            )
            if points:
                axes.plot(*zip(*points, strict=True), ".-", color="0.75", lw=0.8, ms=3)
            key = as_pattern(layer.path)
            if choice is None or key not in choice:
                continue
            name = next((name for name, one in self.configs.items() if one == choice[key]), None)
            size = layer.float_bytes if name is None else layer.bytes.get(name)
            height = floor if name is None else layer.errors.get(name)
            if size is not None and height is not None:
                picked.setdefault(name or "float", []).append((size, max(height, floor)))
        for index, name in enumerate([*self.configs, "float"]):
            if name in picked:
                xs, ys = zip(*picked[name], strict=True)
                axes.plot(xs, ys, "o", color=f"C{index % 10}", label=name)
        axes.set(xscale="symlog", yscale="log")
        axes.set(xlabel="bytes of a layer", ylabel="relative squared error of its output")
        if picked:
            axes.legend()
        figure.savefig(path)


def common_names(layers: list[LayerSensitivity], configs: Mapping[str, Any]) -> list[str]:
    """Return the names of the configurations that each layer of a group takes."""
    return [
        name
        for name in configs
        if all(
            name in layer.errors or not (layer.errors or name in layer.refused) for layer in layers
        )
    ]
