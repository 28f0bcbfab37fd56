# SPDX-License-Identifier: BSD-3-Clause
"""Makes the quantized layers of :func:`baraquant.quantize_` from prepared ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..configs import QuantConfig, TensorConfig
from ..nn import FakeQuantize, FakeQuantizedLinear, FakeQuantizeInt4, QuantizesWeight
from ..nn.shared.rotation import rotate_of
from ..nn.shared.subclassed import with_forward_of
from ..nn.training.quantizers import Int4Integers, Integers
from ..schemes import AWQ
from .convert import Converter, about_input, integers_of, tied
from .fit import fit, searches_scales
from .layers import weights_of
from .replace import swap_in_turn, take_over
from .report import Report
from .rotation import about_rotation
from .select import Chosen
from .served import served_linear
from .smoothquant.smoothing import Smoothing


def fixed_input(
    qparams: tuple[Tensor, Tensor], activation: TensorConfig, module: nn.Module
) -> FakeQuantize:
    """Return what rounds a static input: a scale and a zero point, on the device of the layer."""
    scale, zero_point = (value.to(weights_of(module)[0].device) for value in qparams)
    low, high = activation.quant_min, activation.quant_max
    return FakeQuantize(scale, zero_point, quant_min=low, quant_max=high)


def make(
    maker: Maker,
    path: str,
    one: Chosen,
    caller: str,
    integers: Integers | Int4Integers | None = None,
) -> nn.Module:
    """Convert a layer; if that fails, name the layer: a registered one may raise anything."""
    try:
        return maker.make(path, one, integers)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{caller}: {path}: {error}") from error


def check_layers(
    chosen: Mapping[str, Chosen],
    plan: Mapping[str, Smoothing],
    made: Mapping[str, nn.Module],
    caller: str,
) -> None:
    """Check that each layer can be made: afterwards :func:`swap_layers` does not fail.

    Args:
        chosen: All layers to quantize, by path.
        plan: How linear layers are scaled, by path.
        made: Those of the layers that are made already.
        caller: The public function, for messages.

    Raises:
        ValueError: One cannot be made. The message has its path.
    """
    for paths in tied({path: one.prepared for path, one in chosen.items()}):
        trial = Maker((chosen[path].prepared for path in paths), plan, is_trial=True)
        for path in paths:
            if path not in made:
                make(trial, path, chosen[path], caller)


def swap_layers(
    model: nn.Module,
    chosen: dict[str, Chosen],
    report: Report,
    caller: str,
    plan: Mapping[str, Smoothing],
    made: dict[str, nn.Module],
) -> Report:
    """Make and swap layers, those that share a weight together; each float one is freed at once.

    Args:
        model: The model.
        chosen: The layers by path. They are taken out.
        report: What is said of the others.
        caller: The public function, for messages.
        plan: How linear layers are scaled, by path.
        made: Those of the layers that are made already. They are taken out.
    """
    groups = tied({path: one.prepared for path, one in chosen.items()})
    abouts = dict.fromkeys(chosen, "")

    def make_group(paths: list[str]) -> dict[str, nn.Module]:
        group = {path: chosen.pop(path) for path in paths}
        maker = Maker((one.prepared for one in group.values()), plan)
        news: dict[str, nn.Module] = {}
        for path, one in group.items():
            is_made = path in made
            new = made.pop(path) if is_made else make(maker, path, one, caller)
            abouts[path] = _about(new, one, plan.get(path), is_made)
            news[path] = new
        return news

    olds = {path: one.module for path, one in chosen.items()}
    # The texts are complete when all layers are made.
    return swap_in_turn(model, olds, groups, make_group, replace(report, changed=abouts))


def _about(new: nn.Module, one: Chosen, smoothing: Smoothing | None, is_made: bool) -> str:
    """Return what a report says of a quantized layer."""
    is_awq = smoothing is not None and isinstance(one.config, AWQ)
    about = type(new).__name__ + about_rotation(new) + (", AWQ" if is_awq else "")
    if smoothing is not None and smoothing.alpha is not None:
        producer = smoothing.producer
        where = "in its input" if producer is None else f"folded into {producer}"
        about += f", alpha {smoothing.alpha:g} {where}"
        if smoothing.readable is not None and producer is None:
            about += f", as other calls may read the output of {smoothing.readable}"
    return about + (", GPTQ" if is_made else "") + about_input(one.prepared) + one.remark


class Maker:
    """Makes the converted layers; layers that share a weight share its integers.

    Args:
        prepared: The prepared layers of all that it will make.
        plan: How linear layers are smoothed, by their paths; None: none is.
        is_trial: Whether the layers are only tried, whether they can be made: nothing is kept, and
            no scale is searched for. A scale that is searched for is no larger than the one that it
            starts from, so it is finite if that is.
    """

    def __init__(
        self,
        prepared: Iterable[nn.Module],
        plan: Mapping[str, Smoothing] | None = None,
        *,
        is_trial: bool = False,
    ) -> None:
        self._plan = plan = {} if plan is None else plan
        self._is_trial = is_trial
        self._converter = Converter(prepared, keeps=not is_trial)
        self._fitted: dict[
            tuple[int, torch.Size, str, TensorConfig, str, str | None],
            FakeQuantize | FakeQuantizeInt4,
        ] = {}
        self._kept: list[Tensor] = []  # whose addresses are those keys
        # The divisor of a layer's own output, for the layers after it.
        self._divisors = {
            one.producer: one.smooth for one in plan.values() if one.producer is not None
        }

    def divided(self) -> set[str]:
        """Return the paths of modules whose output is divided for the layers after them."""
        return set(self._divisors)

    def ready(self, path: str, one: Chosen) -> nn.Module:
        """Return the prepared layer of an unsmoothed input whose weight is to be rounded.

        The weight is divided if the layer's own output is, and rotated.
        """
        prepared, divisor = one.prepared, self._divisors.get(path)
        if divisor is not None:
            changed = _scaled(prepared, None, divisor).to(one.module.weight.dtype)
            config = _without_master(prepared.config)
            divided = FakeQuantizedLinear.sharing(changed, config, is_rotated=True)
            divided.input_fake_quant = prepared.input_fake_quant
            divided = with_forward_of(divided, prepared, one.layer.base_of(one.module))
            take_over(divided, prepared)
            prepared = divided
        elif rotate_of(prepared) > 0:
            prepared = prepared.with_rotated_weight()
        return prepared

    def make(
        self, path: str, one: Chosen, integers: Integers | Int4Integers | None = None
    ) -> nn.Module:
        """Return the layer that replaces a float one.

        Args:
            path: Its path.
            one: The float layer.
            integers: Its weight, quantized. None: rounded to nearest here.
        """
        smoothing = self._plan.get(path)
        divisor = self._divisors.get(path)
        if smoothing is not None and not isinstance(one.config, AWQ):
            return self._smoothed(one, smoothing, divisor)
        if smoothing is not None:
            integers = self._scaled_integers(one, smoothing.smooth, divisor)
        prepared, weight = self.ready(path, one), one.prepared.config.weight
        if integers is not None:
            return self._converter.convert(prepared, integers)
        if self._searches(one.prepared.config):
            for name, rows in prepared.weight_rows().items():
                if rotate_of(prepared) > 0:  # no tied weight: the rotated copy is not kept
                    setattr(prepared, name, fit(rows, getattr(prepared, name)))
                    continue
                # Tied weights have the same one.
                owner = _owner(prepared, rows)
                dtypes = one.scheme.scale_dtype, one.scheme.master
                key = owner.data_ptr(), rows.shape, name, weight, *dtypes
                if key not in self._fitted:
                    self._fitted[key] = fit(rows, getattr(prepared, name), one.importance)
                    self._kept.append(owner)
                setattr(prepared, name, self._fitted[key])
        return self._converter.convert(prepared)

    def _smoothed(self, one: Chosen, smoothing: Smoothing, divisor: Tensor | None) -> nn.Module:
        module, smooth, scheme = one.module, smoothing.smooth, one.scheme
        prepared = one.prepared
        if smooth is not None or divisor is not None:
            scaled = _scaled(prepared, smooth, divisor)
            prepared = FakeQuantizedLinear.from_float(scaled, _without_master(scheme))
        if smoothing.qparams is not None:
            assert scheme.activation is not None
            prepared.input_fake_quant = fixed_input(smoothing.qparams, scheme.activation, module)
        new: nn.Module = served_linear(
            prepared,
            self._converter.integers(prepared),
            smooth=smooth if smoothing.producer is None else None,
            dtype=module.weight.dtype,
        )
        new.set_layout(one.prepared.transposed_groups > 0)
        new = with_forward_of(new, module, one.layer.base_of(module))
        take_over(new, module)
        return new

    def _searches(self, config: QuantConfig) -> bool:
        return searches_scales(config) and not self._is_trial

    def _scaled_integers(
        self, one: Chosen, smooth: Tensor | None, divisor: Tensor | None
    ) -> Integers | Int4Integers:
        """Return the integers of a scaled weight, which no other module shares.

        The factors are those of :func:`_scaled`.
        """
        layer, importance = one.prepared, one.importance
        config = _without_master(layer.config)
        scaled = FakeQuantizedLinear.from_float(_scaled(layer, smooth, divisor), config)
        if self._searches(layer.config):
            if importance is not None and smooth is not None:
                importance = importance / smooth.to(importance).square()
            rows, quantizer = scaled.rows_of_weight(), scaled.weight_fake_quant
            scaled.weight_fake_quant = fit(rows, quantizer, importance)
        return integers_of(scaled)


def _owner(prepared: nn.Module, rows: Tensor) -> Tensor:
    """Return the tensor that layers with a tied weight share: with a master the rows are a copy."""
    return prepared.float_weight() if isinstance(prepared, QuantizesWeight) else rows


def _without_master(config: QuantConfig) -> QuantConfig:
    """Return the configuration of a scaled layer: its parameters were rounded before."""
    return replace(config, master=None)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _scaled(layer: FakeQuantizedLinear, smooth: Tensor | None, divisor: Tensor | None) -> nn.Linear:
    """Return a linear layer in the precision of the factors.

    Args:
        layer: The prepared layer.
        smooth: The factors of its input features, ``[in_features]``; None: none.
        divisor: The divisors of its outputs, ``[out_features]``; None: none.
    """
    factors = smooth if divisor is None else divisor
    assert factors is not None
    weight, bias = layer.rows_of_weight().to(factors.dtype), layer.bias_to_add()
    if smooth is not None:
        weight = weight * smooth.to(weight.device)
    if divisor is not None:
        divisor = divisor.to(weight.device)
        weight = weight / divisor[:, None]
        bias = None if bias is None else (bias / divisor).to(bias.dtype)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear
