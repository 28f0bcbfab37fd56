# SPDX-License-Identifier: BSD-3-Clause
"""``prepare_``: prepares a float model for quantization-aware training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..configs import TRAINING_OBSERVERS, Config
from ..nn import FakeQuantize, LearnedFakeQuantize, QuantizesWeight
from ..nn.shared.rotation import rotate_of
from ..schemes import Algorithm
from . import awq, gptq, smoothquant  # noqa: F401 - each registers its pass
from .calibration.observers import Observer
from .calibration.run import Calibration, Run
from .computed import is_computed as computes_weight
from .convert import Maker
from .passes import (
    Chosen,
    Pass,
    as_prepared,
    check_calibrated,
    observe_inputs,
    pass_of,
    passes_of,
    plan_passes,
)
from .quantize import after_training
from .replace import swap
from .report import Report, completed, warn_if_no_faster, with_weights
from .select import Rule, Rules, Selector, filter_of, nothing_to
from .start import can_start, set_weight, start, stored_of
from .transaction import are_kept, changes_model, keep_values, run_to_end, unwritable, write
from .unpack import unpack_modules
from .view import FilterFn

CALLER = "baraquant.qat.prepare_"


@changes_model
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
    * convolutions and transposed convolutions become layers with fake-quantized weights, and with
      fake-quantized inputs if the inputs have one scale (not one per token),
    * ``Embedding`` becomes a layer whose rows are fake-quantized,
    * ``MultiheadAttention``, ``LSTM``, ``GRU`` and ``RNN`` become the modules of
      :mod:`baraquant.nn`, which have a ``FakeQuantizedLinear`` for each product instead of packed
      weights,
    * layers that you registered with :func:`baraquant.register_layer` become your classes.

    Training may start where quantization ends. What was found is then held by scales (zero points,
    factors) that are learned, whatever the configuration says of them, and by float weights that
    round to the integers found. Preparing, evaluating and converting give the integers, scales and
    logits that were found, bit for bit:

    * With :class:`~baraquant.GPTQ`, :class:`~baraquant.AWQ` or another
      :class:`~baraquant.Algorithm`, its pass runs as in :func:`baraquant.quantize_`. A float weight
      moves no farther than it has to: to the point nearest to it (with AWQ, to the scaled weight)
      that rounds to the integer. So the float weights, and a :func:`teacher`, stay near the model.
      Layers that the pass leaves alone start as without it; the report says so. AWQ changes norms
      and layers before, as ever. :class:`~baraquant.SmoothQuant` is refused, as a layer may divide
      its input.
    * A layer that is quantized already, by :func:`baraquant.quantize_`, from a file or from another
      format, starts at its integers, with the float weight that they stand for and with the range
      of a static input. The configuration has to fit what is stored. An input that is stored
      floating stays floating. Floating layers beside it are prepared as ever. Experts, layers of
      your own and layers that divide their input stay as they are; the report says so.

    With ``master`` the scales are rounded to that dtype.

    A layer whose weight PyTorch computes, as by ``weight_norm`` or pruning, goes on to compute it
    of the same parameters. Such a layer is not rotated.

    A subclass of ``Linear`` or ``Embedding`` keeps its ``forward`` if this calls the parent's. The
    new layers share their parameters with the old ones: tied weights stay tied, and an optimizer
    that was made before stays valid. Exceptions are learned scales and unpacked weights, which are
    new parameters. A layer that occurs several times is swapped once. Hooks are kept. An error of
    any kind, also an interrupt, leaves the model unchanged. The fused evaluation of
    ``TransformerEncoder`` is switched off, because it would bypass the new layers.

    With ``rotate`` in the configuration, the weights of rotated layers are rotated in place, in the
    same parameters; load floating weights before. If these and those that an algorithm has changed
    take more than 1 GiB, an interrupt waits from the first change on. What an optimizer has kept of
    earlier steps is not rotated. Reading ``layer.weight`` gives the weight before the rotation.

    A weight that several layers share stays one weight with one scale, learned or not. If one of
    these layers stays floating, the others do too: otherwise the model would hold the weight twice.
    A layer stays floating if the configuration does not fit it, for example if the group size does
    not divide its inputs.

    Prepare a model before it is compiled, scripted or wrapped for several processes. Scales of
    inputs that are not dynamic come from ``calibration`` or from the first batch in training.
    Before that, evaluation raises an error (learned scales) or gives NaN (static scales). Learned
    scales must be known before the model is wrapped. They are float32, and ``fully_shard`` does not
    accept parameters of different dtypes: keep the other parameters float32 too, with
    ``MixedPrecisionPolicy(param_dtype=torch.bfloat16)`` and ``master="bfloat16"`` in the
    configuration, as in :class:`baraquant.QuantConfig`.

    Args:
        model: The model that contains the layers; the root itself is not swapped.
        config: A :class:`baraquant.QuantConfig`, for example :func:`baraquant.W8A8`, or an
            :class:`baraquant.Algorithm` such as ``GPTQ(W4A16())``, or a dictionary of them, as for
            :func:`baraquant.quantize_`.
        filter_fn: ``filter_fn(module, name)`` says whether to swap a layer, as for
            :func:`baraquant.quantize_`; None swaps all.
        calibration: Typical inputs, as for :func:`baraquant.quantize_`. They give the initial
            ranges of static inputs and the initial learned scales. The observers ``percentile`` and
            ``mse`` need them for static inputs, and keep the range from then on. So do algorithms.
        progress: Whether calibration shows a progress bar, on a terminal and if rich is installed.

    Returns:
        A report of what was swapped, what was left out and why, and their sizes; ``print`` shows a
        table.

    Raises:
        ValueError: There is no layer to swap (the message has reasons); a pattern matches no layer;
            a configuration does not fit what a quantized layer stores (the message says what that
            is), or its scales cannot be learned for what training starts at (``ternary``, or
            ``backward`` without factors); there is no calibration data for an algorithm;
            one weight gets two configurations; a layer cannot be swapped although a key is its
            path; a weight to rotate shares memory; or the model is wrapped for several processes.
        TypeError: ``model`` is not a module or is scripted, or ``config`` is not a configuration.

    Warns:
        UserWarning: What is trained will not be faster, as :func:`baraquant.quantize_` says it: a
            scheme rounds inputs, and its layers will compute in floating point, at least nine
            tenths of their multiply-adds. Or a key of the dictionary, or ``filter_fn``, decides
            nothing. Or calibration data held a NaN or an infinity.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> print(baraquant.qat.prepare_(model, baraquant.W8A8()).changed["0"])
        FakeQuantizedLinear(weight=int8 per_channel symmetric dynamic, \
input=int8 per_token symmetric dynamic)
        >>> model, data = torch.nn.Sequential(torch.nn.Linear(64, 8)), [torch.randn(16, 64)]
        >>> scheme = baraquant.GPTQ(baraquant.W4A16(32))
        >>> print(baraquant.qat.prepare_(model, scheme, calibration=data).changed["0"])
        FakeQuantizedLinear(weight=int4 per_group(32) symmetric learned, input=float), GPTQ
    """
    rules = Rules(config, CALLER, trains=True)
    algorithms = [one for one in rules.configs() if isinstance(one, Algorithm)]
    check_calibrated(algorithms, calibration, CALLER)
    selector = Selector(CALLER, rules, trains=True)
    chosen_by = filter_of(filter_fn)
    parts = unpack_modules(model, CALLER, chosen_by, computed=False)
    chosen, report = selector.choose(parts, chosen_by)
    if not chosen:
        raise ValueError(f"{CALLER}: {nothing_to('prepare', parts.view, report)}")
    run = Run(model, calibration, progress, CALLER)
    found, passes = _found(chosen, selector, run) if algorithms else ({}, {})
    floating = {path: one for path, one in chosen.items() if one.made is None}
    _calibrate(floating, run)
    warn_if_no_faster(as_prepared(chosen), CALLER)
    _write(model, floating, found)
    abouts = dict(report.changed)
    for path, one in chosen.items():
        of_pass = found.get(path, one)
        told = "" if of_pass.algorithm is None else of_pass.algorithm.describe(path)
        abouts[path] += told + one.remark + (of_pass.remark if of_pass is not one else "")
    swaps = {path: (one.module, one.prepared) for path, one in chosen.items()}
    stored = [path for path, one in chosen.items() if one.made is not None]
    for held in (chosen, floating, found, *passes.values()):
        held.clear()  # nothing holds a layer that is swapped
    report = swap(model, swaps, replace(report, changed=abouts))
    parts.release()
    for each in passes:
        each.finish(model)
    return completed(with_weights(report, model, stored), model)


def _found(
    chosen: Mapping[str, Chosen], selector: Selector, run: Run
) -> tuple[dict[str, Chosen], dict[Pass, dict[str, Chosen]]]:
    """Let the passes of algorithms plan; return their layers as quantize_ would choose them."""
    found: dict[str, Chosen] = {}
    for path, one in chosen.items():
        if one.made is not None:
            continue
        scheme = after_training(one.scheme, one.layer)
        if computes_weight(one.module):
            made: nn.Module | str = "PyTorch computes its weight"
        elif can_start(one.layer):
            made = selector.prepare_as(one.module, one.layer, one.config, scheme)
        else:
            made = f"no training starts from a {one.layer.forms[0].module.__name__}"
        if not isinstance(made, str):
            found[path] = replace(one, prepared=made, remark="")
        elif isinstance(one.config, Algorithm):
            one.remark += f"; {pass_of(one.config).instead}, as {made}"
    prepared_as = {path: one.prepared for path, one in found.items()}
    passes = passes_of(found, run)
    plan_passes(passes, found, run)
    for path, before in prepared_as.items():
        one = found[path]
        if one.prepared is not before:  # its static input was not reached
            one.prepared, one.made, one.algorithm = before, None, None
            one.remark = "; the calibration data does not reach it"
    return found, passes


def _write(model: nn.Module, chosen: Mapping[str, Chosen], found: Mapping[str, Chosen]) -> None:
    """Write the weights that are rotated, or that passes have changed, in place."""
    maker = Maker(found.values(), CALLER)
    made = {  # before anything is written
        path: maker.make(path, one)
        for path, one in found.items()
        if one.algorithm is not None or one.divisor is not None
    }
    layers = {path: one.prepared for path, one in chosen.items() if one.rotate > 0 or path in made}
    weights = [layer._parameters["weight"] for layer in layers.values()]
    reasons = unwritable(model) if weights else {}
    for (path, layer), weight in zip(layers.items(), weights, strict=True):
        if id(weight) in reasons:
            what = "rotated" if rotate_of(layer) > 0 else "changed"
            raise ValueError(
                f"{CALLER}: {path}: expected a weight that can be {what} in place, but "
                f"{reasons[id(weight)]}; give the layer a copy of it"
            )
    if not are_kept(weights):
        run_to_end()
    keep_values(*weights)
    for path, layer in layers.items():
        if path not in made:
            layer.rotate_weight_()
            continue
        rows, bias = maker.float_rows(path, found[path])  # of the weight as it is before
        if rotate_of(layer) > 0:
            layer.rotate_weight_()
        found[path].remark += _start(layer, made.pop(path), rows)
        if found[path].divisor is not None and bias is not None:
            write(layer.bias, bias)


def _start(layer: QuantizesWeight, made: nn.Module, rows: Tensor) -> str:
    """Let a prepared layer start at what its quantized one stores; return a remark."""
    quantizer = layer.weight_fake_quant
    if isinstance(quantizer, LearnedFakeQuantize):
        remark: str = start(layer, stored_of(made), rows)
        return remark
    set_weight(layer, rows)  # of a layer before, whose configuration has no pass
    if quantizer.is_observed:
        with torch.no_grad():
            quantizer(layer._as_rows(layer._channels_first(layer.weight_to_round())))
    return ""


def _calibrate(chosen: Mapping[str, Chosen], run: Run) -> None:
    """Give static inputs the ranges of the calibration data."""
    for path, one in chosen.items():
        observer = one.scheme.observer
        is_static = one.prepared.config.is_static and not one.prepared.config.activation.learned
        if run.data is None and is_static and observer not in TRAINING_OBSERVERS:
            raise ValueError(
                f"{CALLER}: {path}: expected calibration data for the observer {observer!r}, but "
                f"got None; training by itself follows {' and '.join(TRAINING_OBSERVERS)}"
            )
    if run.data is None:
        return
    observers = observe_inputs(chosen, run)
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
