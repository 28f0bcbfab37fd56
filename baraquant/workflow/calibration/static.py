# SPDX-License-Identifier: BSD-3-Clause
"""Finds the ranges of static inputs, with an observer for each input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ... import ops
from ...configs import TensorConfig
from ...nn import FakeQuantize, FakeQuantizedExperts, LearnedFakeQuantize, QuantizesWeight
from ...nn.shared.rotation import rotate_of
from ..layers import weights_of
from ..passes import Chosen
from ..replace import put
from .observers import OBSERVERS, Observer, Through
from .run import UNREACHED, Run, Watcher


def calibrate_inputs(chosen: Mapping[str, Chosen], run: Run) -> None:
    """Give layers with static inputs the scales of their observers."""
    if run.data is None:
        return
    observers = observe_inputs(chosen, run)
    reached = {path for path, _ in observers}
    for path, one in chosen.items():
        if one.prepared.config.is_static and path not in reached:
            leave_input(path, one, run.where)
    for (path, name), observer in observers.items():
        activation = chosen[path].prepared.config.activation
        low, high = activation.quant_min, activation.quant_max
        qparams = observer.calculate_qparams(low, high, symmetric=activation.symmetric)
        setattr(chosen[path].prepared, name, fixed_input(qparams, activation, chosen[path].module))


def leave_input(path: str, one: Chosen, caller: str) -> None:
    """Let a layer that no calibration data reaches keep a floating input."""
    if not isinstance(one.prepared, QuantizesWeight):
        raise ValueError(f"{caller}: {path}: {UNREACHED}")
    one.prepared = one.prepared.with_floating_input()
    one.remark += "; its input stays floating, as the calibration data does not reach it"


def fixed_input(
    qparams: tuple[Tensor, Tensor], activation: TensorConfig, module: nn.Module
) -> FakeQuantize:
    """Return what rounds a static input: a scale and a zero point, on the device of the layer."""
    scale, zero_point = (value.to(weights_of(module)[0].device) for value in qparams)
    low, high = activation.quant_min, activation.quant_max
    return FakeQuantize(scale, zero_point, quant_min=low, quant_max=high)


def observe_inputs(chosen: Mapping[str, Chosen], run: Run) -> dict[tuple[str, str], Observer]:
    """Run the calibration; return an observer of each static input that it reaches.

    Args:
        chosen: The layers by their paths.
        run: The calibration. The model is unchanged afterwards.

    Returns:
        The observers, by the layer's path and the attribute of the prepared layer. A layer that the
        data does not reach has none; where it reaches no layer, that is an error.
    """
    observers = {
        (path, name): OBSERVERS[one.scheme.observer]()
        for path, one in chosen.items()
        if one.prepared.config.is_static
        for name, quantizer in one.prepared.input_quantizers().items()
        if isinstance(quantizer, (FakeQuantize, LearnedFakeQuantize))
    }
    if not observers:
        return {}
    observed = {path for path, _ in observers}
    inner = {path: chosen[path] for path in observed if _has_inner_inputs(chosen[path])}
    places = {(path, name): f"{path}.{name}" if path in inner else path for path, name in observers}
    watchers = {
        places[key]: _watcher(observer, chosen[key[0]].prepared)
        for key, observer in observers.items()
    }
    with _observing(run.model, inner):
        unreached = run(watchers)
    return {key: one for key, one in observers.items() if places[key] not in unreached}


def _watcher(observer: Observer, prepared: nn.Module) -> Watcher:
    block = rotate_of(prepared)
    return Through(observer, lambda rows: ops.hadamard(rows, block)) if block > 0 else observer


def _has_inner_inputs(one: Chosen) -> bool:
    """Whether only the layer itself sees some inputs, as that of an expert's second product."""
    return isinstance(one.prepared, FakeQuantizedExperts)


@contextmanager
def _observing(model: nn.Module, inner: Mapping[str, Chosen]) -> Iterator[None]:
    """Swap in prepared layers that call their quantizers but do not round."""
    quantizers = [
        quantizer
        for one in inner.values()
        for quantizer in one.prepared.input_quantizers().values()
        if isinstance(quantizer, (FakeQuantize, LearnedFakeQuantize))
    ]
    put(model, [(one.module, one.prepared) for one in inner.values()])
    for one in inner.values():
        one.prepared.is_observing = True
    for quantizer in quantizers:
        quantizer.disable_fake_quant()
    try:
        yield
    finally:
        for quantizer in quantizers:
            quantizer.enable_fake_quant()
            if isinstance(quantizer, FakeQuantize):
                quantizer.reset_min_max_vals()
        for one in inner.values():
            one.prepared.is_observing = False
        put(model, [(one.prepared, one.module) for one in inner.values()])
