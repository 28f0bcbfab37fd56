# SPDX-License-Identifier: BSD-3-Clause
"""``prepare_``: a float model becomes one that trains for its life as integers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..configs import TRAINING_OBSERVERS, Config
from ..nn import FakeQuantize, LearnedFakeQuantize
from .calibration.observers import Observer
from .calibration.run import Calibration
from .calibration.static import observe_inputs
from .replace import FilterFn, swap
from .report import Report
from .rules import Rule, Rules
from .select import Chosen, Selector, filter_of, nothing_to
from .unpack import unpacked

CALLER = "baraquant.qat.prepare_"


def prepare_(
    model: nn.Module,
    config: Config | Mapping[Rule, Config | None],
    filter_fn: FilterFn | None = None,
    *,
    calibration: Calibration | None = None,
    progress: bool = True,
) -> Report:
    """Swap the layers of ``model``, in place, for layers of quantization-aware training.

    * ``Linear`` becomes :class:`baraquant.nn.FakeQuantizedLinear`,
    * convolutions and transposed ones become layers whose weights are fake-quantized, and whose
      inputs are where they have one scale (a scale per token is nothing to a convolution),
    * ``Embedding`` becomes a layer whose rows are fake-quantized,
    * ``MultiheadAttention``, ``LSTM``, ``GRU`` and ``RNN`` become those of :mod:`baraquant.nn`,
      with a ``FakeQuantizedLinear`` for each of their products in place of packed weights,
    * kinds of your own that :func:`baraquant.register_layer` knows.

    A subclass of ``Linear`` or ``Embedding`` whose ``forward`` calls its parent's keeps it. The new
    layers share their parameters with the old ones: what was tied stays tied, and an optimizer that
    was made before goes on, but for learned scales and for what was packed, which are new
    parameters. Layers that occur several times are swapped once. Hooks are taken over. All is
    decided before the first swap: an error leaves the model as it was. The fused evaluation of
    ``TransformerEncoder``, which would go past the new layers, is switched off.

    A weight that several layers share stays one, with one scale, learned or not. Where one of these
    layers stays floating, the others do too: the model would hold the weight twice. A layer that
    the configuration does not fit (a group size that does not divide its inputs) stays floating.

    Prepare a model before it is compiled, scripted or wrapped for several processes. Scales of
    inputs that are not dynamic come from ``calibration``, or from the first batch in training:
    until then evaluation is refused (learned) or gives NaN (static). Learned ones have to be known
    before the model is wrapped; they are float32, which ``fully_shard`` does not take beside
    parameters of another dtype: keep those float32 too, with
    ``MixedPrecisionPolicy(param_dtype=torch.bfloat16)``.

    Args:
        model: Holds the layers; its root stays.
        config: A :class:`baraquant.QuantConfig`, as :func:`baraquant.W8A8` and the like return one.
            Or a dictionary from patterns of paths (``"encoder.*"``, by :mod:`fnmatch`) or types
            (``nn.Embedding``) to such configurations: the first that matches counts, and None
            leaves a layer floating.
        filter_fn: ``filter_fn(module, name)`` says whether to swap one of these layers; None swaps
            all.
        calibration: Typical inputs, as :func:`baraquant.quantize_` takes them, from which the
            ranges of static inputs start, and the scales of learned ones. The observers
            ``percentile`` and ``mse`` need it for static inputs, and keep their range from there
            on.
        progress: Whether calibration shows a bar: on a terminal, and where rich is installed.

    Returns:
        What was swapped, what was left out and why, and how much that is; ``print`` shows a table.

    Raises:
        ValueError: No layer to swap, as the configuration fits none or for other reasons (the
            message has some); a pattern that matches no layer; two configurations for one weight; a
            layer that cannot be swapped though a key is its path; or a model wrapped for several
            processes.
        TypeError: Something that is no module, no configuration, or scripted.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> print(baraquant.qat.prepare_(model, baraquant.W8A8()).changed["0"])
        FakeQuantizedLinear(weight=int8 per_channel symmetric dynamic, \
input=int8 per_token symmetric dynamic)
    """
    rules = Rules(config, CALLER, trains=True)
    selector = Selector(CALLER, rules)
    chosen_by = filter_of(filter_fn)
    with unpacked(model, CALLER, chosen_by) as parts:
        chosen, report = selector.choose(model, filter_of(chosen_by, parts), parts)
        if not chosen:
            raise ValueError(f"{CALLER}: {nothing_to('prepare', model, report)}")
        _calibrate(model, chosen, calibration, progress)
    return swap(model, {id(one.module): one.prepared for one in chosen.values()}, report)


def _calibrate(
    model: nn.Module,
    chosen: Mapping[str, Chosen],
    calibration: Calibration | None,
    progress: bool,
) -> None:
    """Give static inputs the range of calibration data."""
    for path, one in chosen.items():
        observer = one.scheme.observer
        is_static = one.prepared.config.is_static and not one.prepared.config.activation.learned
        if calibration is None and is_static and observer not in TRAINING_OBSERVERS:
            raise ValueError(
                f"{CALLER}: {path}: expected calibration data for the observer {observer!r}, but "
                f"got None; training by itself follows {' and '.join(TRAINING_OBSERVERS)}"
            )
    if calibration is None:
        return
    observers = observe_inputs(model, chosen, calibration, progress=progress, where=CALLER)
    for (path, name), observed in observers.items():
        quantizer = chosen[path].prepared.input_quantizers()[name]
        if isinstance(quantizer, (FakeQuantize, LearnedFakeQuantize)):
            _start_range(quantizer, observed, chosen[path].scheme.observer)


def _start_range(
    quantizer: FakeQuantize | LearnedFakeQuantize, observer: Observer, name: str
) -> None:
    if isinstance(quantizer, LearnedFakeQuantize):
        ends = quantizer.quant_min, quantizer.quant_max
        quantizer.start(*observer.calculate_qparams(*ends, symmetric=quantizer.symmetric))
        return
    low, high = observer.range(quantizer.quant_min, quantizer.quant_max, quantizer.symmetric)
    with torch.no_grad():
        quantizer.min_val.copy_(low)
        quantizer.max_val.copy_(high)
        scale, zero_point = quantizer.calculate_qparams()
        quantizer.scale.copy_(scale)
        quantizer.zero_point.copy_(zero_point)
    if name not in TRAINING_OBSERVERS:
        quantizer.disable_observer()
