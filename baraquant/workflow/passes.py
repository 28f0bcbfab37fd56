# SPDX-License-Identifier: BSD-3-Clause
"""What :func:`baraquant.quantize_` does between the choice and the swap: passes, and ranges.

An :class:`baraquant.Algorithm` is a configuration, and its :class:`Pass` carries it out. Each
algorithm registers its own pass; nothing else here knows one. Static inputs get their ranges from
an observer each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from .. import ops
from ..configs import Config, QuantConfig, TensorConfig
from ..nn import FakeQuantize, FakeQuantizedExperts, LearnedFakeQuantize, QuantizesWeight
from ..nn.shared.rotation import rotate_of
from ..schemes import Algorithm, scheme_of
from .calibration.observers import OBSERVERS, Observer, Through
from .calibration.run import UNREACHED, Calibration, Run, Watcher
from .layers import Layer, weights_of
from .replace import put
from .transaction import undone


@dataclass
class Scaling:
    """How the input of linear layers is divided, and their weights multiplied.

    Attributes:
        layers: The paths of the layers, which share it as one preceding module absorbs the
            division; one layer, where there is none.
        producer: The path of that module. None: the layer divides its input itself.
        smooth: The divisor of the input, ``[K]``; None: no division.
        alpha: The exponent that gave it; None if nothing is scaled.
        qparams: The scale and the zero point of the divided input if it is static.
        readable: The path of the preceding module that would absorb it, if no call that calibration
            did not make could read its output.
    """

    layers: list[str]
    producer: str | None = None
    smooth: Tensor | None = None
    alpha: float | None = None
    qparams: tuple[Tensor, Tensor] | None = None
    readable: str | None = None

    def about(self) -> str:
        """Return what a report says of it."""
        if self.alpha is None:
            return ""
        where = "in its input" if self.producer is None else f"folded into {self.producer}"
        is_readable = self.readable is not None and self.producer is None
        why = f", as other calls may read the output of {self.readable}" if is_readable else ""
        return f", alpha {self.alpha:g} {where}{why}"


@dataclass
class Chosen:
    """A layer to quantize.

    Attributes:
        module: The float module, or the quantized one that training starts from.
        layer: Its kind.
        config: Its configuration, as the caller gave it.
        prepared: The layer that replaces it in training. It has the module's parameters.
        shares_weight: Whether other modules have its weight too.
        remark: What a report adds to the name of what the layer becomes.
        algorithm: The pass of its configuration, which may change its weight; None: there is none.
        importance: The sum of the squares of each channel of the input, ``[K]``, by which the
            search for scales weighs the errors; None: all count alike.
        scaling: How its input features are scaled; None: no pass decides on that.
        divisor: What its outputs are divided by for the layers after it, ``[N]``; None: nothing.
        made: The quantized layer, where a pass has made it already.
    """

    module: nn.Module
    layer: Layer
    config: Config
    prepared: nn.Module
    shares_weight: bool
    remark: str = ""
    algorithm: Pass | None = None
    importance: Tensor | None = None
    scaling: Scaling | None = None
    divisor: Tensor | None = None
    made: nn.Module | None = None

    @property
    def scheme(self) -> QuantConfig:
        """How it is quantized, whatever an algorithm changes before."""
        return scheme_of(self.config)

    @property
    def is_linear(self) -> bool:
        """Whether it is one of the linear layers, which compute a product with a matrix."""
        return self.layer.is_linear

    @property
    def weights(self) -> list[Tensor]:
        """The parameters of the float module that become integers."""
        return weights_of(self.module)

    @property
    def rotate(self) -> int:
        """The block of its input that it rotates; 0 if it rotates nothing."""
        return rotate_of(self.prepared)


def as_prepared(chosen: Mapping[str, Chosen]) -> dict[str, tuple[nn.Module, QuantConfig]]:
    """Return what replaces each layer in training, and its scheme, by path."""
    return {path: (one.prepared, one.scheme) for path, one in chosen.items()}


class Pass:
    """Carries out an :class:`baraquant.Algorithm` in a call of :func:`baraquant.quantize_`.

    :func:`baraquant.qat.prepare_` calls it in the same way: training then starts at the integers
    that the layers would have got.

    A call makes one object of it, for all layers whose configuration is of the type that it was
    registered for. It calls :meth:`plan` once while the model is as it was, then :meth:`apply` for
    each weight as the weight is rounded, :meth:`describe` for each layer, and last :meth:`finish`.
    What is left to the configuration's :class:`QuantConfig` alone are layers for which
    :meth:`why_not` has a reason, and those that share their weight with another module.

    Attributes:
        needs_calibration: Whether the call has to have calibration data.
        reads: How often :meth:`plan` goes through the data, for the error where that can be gone
            through only once: ``"several times for Clip"``. Empty: once, or not at all.
        after_inputs: Whether :meth:`plan` needs the ranges of static inputs, and what other passes
            have planned.
        instead: What is done to a layer that it leaves alone, for the report.
    """

    needs_calibration: ClassVar[bool] = True
    reads: ClassVar[str] = ""
    after_inputs: ClassVar[bool] = False
    instead: ClassVar[str] = "its weight is not changed"

    def why_not(self, layer: Chosen) -> str | None:
        """Return why a layer is left alone, for the report: ``"it is no convolution"``; or None."""
        return None

    def takes(self, layer: Chosen) -> bool:
        """Whether :meth:`plan` gets a layer of the configuration; says in the report why not."""
        shared = "other modules share its weight" if layer.shares_weight else None
        reason = self.why_not(layer) or shared
        if reason is not None:
            layer.remark += f"; {self.instead}, as {reason}"
        return reason is None

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        """Find out what to change, and change nothing yet.

        Args:
            layers: The layers by their paths; there may be none. ``module`` is the float layer, and
                ``config`` its configuration; to ``remark`` words for the report can be added. Do
                not keep them: each float layer is freed as soon as it is swapped.
            run: Runs the float model on the calibration data: ``run(watchers)``, with a watcher of
                the inputs for each path, such as an observer of :mod:`baraquant.calibration`. It
                returns the paths that the data does not reach.
            chosen: All layers that will be quantized, those of other configurations too.

        Raises:
            ValueError: It cannot be done; the model is as it was. The message has the layer's path.
        """
        raise NotImplementedError

    def apply(self, name: str, weight: Tensor) -> Tensor:
        """Return what is quantized in place of a weight: a tensor of its shape, dtype and device.

        It may be called twice for a weight: large layers are tried before the first is swapped.

        Args:
            name: The name of the parameter, such as ``"body.0.weight"``.
            weight: The floating weight, of any kind of layer. It must not be written to.
        """
        return weight

    def describe(self, path: str) -> str:
        """Return what the report says of a layer that :meth:`plan` got: ``", clipped at 0.98"``."""
        return ""

    def finish(self, model: nn.Module) -> None:
        """Change what stays floating; the layers are swapped. What it writes is not undone."""


# The passes by the types of their configurations, in the order in which they plan.
PASSES: dict[type[Algorithm], type[Pass]] = {}


def register_pass(config: type[Algorithm], carried_out_by: type[Pass]) -> None:
    """Let :func:`baraquant.quantize_` carry out an algorithm of your own, in this process.

    Args:
        config: The type of the configurations, a subclass of :class:`baraquant.Algorithm`. Its
            subclasses have the same pass, unless they are registered too.
        carried_out_by: A subclass of :class:`baraquant.Pass`, whose constructor takes no argument.

    Raises:
        TypeError: A class is no subclass of these.
        ValueError: The type is registered already, or its ``scheme`` is empty.

    Example:
        ``docs/guide.md`` has one.
    """
    where = "baraquant.register_pass"
    for kind, base in ((config, Algorithm), (carried_out_by, Pass)):
        if not (isinstance(kind, type) and issubclass(kind, base)) or kind is base:
            raise TypeError(
                f"{where}: expected a subclass of baraquant.{base.__name__}, but got {kind!r}"
            )
    if config in PASSES:
        raise ValueError(f"{where}: {config.__name__} is registered already")
    if not config.scheme:
        raise ValueError(
            f"{where}: expected {config.__name__} to have a scheme, the name in its dictionary"
        )
    PASSES[config] = carried_out_by


def pass_of(config: Algorithm) -> type[Pass]:
    """Return what carries out a configuration; a TypeError says that nothing does."""
    for kind in type(config).__mro__:
        if kind in PASSES:
            return PASSES[kind]
    raise TypeError(
        f"expected a configuration with a pass, but nothing is registered for "
        f"{type(config).__name__}; call baraquant.register_pass"
    )


def what_needs_calibration(config: Config) -> str | None:
    """Return what in a configuration needs calibration data; None if nothing does."""
    if isinstance(config, Algorithm) and pass_of(config).needs_calibration:
        return type(config).__name__
    return "a static input" if scheme_of(config).is_static else None


def check_calibrated(configs: Iterable[Config], data: Calibration | None, caller: str) -> None:
    """Check that there is calibration data if a configuration needs it."""
    for config in configs:
        what = what_needs_calibration(config)
        if data is None and what is not None:
            raise ValueError(f"{caller}: expected calibration data for {what}, but got None")


def passes_of(chosen: Mapping[str, Chosen], run: Run) -> dict[Pass, dict[str, Chosen]]:
    """Return the passes of the layers in the order in which they plan, with what each gets.

    Raises:
        ValueError: One goes several times through data that can be gone through only once.
    """
    passes: dict[Pass, dict[str, Chosen]] = {}
    for kind in sorted(dict.fromkeys(PASSES.values()), key=lambda kind: kind.after_inputs):
        own = {
            path: one
            for path, one in chosen.items()
            if isinstance(one.config, Algorithm) and pass_of(one.config) is kind
        }
        if not own:
            continue
        each = kind()
        passes[each] = {path: one for path, one in own.items() if each.takes(one)}
        for one in passes[each].values():
            one.algorithm = each
        if passes[each] and each.reads:
            run.check_repeatable(each.reads)
    return passes


def plan_passes(
    passes: Mapping[Pass, dict[str, Chosen]], chosen: Mapping[str, Chosen], run: Run
) -> None:
    """Let passes plan, in their order, and give static inputs their ranges in between."""
    for after_inputs in (False, True):
        if after_inputs:
            calibrate_inputs({p: one for p, one in chosen.items() if one.scaling is None}, run)
        for each, layers in passes.items():
            if each.after_inputs == after_inputs:
                each.plan(layers, run, chosen)


# ---- The ranges of static inputs ----------------------------------------------------------------


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
        setattr(chosen[path].prepared, name, fixed_input(qparams, activation, chosen[path]))


def leave_input(path: str, one: Chosen, caller: str) -> None:
    """Let a layer that no calibration data reaches keep a floating input."""
    if not isinstance(one.prepared, QuantizesWeight):
        raise ValueError(f"{caller}: {path}: {UNREACHED}")
    one.prepared = one.prepared.with_floating_input()
    one.remark += "; its input stays floating, as the calibration data does not reach it"


def fixed_input(
    qparams: tuple[Tensor, Tensor], activation: TensorConfig, layer: Chosen
) -> FakeQuantize:
    """Return what rounds a static input: a scale and a zero point, on the device of the layer."""
    scale, zero_point = (value.to(layer.weights[0].device) for value in qparams)
    low, high = activation.quant_min, activation.quant_max
    return FakeQuantize(scale, zero_point, quant_min=low, quant_max=high)


def observe_inputs(chosen: Mapping[str, Chosen], run: Run) -> dict[tuple[str, str], Observer]:
    """Run the calibration; return an observer of each static input that it reaches.

    They stand by the layer's path and the attribute of the prepared layer. Where the data reaches
    no layer, that is an error. The model is unchanged afterwards.
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
    # Some inputs, as that of an expert's second product, only the layer itself sees.
    inner = {
        path: chosen[path]
        for path, _ in observers
        if isinstance(chosen[path].prepared, FakeQuantizedExperts)
    }
    places = {(path, name): f"{path}.{name}" if path in inner else path for path, name in observers}
    watchers: dict[str, Watcher] = {}
    for key, observer in observers.items():
        block = chosen[key[0]].rotate
        rotated = partial(ops.hadamard, block=block)
        watchers[places[key]] = Through(observer, rotated) if block > 0 else observer
    with _observing(run.model, inner):
        unreached = run(watchers)
    return {key: one for key, one in observers.items() if places[key] not in unreached}


@contextmanager
def _observing(model: nn.Module, inner: Mapping[str, Chosen]) -> Iterator[None]:
    """Swap in prepared layers that call their quantizers but do not round."""
    quantizers = [q for one in inner.values() for q in one.prepared.input_quantizers().values()]
    for one in inner.values():
        one.prepared.is_observing = True
    for quantizer in quantizers:
        quantizer.disable_fake_quant()
    with undone():
        put(model, [(one.module, one.prepared) for one in inner.values()])
        yield
    for quantizer in quantizers:
        quantizer.enable_fake_quant()
        if isinstance(quantizer, FakeQuantize):
            quantizer.reset_min_max_vals()
    for one in inner.values():
        one.prepared.is_observing = False
