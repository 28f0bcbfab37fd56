# SPDX-License-Identifier: BSD-3-Clause
"""Makes the quantized layers of :func:`baraquant.quantize_` from prepared ones."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..configs import QuantConfig
from ..nn import FakeQuantizedExperts, FakeQuantizedLinear, QuantizesWeight
from ..nn.shared.rotation import rotate_of
from ..nn.shared.subclassed import with_forward_of
from ..nn.training.quantizers import Int4Integers, Integers
from .convert import Converter, about, integers_of, tied
from .layers import weights_of
from .passes import Chosen
from .replace import swap_in_turn, take_over
from .report import Report
from .transaction import are_kept, run_to_end


def swap_layers(model: nn.Module, chosen: dict[str, Chosen], report: Report, caller: str) -> Report:
    """Make layers, those that share a weight together, and swap them.

    If the float weights take much memory, the layers are only tried at first. Then each is made and
    swapped, and its float layer is freed at once: from there on nothing fails.

    Args:
        model: The model.
        chosen: The layers by path. They are taken out.
        report: What is said of the others.
        caller: The public function, for messages.

    Raises:
        ValueError: One cannot be made. The message has its path.
    """
    groups = tied({path: one.prepared for path, one in chosen.items()})
    is_kept = are_kept(weight for one in chosen.values() for weight in weights_of(one.module))
    for paths in groups:
        first = Maker((chosen[path].prepared for path in paths), caller, is_trial=not is_kept)
        for path in paths:
            if is_kept:
                chosen[path].made = first.make(path, chosen[path])
            else:
                first.make(path, chosen[path])
    if not is_kept:
        run_to_end()
    abouts = dict.fromkeys(chosen, "")

    def make_group(paths: list[str]) -> dict[str, nn.Module]:
        group = {path: chosen.pop(path) for path in paths}
        maker = Maker((one.prepared for one in group.values()), caller)
        news: dict[str, nn.Module] = {}
        for path, one in group.items():
            new = news[path] = maker.make(path, one)
            told = "" if one.algorithm is None else one.algorithm.describe(path)
            abouts[path] = about(new, one.prepared, told) + one.remark
        return news

    olds = {path: one.module for path, one in chosen.items()}
    # The texts are complete when all layers are made.
    return swap_in_turn(model, olds, groups, make_group, replace(report, changed=abouts))


class Maker:
    """Makes the converted layers; layers that share a weight share its integers.

    Args:
        prepared: The prepared layers of all that it will make.
        caller: The public function, for messages.
        is_trial: Whether the layers are only tried, whether they can be made: nothing is kept, and
            no scale is searched for. A scale that is searched for is no larger than the one that it
            starts from, so it is finite if that is.
    """

    def __init__(
        self, prepared: Iterable[nn.Module], caller: str, *, is_trial: bool = False
    ) -> None:
        self._caller, self._searches = caller, not is_trial
        # No method of its own, which would keep it, and with it the layers.
        self._rounded = functools.partial(_rounded, searches=not is_trial)
        self._converter = Converter(prepared, keeps=not is_trial, quantize=self._rounded)

    def make(
        self, path: str, one: Chosen, integers: Integers | Int4Integers | None = None
    ) -> nn.Module:
        """Return the layer that replaces a float one.

        Args:
            path: Its path.
            one: The float layer.
            integers: Its weight, quantized. None: rounded to nearest here.

        Raises:
            ValueError: It cannot be made. The message has its path: a registered layer may raise
                anything.
            TypeError: Likewise.
        """
        if one.made is not None:
            return one.made
        try:
            return self._make(path, one, integers)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self._caller}: {path}: {error}") from error

    def ready(self, path: str, one: Chosen) -> nn.Module:
        """Return the prepared layer whose weight is to be rounded.

        The weight is that of the layer's pass, divided if the layer's own output is, and rotated.
        """
        prepared = _changed(path, one)
        if one.divisor is not None:
            changed = _scaled(prepared, None, one.divisor).to(one.module.weight.dtype)
            config = _without_master(prepared.config)
            divided = FakeQuantizedLinear.sharing(changed, config, is_rotated=True)
            divided.input_fake_quant = prepared.input_fake_quant
            divided = with_forward_of(divided, prepared, one.layer.base_of(one.module))
            take_over(divided, prepared)
            prepared = divided
        elif rotate_of(prepared) > 0:
            prepared = prepared.with_rotated_weight()
        return prepared

    def _make(self, path: str, one: Chosen, integers: Integers | Int4Integers | None) -> nn.Module:
        scaling, smooth, importance = one.scaling, None, one.importance
        if scaling is not None and not (scaling.smooth is None and one.divisor is None):
            # Before `ready`: a scaled weight and a divided one are not needed at the same time.
            # The weight is rounded in the precision of the factors.
            smooth, config = scaling.smooth, _without_master(one.prepared.config)
            scaled = FakeQuantizedLinear.from_float(
                _scaled(one.prepared, smooth, one.divisor), config
            )
            if importance is not None and smooth is not None:
                importance = importance / smooth.to(importance).square()
            integers = self._rounded(scaled, importance)
        prepared = self.ready(path, one)
        if integers is None and importance is not None:  # no other layer shares the weight
            integers = self._rounded(prepared, importance)
        is_searched = self._searches and prepared.config.searches_scales
        if isinstance(prepared, FakeQuantizedExperts) and is_searched:
            for name, rows in prepared.weight_rows().items():
                setattr(prepared, name, getattr(prepared, name).fitted(rows))
        is_kept = scaling is not None and scaling.producer is None
        return self._converter.convert(prepared, integers, smooth if is_kept else None)


def _rounded(
    layer: QuantizesWeight, importance: Tensor | None = None, *, searches: bool
) -> Integers | Int4Integers:
    """Return a prepared layer's weight as integers, with the scales that fit best."""
    if searches and layer.config.searches_scales:
        quantizer = layer.weight_fake_quant
        layer.weight_fake_quant = quantizer.fitted(layer.rows_of_weight(), importance)
    return integers_of(layer)


def _changed(path: str, one: Chosen) -> nn.Module:
    """Return the prepared layer with the weights that its pass gives it."""
    weights = {id(weight) for weight in weights_of(one.module)}
    news: dict[str, nn.Parameter] = {}
    for name, weight in one.prepared._parameters.items():
        if one.algorithm is None or id(weight) not in weights:
            continue
        given = weight.detach()
        new = one.algorithm.apply(f"{path}.{name}", given)
        if new is given:
            continue
        got, wanted = ((t.shape, t.dtype, t.device) for t in (new, given))
        if got != wanted:
            raise ValueError(
                f"expected apply of {type(one.algorithm).__name__} to return a {name} like the "
                f"given one, {_kind(given)}, but got {_kind(new)}"
            )
        news[name] = nn.Parameter(new.detach(), requires_grad=False)
    if not news:
        return one.prepared
    layer = copy.copy(one.prepared)
    layer.__dict__["_parameters"] = one.prepared._parameters | news
    layer.__dict__["_modules"] = dict(one.prepared._modules)
    return layer


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"


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
