# SPDX-License-Identifier: BSD-3-Clause
"""Runs the calibration of SmoothQuant, and finds how to smooth each linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...configs import QuantConfig
from ...schemes import SmoothQuant
from ..calibration.observers import OBSERVERS
from ..calibration.run import Calibration, Watcher, calibrate, check_repeatable
from .flow import Group, find_groups
from .formula import (
    ALPHAS,
    AlphaSearch,
    ChannelRange,
    SmoothedObserver,
    range_after,
    smoothing,
)


@dataclass(frozen=True)
class Smoothing:
    """The result of calibration for one linear layer.

    Attributes:
        smooth: The divisor of its input, ``[K]``; None: no division.
        alpha: The migration strength; None if nothing is smoothed.
        producer: The path of the preceding module that absorbs the division; None if there is none.
        qparams: The scale and the zero point of the smoothed input if activations are static.
        readable: The path of the preceding module that would absorb it, if no call that calibration
            did not make could read its output.
    """

    smooth: Tensor | None = None
    alpha: float | None = None
    producer: str | None = None
    qparams: tuple[Tensor, Tensor] | None = None
    readable: str | None = None


def find_smoothings(
    model: nn.Module,
    config: SmoothQuant,
    calibration: Calibration,
    weights: Mapping[str, Tensor],
    *,
    fixed: set[str],
    progress: bool,
    where: str,
) -> dict[str, Smoothing]:
    """Run the calibration, up to three times, and return what to do with each layer it reaches.

    Args:
        model: The float model.
        config: The scheme.
        calibration: Batches, or a function that runs the model.
        weights: The weights of the linear layers to quantize, ``[out_features, in_features]``, by
            the layers' paths.
        fixed: Layers whose weights must not change, because other modules share them. They are not
            smoothed.
        progress: Whether to show a bar.
        where: The function name for error messages.
    """
    scheme, activation = config.activation, config.activation.activation
    assert activation is not None
    observer = scheme.observer if scheme.is_static else None
    runs = 1 + (config.alpha == "search") + (observer not in (None, "min_max"))
    if runs > 1:
        check_repeatable(calibration, f"{runs} times", where)

    def run(watchers: Mapping[str, Watcher], what: str) -> set[str]:
        return calibrate(
            model,
            calibration,
            watchers,
            description=what,
            progress=progress,
            where=where,
            allows_unreached=True,
        )

    ranges = {path: ChannelRange() for path in weights}
    groups, unreached = find_groups(model, ranges, fixed, lambda seen: run(seen, "input ranges"))
    if config.alpha == "search":
        _search(groups, weights, ranges, scheme, run)
    else:
        for group in groups:
            group.alpha = float(config.alpha)
            group.smooth = _factors(group, weights, ranges, group.alpha)
    found = {
        path: Smoothing(
            group.smooth,
            group.alpha,
            group.producer if group.smooth is not None else None,
            readable=group.readable,
        )
        for group in groups
        for path in group.layers
    }
    found |= {path: Smoothing() for path in fixed - unreached}
    if observer is None:
        return found
    qparams = _static(found, ranges, observer, activation.symmetric, run)
    return {path: replace(one, qparams=qparams[path]) for path, one in found.items()}


def _factors(
    group: Group,
    weights: Mapping[str, Tensor],
    ranges: Mapping[str, ChannelRange],
    alpha: float | None,
) -> Tensor:
    absmax = torch.stack([ranges[path].absmax for path in group.layers]).amax(dim=0)
    return smoothing(absmax, [weights[path] for path in group.layers], alpha)


def _search(
    groups: list[Group],
    weights: Mapping[str, Tensor],
    ranges: Mapping[str, ChannelRange],
    scheme: QuantConfig,
    run: Any,
) -> None:
    """Give each group the alpha with the minimum error of its layers' outputs."""
    activation = scheme.activation
    assert activation is not None
    searches: dict[str, AlphaSearch] = {}
    for group in groups:
        factors = torch.stack([_factors(group, weights, ranges, alpha) for alpha in ALPHAS])
        of_inputs = torch.stack([ranges[path].absmax.amax() for path in group.layers]).amax()
        of_weights = torch.stack(
            [weights[p].detach().abs().amax().to(of_inputs) for p in group.layers]
        )
        magnitudes = of_inputs, of_weights.amax()
        for path in group.layers:
            searches[path] = AlphaSearch(
                weights[path],
                factors,
                ranges[path] if scheme.is_static else None,
                activation.symmetric,
                scheme.scale_dtype,
                magnitudes,
            )
    run(searches, "search for alpha")
    for group in groups:
        errors = torch.stack([searches[path].errors for path in group.layers]).sum(dim=0)
        best = int(errors.argmin())
        group.alpha = ALPHAS[best]
        group.smooth = None if group.alpha is None else searches[group.layers[0]].factors[best]


def _static(
    found: Mapping[str, Smoothing],
    ranges: Mapping[str, ChannelRange],
    observer: str,
    symmetric: bool,
    run: Any,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the scale and the zero point of each smoothed input."""
    smooths = {
        path: torch.ones_like(ranges[path].absmax) if one.smooth is None else one.smooth
        for path, one in found.items()
    }
    if observer == "min_max":
        return {path: range_after(ranges[path], s, symmetric) for path, s in smooths.items()}
    watchers = {path: SmoothedObserver(OBSERVERS[observer](), s) for path, s in smooths.items()}
    run(watchers, "smoothed ranges")
    return {
        path: watcher.observer.calculate_qparams(symmetric=symmetric)
        for path, watcher in watchers.items()
    }
