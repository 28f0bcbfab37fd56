# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: quantizes a float model without training.

Each layer is prepared as for training, gets its scales from calibration and from its weights, and
is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from ..configs import Config, QuantConfig
from . import awq, gptq, smoothquant  # noqa: F401 - each registers its pass
from .calibration.run import Calibration, Run
from .convert import swap_layers
from .layers import Layer, weights_of
from .passes import as_prepared, check_calibrated, passes_of, plan_passes
from .report import Report, completed, warn_if_no_faster
from .select import Rule, Rules, Selector, filter_of, nothing_to
from .transaction import changes_model
from .unpack import unpack_modules
from .view import FilterFn

_CALLER = "baraquant.quantize_"


@changes_model
def quantize_(
    model: nn.Module,
    config: Config | Mapping[Rule, Config | None],
    *,
    calibration: Calibration | None = None,
    filter_fn: FilterFn | None = None,
    progress: bool = True,
) -> Report:
    """Quantize the layers of a trained model in place.

    It takes every scheme that :func:`baraquant.qat.prepare_` takes, swaps the same kinds of layers
    (linear layers, convolutions, embeddings, attentions, recurrent layers and your own), and makes
    the same layers as :func:`baraquant.qat.convert_`. It finds the scales that training would learn
    or observe: the scale of an input from the calibration data, and the scale of a weight of fewer
    than eight bits by ``scale_rule``. Tied weights stay tied; if one of their layers cannot be
    quantized, all of them stay floating. A module in several places stays one module. Of a layer
    whose weight PyTorch computes, as by ``weight_norm`` or pruning, the result is quantized.

    A convolution quantizes only its weight, unless the scheme has ``conv_inputs=True``. With it a
    convolution multiplies integers (:class:`baraquant.nn.QuantizedConv2d` says when), here and in
    other runtimes. Without it, it computes in floating point.

    With :class:`~baraquant.SmoothQuant`, the division of an input is folded into the preceding
    LayerNorm, RMSNorm or Linear if nothing else reads its output: in a run on the calibration data,
    and by the code in other calls, as what a model's body returns, or reads under a condition.
    Otherwise the division becomes part of the quantization of the input. The preceding layer may
    also be one that ``filter_fn`` keeps floating: its weights then change.

    :class:`~baraquant.AWQ` folds factors in the same way, but for the sake of the weights: inputs
    stay floating, and a layer whose division nothing can absorb is not scaled.

    With :class:`~baraquant.GPTQ` the weights of linear layers are rounded so that the errors of the
    output cancel. The model then runs often: see there.

    An error of any kind, also an interrupt, leaves the model as it was. If the float weights take
    more than 1 GiB, each float layer is freed as soon as it is replaced, after all were checked; an
    interrupt then waits until the last is replaced.

    Some models read a layer's weight and never call it, or call it in some uses alone. A layer that
    the calibration data does not reach keeps a floating input, is not smoothed, or is rounded to
    nearest; the report says so.

    Args:
        model: The model; its root has to contain the layers.
        config: A :class:`baraquant.QuantConfig`, for example :func:`baraquant.W8A8` or
            :func:`baraquant.W4A16`, or :class:`baraquant.SmoothQuant`, :class:`baraquant.AWQ` or
            :class:`baraquant.GPTQ`. Or a dictionary from path patterns (``"encoder.*"``, by
            :mod:`fnmatch`) or types (``nn.Embedding``) to configurations: the first match counts,
            and None leaves a layer floating.
        calibration: Typical inputs, for schemes with static inputs, for
            :class:`~baraquant.SmoothQuant`, :class:`~baraquant.AWQ` and :class:`~baraquant.GPTQ`;
            other schemes ignore it. Either an iterable of batches (a tuple is passed as
            ``model(*batch)``, a mapping as ``model(**batch)``, anything else as ``model(batch)``),
            or a function that is called with the model and runs it, for
            example ``lambda model: [model(x) for x, _ in loader]`` if batches also hold labels. The
            model runs in evaluation mode. The memory does not grow with the data.
        filter_fn: ``filter_fn(module, name)`` says whether to quantize a layer; None quantizes all.
            It is asked for each layer by its name in the report. Of an attention or a recurrent
            layer it is asked for the whole, which False leaves out, and for each part, such as
            ``lstm.cells.l0.ih``.
        progress: Whether calibration shows a progress bar, on a terminal and if rich is installed.

    Returns:
        A report of what was quantized, what was left out and why, and their sizes; ``print`` shows
        it.

    Raises:
        ValueError: No layer can be quantized; a weight is not finite; no calibration data, none
            that is finite for a layer, or none that reaches one; a pattern that matches no
            layer; two configurations for one weight; or a layer that cannot be quantized though a
            key is its path. The message has the layer's path.
        TypeError: ``config``, ``model`` or ``filter_fn`` has another type, or the model does not
            take the first batch.

    Warns:
        UserWarning: Inputs with a NaN or an infinity were ignored; the warning has the layers and
            the counts. Or a scheme rounds inputs, and its layers compute in floating point, at
            least nine tenths of their multiply-adds. Or a key of the dictionary, or ``filter_fn``,
            decides nothing.
            Or :class:`~baraquant.SmoothQuant` smoothed no layer. Or :class:`~baraquant.GPTQ` used
            another damping than it was given.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> batches = [torch.randn(16, 4) for _ in range(4)]
        >>> scheme = baraquant.SmoothQuant(alpha=0.5)
        >>> report = baraquant.quantize_(model, scheme, calibration=batches)
        >>> report.changed["2"]
        'QuantizedLinear, alpha 0.5 folded into 0'
    """
    rules = Rules(config, _CALLER, trains=False)
    check_calibrated(rules.configs(), calibration, _CALLER)
    selector = Selector(_CALLER, rules, after_training, check_module)
    chosen_by = filter_of(filter_fn)
    parts = unpack_modules(model, _CALLER, chosen_by)
    chosen, report = selector.choose(parts, chosen_by)
    if not chosen:
        raise ValueError(f"{_CALLER}: {nothing_to('quantize', parts.view, report)}")
    run = Run(model, calibration, progress, _CALLER)
    passes = passes_of(chosen, run)
    plan_passes(passes, chosen, run)
    # Before layers are swapped that may not be kept: a warning may be an error.
    warn_if_no_faster(as_prepared(chosen), _CALLER)
    for held in (parts.before, *passes.values()):
        held.clear()  # nothing holds a float layer that is swapped
    report = swap_layers(model, chosen, report, _CALLER)
    parts.release()
    for each in passes:
        each.finish(model)
    total, before = parts.given.total_parameters, parts.given.bytes_before
    return completed(replace(report, total_parameters=total, bytes_before=before), model)


def after_training(config: QuantConfig, layer: Layer) -> QuantConfig:
    """Return a configuration as it is without training."""
    if layer.keeps_input and not config.conv_inputs:
        config = config.with_floating_input()
    weight = replace(config.weight, learned=False, dynamic=True)
    activation = config.activation
    if activation is not None and activation.learned:
        activation = replace(activation, learned=False, dynamic=False)
    plain = config.with_float_backward()
    return replace(plain, weight=weight, activation=activation)


def check_module(module: nn.Module, config: Config) -> str | None:
    """Check that the weights of a float module have data and are finite; none keeps it floating."""
    for weight in weights_of(module):
        if weight.is_meta:
            raise ValueError("expected a weight with data, but it is on the meta device")
        # Its ends are finite if all of it is: no tensor of its size is needed.
        if weight.numel() > 0 and not torch.stack(torch.aminmax(weight.detach())).isfinite().all():
            raise ValueError("expected a finite weight, but it holds NaN or infinity")
    return None
