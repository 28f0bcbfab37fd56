# SPDX-License-Identifier: BSD-3-Clause
"""Layers that servers fuse into one product: they must have one scheme and one static scale."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import nn as bnn
from ..nn.shared.range import qparams_of_range
from ..workflow.layers import is_prepared
from ..workflow.shared_inputs import fused_paths
from ..workflow.view import check_is_module

_STATIC = (bnn.StaticQuantizedLinear, bnn.StaticQuantizedInt4Linear)
_CALLER = "baraquant.export.tie_fused_scales"


def tie_fused_scales(model: nn.Module) -> list[list[str]]:
    """Give layers that servers fuse, such as ``q_proj`` and ``k_proj``, one scale of their input.

    A server multiplies by all weights of such a group at once, so it has one scale for their input.

    * In a prepared model the layers share the module that learns the scale, so that training goes
      on with one. Observed ranges need nothing: they see the same input.
    * In a converted model the scale and the zero point are those of the union of the ranges. Its
      outputs change as far as the ranges differed, so evaluate it again. The layers then hold the
      same tensors, also where the numbers agreed before, so that :class:`baraquant.graph.Fuse`
      quantizes their input once.

    Args:
        model: A prepared or a converted model; it is changed in place.

    Returns:
        The paths of the layers that were changed, group by group.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: Some layers of a group quantize their input to other widths than the rest, or
            only some of them have a zero point.

    Example:
        >>> names = "gate_proj", "up_proj"
        >>> block = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in names})
        >>> config = baraquant.W8A8Static(observer="min_max")
        >>> _ = baraquant.qat.prepare_(block, config)
        >>> _ = block["gate_proj"](torch.ones(2, 8)), block["up_proj"](torch.full((2, 8), 3.0))
        >>> _ = baraquant.qat.convert_(block)
        >>> baraquant.export.tie_fused_scales(block)
        [['gate_proj', 'up_proj']]
        >>> block["gate_proj"].act_scale == block["up_proj"].act_scale
        tensor(True)
    """
    check_is_module(model, _CALLER)
    at = dict(model.named_modules(remove_duplicate=False))
    groups = list(fused_paths(at))
    plans = [(g, plan) for g in groups if (plan := _plan(g, at)) is not None]
    for _, plan in plans:
        plan()
    for group in groups:
        _hold_the_same([at[path] for path in group])
    return [group for group, _ in plans]


def _hold_the_same(layers: list[nn.Module]) -> None:
    """Put one tensor in the place of equal scales and zero points of converted layers."""
    for name in ("act_scale", "act_zero_point", "smooth_scale"):
        tensors = [layer._buffers.get(name) for layer in layers]
        first = tensors[0]
        for layer, own in zip(layers[1:], tensors[1:], strict=True):
            is_alike = first is not None and own is not None and own.device == first.device
            if is_alike and own.dtype == first.dtype and torch.equal(own, first):
                layer._buffers[name] = first


def _share(layers: list[nn.Module]) -> None:
    """Put the first quantizer of prepared layers with the largest learned scale into all."""
    quantizers = [layer.input_fake_quant for layer in layers]
    widest = max(quantizers, key=lambda quantizer: float(quantizer.scale.detach()))
    for layer in layers:
        layer.input_fake_quant = widest


def _unite(layers: list[Any], scale: Tensor, zero_point: Tensor) -> None:
    """Give converted layers a scale; the divisors of smoothed inputs contain it."""
    for layer in layers:
        if layer.smooth_scale is not None:
            layer.smooth_scale = layer.smooth_scale / layer.act_scale * scale
        layer.act_scale = scale.to(layer.act_scale.device).clone()
        if layer.act_zero_point is not None:
            layer.act_zero_point = zero_point.to(layer.act_zero_point)


def _plan(paths: list[str], at: dict[str, nn.Module]) -> Callable[[], None] | None:
    """Return what changes a group, or None; all groups are checked before any is changed."""
    layers = [at[path] for path in paths]
    if all(is_prepared(layer) for layer in layers):
        quantizers = [getattr(layer, "input_fake_quant", None) for layer in layers]
        learned = [q for q in quantizers if isinstance(q, bnn.LearnedFakeQuantize)]
        if not learned or len({id(q) for q in quantizers}) == 1:
            return None
        _check_alike(paths, [(q.quant_min, q.quant_max, q.symmetric) for q in learned], len(layers))
        return functools.partial(_share, layers)
    static = [layer for layer in layers if isinstance(layer, _STATIC)]
    if not static:
        return None
    _check_alike(paths, [(layer.bits, layer.symmetric) for layer in static], len(layers))
    scale, zero_point = _union(static)
    if {_numbers(layer) for layer in static} == {(float(scale), int(zero_point))}:
        return None
    return functools.partial(_unite, static, scale, zero_point)


def _check_alike(paths: list[str], kinds: list[tuple[object, ...]], count: int) -> None:
    if len(kinds) != count or len(set(kinds)) != 1:
        raise ValueError(
            f"{_CALLER}: {', '.join(paths)}: expected layers whose inputs have one width and one "
            "kind of static scale, but they differ; give them one configuration"
        )


def _union(layers: list[Any]) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of a range that contains all of them."""
    first, numbers = layers[0], [_numbers(layer) for layer in layers]
    scales = [layer.act_scale.detach().cpu().reshape(()) for layer in layers]
    # Layers that agree keep their numbers: a computed union could round.
    if first.symmetric or len(set(numbers)) == 1:
        return max(scales), torch.tensor(numbers[0][1])
    pairs = [(scale, zero) for scale, (_, zero) in zip(scales, numbers, strict=True)]
    lowest = min(scale * (first.quant_min - zero) for scale, zero in pairs)
    highest = max(scale * (first.quant_max - zero) for scale, zero in pairs)
    return qparams_of_range(lowest, highest, first.quant_min, first.quant_max, symmetric=False)


def _numbers(layer: bnn.StaticQuantizedLinear) -> tuple[float, int]:
    """Return the scale and the zero point; 0 where there is none."""
    zero_point = layer.act_zero_point
    return float(layer.act_scale), 0 if zero_point is None else int(zero_point)
