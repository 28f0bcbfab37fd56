# SPDX-License-Identifier: BSD-3-Clause
"""Draws the error of each layer against its bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...configs import QuantConfig
from .groups import as_pattern

if TYPE_CHECKING:
    from .report import Sensitivity

_CALLER = "baraquant.Sensitivity.plot"


def plot(
    report: Sensitivity,
    path: str | os.PathLike[str],
    choice: Mapping[str, QuantConfig | None] | None,
) -> None:
    """Write the figure; the arguments and errors are those of :meth:`.Sensitivity.plot`."""
    if choice is not None and not isinstance(choice, Mapping):
        raise TypeError(
            f"{_CALLER}: expected choice to be what choose returned, but got "
            f"{type(choice).__name__}"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{_CALLER}: expected matplotlib; pip install matplotlib") from error
    positive = [e for layer in report.layers for e in layer.errors.values() if e > 0]
    floor = min(positive, default=1e-12) / 10  # where an error of 0 is drawn
    axes: Any
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    picked: dict[str, tuple[list[float], list[float]]] = {}
    for layer in report.layers:
        points = sorted(
            (layer.bytes[name], max(error, floor)) for name, error in layer.errors.items()
        )
        axes.plot(*zip(*points, strict=True), ".-", color="0.75", lw=0.8, ms=3) if points else None
        key = as_pattern(layer.path)
        if choice is None or key not in choice:
            continue
        name = _name_of(report, choice[key])
        size = layer.float_bytes if name is None else layer.bytes.get(name)
        height = floor if name is None else layer.errors.get(name)
        if size is not None and height is not None:
            xs, ys = picked.setdefault(name or "float", ([], []))
            xs.append(size)
            ys.append(max(height, floor))
    for index, name in enumerate([*report.configs, "float"]):
        if name in picked:
            axes.plot(*picked[name], "o", color=f"C{index % 10}", label=name)
    axes.set(
        xscale="symlog",
        yscale="log",
        xlabel="bytes of a layer",
        ylabel=r"relative squared error of its output",
    )
    if picked:
        axes.legend()
    figure.savefig(path)


def _name_of(report: Sensitivity, config: QuantConfig | None) -> str | None:
    return next((name for name, one in report.configs.items() if one == config), None)
