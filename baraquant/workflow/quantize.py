# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: a float model becomes one of integers, without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..configs import W8A8, QuantConfig, SmoothQuant, W8A8Static, what_it_is
from ..nn import (
    FakeQuantizedConv1d,
    FakeQuantizedConv2d,
    MultiheadAttention,
    QuantizedEmbedding,
    QuantizedLinear,
    StaticQuantizedLinear,
)
from ..nn.training.linear import MOST_FEATURES, MOST_SHIFTED_FEATURES
from .calibration.observers import OBSERVERS
from .calibration.run import Calibration, calibrate
from .convert import Converter
from .prepare import CONVERTED, FLOAT, PREPARED, unknown_weights
from .replace import (
    FilterFn,
    Report,
    Swap,
    choose_swaps,
    replace_modules,
    take_over,
    why_not,
)
from .smoothquant.producers import fold, parameter_owners
from .smoothquant.smoothing import Smoothing, find_smoothings
from .unpack_attention import unpacked_attention, within

_CALLER = "baraquant.quantize_"
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)
_EMPTY = "it has no inputs or no outputs: there is nothing to calibrate"


def quantize_(
    model: nn.Module,
    config: W8A8 | W8A8Static | SmoothQuant,
    calibration: Calibration | None = None,
    filter_fn: FilterFn | None = None,
    *,
    progress: bool = True,
) -> Report:
    """Quantize linear layers, convolutions, attentions and embeddings of a trained model in place.

    Weights become int8 with a scale for each output channel, embeddings int8 with a scale for each
    row. Weights that are tied stay tied, and floating together where one of their layers cannot be
    quantized; a module in several places stays one module. An attention
    of PyTorch becomes a :class:`baraquant.nn.MultiheadAttention` of such layers.

    Of ``Conv1d`` and ``Conv2d`` only the weight is quantized, whatever the scheme: no convolution
    computes with integers here, so rounding its input would cost accuracy and gain nothing. The
    layers have the bits of :func:`baraquant.qat.prepare_` and ``convert_`` with W8A8.

    Where ``config`` is :class:`~baraquant.SmoothQuant`, the division of an input is folded into the
    LayerNorm, RMSNorm or Linear before it, if nothing else reads that one's output, as found on the
    calibration data; else it goes into the quantization of the layer's input. A linear layer that
    ``filter_fn`` keeps floating can be that one: it then has other weights.

    Args:
        model: The model; its root has to contain the layers.
        config: The scheme.
        calibration: Typical inputs, for :class:`~baraquant.W8A8Static` and
            :class:`~baraquant.SmoothQuant`: batches (a tuple is passed as ``model(*batch)``, a
            mapping as ``model(**batch)``, all else as ``model(batch)``), or a function that is
            called with the model and runs it: ``lambda model: [model(x) for x, _ in loader]``
            where batches hold labels too. W8A8 does not look at it. The model runs in evaluation
            mode; what is kept of the data does not grow with it.
        filter_fn: ``filter_fn(module, name)`` says whether to quantize a Linear, a Conv1d or
            Conv2d, an Embedding, or the projections of a MultiheadAttention; None: all.
        progress: Whether calibration shows a bar: on a terminal, and where rich is installed.

    Returns:
        What was quantized, and what was left out and why; ``print`` shows a table.

    Raises:
        ValueError: No layer can be quantized; a weight is not finite; no calibration data, none
            that is finite for a layer, or a layer that it does not reach. The message has the
            layer's path, and the model is as it was.
        TypeError: A config, model or filter of another type, or a first batch that the model does
            not take.

    Warns:
        UserWarning: Inputs with a NaN or an infinity were left out; with the layers and the counts.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> batches = [torch.randn(16, 4) for _ in range(4)]
        >>> report = baraquant.quantize_(model, baraquant.SmoothQuant(alpha=0.5), batches)
        >>> print(report)
        0  QuantizedLinear, alpha 0.5 in its input
        2  QuantizedLinear, alpha 0.5 folded into 0
        2 changed, 0 left out
    """
    _check_config(config)
    if calibration is None and not isinstance(config, W8A8):
        raise ValueError(
            f"{_CALLER}: expected calibration data for {type(config).__name__}, but got None"
        )
    # What is no function is refused where it is used, as prepare_ does.
    chosen = _Memory(filter_fn) if callable(filter_fn) else filter_fn
    with unpacked_attention(model, _CALLER, chosen) as attentions:
        if isinstance(chosen, _Memory):
            chosen.accept(attentions)
        layers, left_out = _layers(model, config, chosen)
        plan = _plan(model, config, calibration, layers, progress)
        maker = _Maker(config, plan)
        modules = {id(layer): maker.make(path, layer) for path, layer in layers.items()}
        report = replace_modules(
            model,
            _CALLER,
            lambda module, name: modules.get(id(module)) or left_out.get(name),
            chosen,
            _is_candidate,
        )
    _fold(model, layers, plan)
    return report


def _check_config(config: Any) -> None:
    if not isinstance(config, (W8A8, W8A8Static, SmoothQuant)):
        is_qat = isinstance(config, QuantConfig)
        hint = "; baraquant.qat.prepare_ and convert_ take one" if is_qat else ""
        raise TypeError(
            f"{_CALLER}: expected config to be W8A8, W8A8Static or SmoothQuant, "
            f"but got {what_it_is(config)}{hint}"
        )


def _is_symmetric(config: Any) -> bool:
    """Whether the activations' integers have zero in the middle."""
    symmetric: bool = (config.activation if isinstance(config, SmoothQuant) else config).symmetric
    return symmetric


class _Memory:
    """Asks a filter once for each module and name; not for the parts of an attention."""

    def __init__(self, filter_fn: FilterFn) -> None:
        self._filter_fn = filter_fn
        self._answers: dict[tuple[int, str], bool] = {}
        self._is_part = within(set())

    def accept(self, attentions: set[str]) -> None:
        """Take what is below these paths: the filter has been asked for the whole."""
        self._is_part = within(attentions)

    def __call__(self, module: nn.Module, name: str) -> bool:
        if self._is_part(name):
            return True
        key = id(module), name
        if key not in self._answers:
            self._answers[key] = bool(self._filter_fn(module, name))
        return self._answers[key]


def _is_candidate(module: nn.Module) -> bool:
    return isinstance(module, FLOAT)


def _why_not(module: nn.Module, config: Any) -> str | None:
    """Why a module with weights stays as it is; None: it can be quantized, or has none."""
    if isinstance(module, CONVERTED):
        return "it is quantized already"
    if isinstance(module, PREPARED):
        return "it is prepared for training; convert it with baraquant.qat.convert_"
    if isinstance(module, nn.MultiheadAttention):
        return MultiheadAttention.why_not(module)
    if isinstance(module, nn.Linear):
        return why_not(module, nn.Linear) or _why_not_linear(module, config)
    if isinstance(module, nn.Embedding):
        reason = why_not(module, nn.Embedding)
        return reason or ("max_norm changes its weight" if module.max_norm is not None else None)
    for kind in (nn.Conv1d, nn.Conv2d):
        if isinstance(module, kind):
            return why_not(module, kind)
    return unknown_weights(module)


def _layers(
    model: nn.Module, config: Any, filter_fn: FilterFn | None
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers to quantize by their first path, and why others with weights are none."""

    def note(module: nn.Module, name: str) -> Swap | str | None:
        reason = _why_not(module, config)
        if reason is not None or not isinstance(module, _LAYERS):
            return reason
        if name == "":
            raise ValueError(
                f"expected a model that contains the layers to quantize, but got a "
                f"{type(module).__name__} itself; wrap it in nn.Sequential"
            )
        _check_weight(module.weight)
        return Swap(module, "")

    _, report = choose_swaps(model, _CALLER, note, filter_fn, _is_candidate, keeps_ties=True)
    at = dict(model.named_modules())
    layers = {name: at[name] for name in report.changed}
    if not layers:
        raise ValueError(
            f"{_CALLER}: expected a model with a Linear, Conv1d, Conv2d or Embedding to quantize, "
            f"but {type(model).__name__} has none{report.reasons()}"
        )
    return layers, report.left_out


def _why_not_linear(module: nn.Linear, config: Any) -> str | None:
    """Why the scheme does not fit a linear layer."""
    if not isinstance(config, W8A8) and 0 in (module.in_features, module.out_features):
        return _EMPTY
    symmetric = _is_symmetric(config)
    most = MOST_FEATURES if symmetric else MOST_SHIFTED_FEATURES
    if module.in_features > most:
        zero = "" if symmetric else " with a zero point (symmetric=False)"
        return f"its in_features are more than {most}{zero}: {module.in_features}"
    return None


def _check_weight(weight: Tensor) -> None:
    if weight.is_meta:
        raise ValueError("expected a weight with data, but it is on the meta device")
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("expected a finite weight, but it holds NaN or infinity")


def _plan(
    model: nn.Module,
    config: Any,
    calibration: Calibration | None,
    layers: dict[str, nn.Module],
    progress: bool,
) -> dict[str, Smoothing]:
    """Return what calibration says of each linear layer."""
    linears = {path: layer for path, layer in layers.items() if isinstance(layer, nn.Linear)}
    if isinstance(config, W8A8) or not linears:
        return {path: Smoothing() for path in linears}
    assert calibration is not None
    if isinstance(config, W8A8Static):
        observers = {path: OBSERVERS[config.observer]() for path in linears}
        calibrate(model, calibration, observers, progress=progress, where=_CALLER)
        return {
            path: Smoothing(qparams=observer.calculate_qparams(symmetric=config.symmetric))
            for path, observer in observers.items()
        }
    owners = parameter_owners(model)
    tied = {path for path, linear in linears.items() if owners[id(linear.weight)] > 1}
    return find_smoothings(
        model, config, calibration, linears, fixed=tied, progress=progress, where=_CALLER
    )


@dataclass
class _Maker:
    """Makes the modules of integers; layers that share a weight share its integers."""

    config: Any
    plan: dict[str, Smoothing]

    def __post_init__(self) -> None:
        self._shared: dict[int, tuple[Tensor, Tensor]] = {}
        self._converter = Converter()
        self._symmetric = _is_symmetric(self.config)
        # What a layer's own output is divided by, for the layers behind it.
        self._divisors = {
            one.producer: one.smooth for one in self.plan.values() if one.producer is not None
        }

    def make(self, path: str, layer: nn.Module) -> Swap:
        """Return the module that takes the place of ``layer``."""
        if isinstance(layer, nn.Embedding):
            weight, scale = self._integers(layer.weight)
            new: nn.Module = QuantizedEmbedding(
                weight, scale, dtype=layer.weight.dtype, padding_idx=layer.padding_idx
            )
            about = "QuantizedEmbedding"
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            new = self._conv(layer)
            about = type(new).__name__
        else:
            new = self._linear(path, layer)
            about = type(new).__name__ + _about(self.plan[path])
        take_over(new, layer)
        return Swap(new, about)

    def _linear(self, path: str, layer: nn.Module) -> nn.Module:
        one, divisor = self.plan[path], self._divisors.get(path)
        bias = None if layer.bias is None else layer.bias.detach()
        if one.smooth is None and divisor is None:
            weight, scale = self._integers(layer.weight)
        else:
            with torch.no_grad():
                product = layer.weight.to(one.smooth if divisor is None else divisor)
                if one.smooth is not None:
                    product = product * one.smooth
                if divisor is not None:
                    product = product / divisor[:, None]
                    bias = None if bias is None else (bias / divisor).to(bias.dtype)
            weight, scale = _quantize(product)
        smooth = one.smooth if one.producer is None else None
        if one.qparams is None:
            return QuantizedLinear(
                weight,
                scale,
                bias,
                symmetric=self._symmetric,
                smooth=smooth,
                dtype=layer.weight.dtype,
            )
        act_scale, zero_point = (value.to(weight.device) for value in one.qparams)
        act_scale = act_scale.to(scale.dtype)
        return StaticQuantizedLinear(
            weight,
            scale,
            act_scale,
            bias,
            act_zero_point=None if self._symmetric else zero_point,
            smooth_scale=None if smooth is None else act_scale * smooth,
            dtype=layer.weight.dtype,
        )

    def _conv(self, layer: nn.Conv1d | nn.Conv2d) -> nn.Module:
        kind = FakeQuantizedConv1d if isinstance(layer, nn.Conv1d) else FakeQuantizedConv2d
        swap = self._converter.decide(kind.from_float(layer, W8A8()))
        assert isinstance(swap, Swap)
        return swap.module

    def _integers(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        if id(weight) not in self._shared:
            self._shared[id(weight)] = _quantize(weight)
        return self._shared[id(weight)]


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 ``[N, K]`` and the scale of each row, ``[N]``."""
    integers, scale, _ = ops.dynamic_range_quantize_per_channel(weight.detach(), 0)
    return integers.contiguous(), scale


def _about(one: Smoothing) -> str:
    if one.alpha is None:
        return ""
    where = "in its input" if one.producer is None else f"folded into {one.producer}"
    return f", alpha {one.alpha:g} {where}"


def _fold(model: nn.Module, layers: dict[str, nn.Module], plan: dict[str, Smoothing]) -> None:
    """Divide in the modules before the smoothed layers; quantized ones have been made so."""
    at = dict(model.named_modules())
    folded = {one.producer: one.smooth for one in plan.values() if one.producer is not None}
    for path, smooth in folded.items():
        if path not in layers and smooth is not None:
            fold(at[path], smooth)
