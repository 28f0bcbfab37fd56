# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant: moves the outliers of a layer's input into its weight (Xiao et al., 2023).

``y = (x / s) (w s)^T`` for any ``s[k] > 0``. With
``s[k] = max|x[:, k]|^alpha / max|w[:, k]|^(1 - alpha)`` neither factor has channels that are much
larger than the others, and eight bits suffice for both. Of the calibration data only the minimum
and the maximum of each channel are kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import ops
from ...configs import QuantConfig
from ...nn import FakeQuantize, FakeQuantizedLinear
from ...nn.shared.range import power_to_one
from ...schemes import SmoothQuant
from ..calibration.observers import OBSERVERS, MinMaxObserver, OutputErrors, Through
from ..calibration.run import Run
from ..passes import Chosen, Pass, Scaling, fixed_input, leave_input, register_pass
from ..transaction import write
from .flow import divided, find_groups

# None means s = 1, the unchanged layer: a search is never worse than that.
ALPHAS: tuple[float | None, ...] = (None, *(round(0.05 * step, 2) for step in range(21)))

# The number of rows of each batch that the search uses, evenly spaced.
_ROWS = 128


class ChannelRange(MinMaxObserver):
    """The running minimum and maximum of each channel (the last dimension), ``[K]`` each.

    A batch is skipped where a channel of it holds a NaN or an infinity.
    """

    _axis = -1

    @property
    def absmax(self) -> Tensor:
        """The largest absolute value of each channel, ``[K]``."""
        assert self.min_val is not None and self.max_val is not None
        return torch.maximum(-self.min_val, self.max_val)


def smoothing(absmax: Tensor, weights: Sequence[Tensor], alpha: float | None) -> Tensor:
    """Return the factors ``s`` that divide the input and multiply the weights.

    Args:
        absmax: The largest absolute value of each channel of the input, ``[K]``.
        weights: ``[N, K]`` each: all weights that are multiplied with this input.
        alpha: The share of the outliers that moves into the weights, in [0, 1]; None: none, so
            ``s = 1``.

    Returns:
        ``[K]``, of the dtype of ``absmax``; 1 if the channel or its weights are all zero.
    """
    if alpha is None:
        return torch.ones_like(absmax)
    of_input = absmax.to(torch.float64)
    of_weight = torch.stack([w.detach().abs().amax(dim=0).to(of_input) for w in weights]).amax(0)
    factors = of_input.pow(alpha) / of_weight.pow(1 - alpha)
    is_zero = (of_input == 0) | (of_weight == 0)
    # Larger factors could take a float16 or bfloat16 weight out of its range.
    return factors.clamp(1e-5, 1e5).masked_fill(is_zero, 1.0).to(absmax.dtype)


class AlphaSearch(OutputErrors):
    """Adds up the squared error of one layer's output for each of :data:`ALPHAS`.

    Args:
        weight: The weight of the layer, ``[N, K]``.
        factors: The smoothing factors of each alpha, ``[A, K]``.
        channels: The range of the input's channels, for static activations. None: dynamic
            activations, with a scale for each token.
        symmetric: Whether the activations have no zero point.
        scale_dtype: The dtype that the scales of the weights are rounded to.
        magnitudes: About the largest magnitudes of the inputs and of the weights, ``[]`` each, of
            all layers whose errors are compared. They are multiplied where these are near 1, so
            that no product overflows or vanishes. None: both are near 1.
    """

    def __init__(
        self,
        weight: Tensor,
        factors: Tensor,
        channels: ChannelRange | None,
        symmetric: bool,
        scale_dtype: str = "float32",
        magnitudes: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(len(factors), weight.device)
        one = torch.ones((), dtype=factors.dtype, device=weight.device)
        self._powers = [power_to_one(m.to(one)) for m in magnitudes or (one, one)]
        self.weight, self.factors, self.channels = weight.detach(), factors, channels
        self.symmetric = symmetric
        self._quantizer = FakeQuantize(
            granularity="per_channel", axis=0, mode="dynamic", scale_dtype=scale_dtype
        )

    def observe(self, input: Tensor) -> None:
        """Try each alpha on some rows of ``input``, ``[..., K]``, if the input is finite."""
        if input.numel() == 0:
            return
        is_finite = self.begin(input)
        rows = input.detach().reshape(-1, input.shape[-1])
        rows = rows[:: max(1, math.ceil(len(rows) / _ROWS))].to(self.factors.dtype)
        weight = self.weight.to(self.factors.dtype)
        wanted = self._product(rows, weight)
        for index, smooth in enumerate(self.factors):
            rounded = self._round(rows / smooth, smooth)
            got = self._product(rounded, self._quantizer.round(weight * smooth))
            self.add(index, got, wanted, is_finite)

    def _product(self, rows: Tensor, weight: Tensor) -> Tensor:
        of_rows, of_weight = self._powers
        return F.linear(rows * of_rows, weight * of_weight)

    def _round(self, smoothed: Tensor, smooth: Tensor) -> Tensor:
        if self.channels is None:
            return ops.dynamic_fake_quantize_per_token(smoothed, symmetric=self.symmetric)
        scale, zero_point = range_after(self.channels, smooth, self.symmetric)
        return ops.fake_quantize_per_tensor(smoothed, scale, zero_point)

    def unusable(self) -> Tensor | None:
        """Return whether no finite batch was seen, or an error is; None if nothing was seen."""
        none_finite = super().unusable()
        return None if none_finite is None else ~torch.isfinite(self.errors).all() | none_finite


def range_after(channels: ChannelRange, smooth: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of all data after smoothing, ``[]`` each."""
    assert channels.min_val is not None and channels.max_val is not None
    ends = torch.stack([channels.min_val / smooth, channels.max_val / smooth])
    return ops.choose_qparams_per_tensor(ends, symmetric=symmetric)


def find_smoothings(
    config: SmoothQuant, run: Run, weights: Mapping[str, Tensor], fixed: set[str]
) -> dict[str, Scaling]:
    """Run the calibration, up to three times, and return what to do with each layer it reaches.

    Args:
        config: The scheme.
        run: The calibration.
        weights: The weights of the linear layers to quantize, ``[out_features, in_features]``, by
            the layers' paths.
        fixed: Layers whose weights must not change, because other modules share them. They are not
            smoothed.
    """
    scheme, activation = config.activation, config.activation.activation
    assert activation is not None
    observer = scheme.observer if scheme.is_static else None
    runs = 1 + (config.alpha == "search") + (observer not in (None, "min_max"))
    if runs > 1:
        run.check_repeatable(f"{runs} times")

    ranges = {path: ChannelRange() for path in weights}
    groups, unreached = find_groups(run, ranges, fixed, "input ranges")
    if config.alpha == "search":
        _search(groups, weights, ranges, scheme, run)
    else:
        for group in groups:
            group.alpha = float(config.alpha)
            group.smooth = _factors(group, weights, ranges, group.alpha)
    found = {path: group for group in groups for path in group.layers}
    found |= {path: Scaling([path]) for path in fixed - unreached}
    if observer is None:
        return found
    qparams = _static(found, ranges, observer, activation.symmetric, run)
    return {path: replace(one, qparams=qparams[path]) for path, one in found.items()}


def _factors(
    group: Scaling,
    weights: Mapping[str, Tensor],
    ranges: Mapping[str, ChannelRange],
    alpha: float | None,
) -> Tensor:
    absmax = torch.stack([ranges[path].absmax for path in group.layers]).amax(dim=0)
    return smoothing(absmax, [weights[path] for path in group.layers], alpha)


def _search(
    groups: list[Scaling],
    weights: Mapping[str, Tensor],
    ranges: Mapping[str, ChannelRange],
    scheme: QuantConfig,
    run: Run,
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
    found: Mapping[str, Scaling],
    ranges: Mapping[str, ChannelRange],
    observer: str,
    symmetric: bool,
    run: Run,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the scale and the zero point of each smoothed input."""
    smooths = {
        path: torch.ones_like(ranges[path].absmax) if one.smooth is None else one.smooth
        for path, one in found.items()
    }
    if observer == "min_max":
        return {path: range_after(ranges[path], s, symmetric) for path, s in smooths.items()}
    watchers = {path: Through(OBSERVERS[observer](), _by(s)) for path, s in smooths.items()}
    run(watchers, "smoothed ranges")
    return {
        path: watcher.watcher.calculate_qparams(symmetric=symmetric)
        for path, watcher in watchers.items()
    }


def _by(smooth: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that divides an input by its factors."""
    return lambda input: input.detach().to(smooth.dtype) / smooth


# ---- The pass, and what it shares with others that divide the inputs of layers ------------------


class ScalesInputs(Pass):
    """A pass that divides the inputs of linear layers, where possible in the modules before."""

    name = ""  # what reports say of each scaled layer

    def __init__(self) -> None:
        self._abouts: dict[str, str] = {}
        self._folds: list[tuple[Tensor, Tensor]] = []  # what stays floating, and its new values

    def scale(
        self, found: Mapping[str, Scaling], chosen: Mapping[str, Chosen], model: nn.Module
    ) -> None:
        """Note how layers are scaled, and which modules divide their outputs for them."""
        folded: set[str] = set()
        for path, scaling in found.items():
            chosen[path].scaling = scaling
            self._abouts[path] = self.name + scaling.about()
            if scaling.producer is None or scaling.smooth is None:
                continue
            if scaling.producer in chosen:
                chosen[scaling.producer].divisor = scaling.smooth
            elif scaling.producer not in folded:
                folded.add(scaling.producer)
                producer = model.get_submodule(scaling.producer)
                self._folds += divided(producer, scaling.smooth)

    def describe(self, path: str) -> str:
        """Return the exponent, and where the division happens."""
        return self._abouts.get(path, "")

    def finish(self, model: nn.Module) -> None:
        """Fold the divisions into floating modules; quantized ones have them already."""
        for parameter, values in self._folds:
            write(parameter, values)


class SmoothQuantPass(ScalesInputs):
    """Smooths the linear layers of :class:`baraquant.SmoothQuant`."""

    def takes(self, layer: Chosen) -> bool:
        """Whether a layer is linear. One whose weight is shared is not smoothed, but calibrated."""
        return isinstance(layer.prepared, FakeQuantizedLinear)

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        """Find the factors of each layer, and the scales of static inputs."""
        for config in dict.fromkeys(one.config for one in layers.values()):
            assert isinstance(config, SmoothQuant)
            own = {path: one for path, one in layers.items() if one.config == config}
            tied = {path for path, one in own.items() if one.shares_weight}
            weights = {path: one.prepared.rows_of_weight() for path, one in own.items()}
            found = find_smoothings(config, run, weights, tied)
            for path, one in own.items():
                if path in found:
                    _fix_input(one, found[path])
                elif config.activation.is_static:
                    leave_input(path, one, run.where)
                else:
                    one.remark += "; not smoothed, as the calibration data does not reach it"
            self.scale(found, chosen, run.model)
        if not any(self._abouts.values()):
            warnings.warn(
                f"{run.where}: expected SmoothQuant to smooth a layer, but it smooths none: "
                "no linear layer is reached by the calibration data and gains from it",
                stacklevel=4,
            )


def _fix_input(one: Chosen, scaling: Scaling) -> None:
    activation = one.scheme.activation
    if scaling.qparams is not None:
        assert activation is not None
        one.prepared.input_fake_quant = fixed_input(scaling.qparams, activation, one.module)


register_pass(SmoothQuant, SmoothQuantPass)
