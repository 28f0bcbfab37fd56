# SPDX-License-Identifier: BSD-3-Clause
"""A converted model as the exporters see it: integers, scales, rounding of inputs; and copies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._table import placed
from ..nn import FakeQuantize, WeightOnlyInt4Linear
from ..nn.inference.weights import Int4Factors
from ..nn.shared.rotation import rotate_of
from ..nn.shared.subclassed import with_forward_of
from ..workflow.layers import form_of, is_prepared, layer_of_converted, layer_with
from ..workflow.view import check_is_module


@dataclass(frozen=True)
class QuantizedInput:
    """How the input of a layer becomes integers.

    Attributes:
        bits: The width of the integers.
        symmetric: Whether there is no zero point.
        granularity: ``per_token``, ``per_tensor`` or ``per_group``.
        group_size: The number of adjacent values that share a scale, for ``per_group``.
        scale: float32, of one element. None: computed from the values in each call.
        zero_point: Integer, of one element. None: 0, or computed in each call.
    """

    bits: int
    symmetric: bool
    granularity: str
    group_size: int | None = None
    scale: Tensor | None = None
    zero_point: Tensor | None = None


@dataclass(frozen=True)
class IntegerLayer:
    """A quantized layer.

    Attributes:
        path: Its first name in the model.
        module: The converted module; of one with factors, its form of int8.
        float_name: The class of the float layer that it replaces: ``Linear``, ``Embedding``,
            ``Conv1D`` (transformers' layer), ``Conv2d``, ...
        qweight: int8, ``[N, K]`` for a linear layer or an embedding.
        scale: ``[N]``, or ``[N, K / group_size]``.
        zero_point: Integer, shaped like ``scale``; None stands for 0.
        bias: ``[N]``, or None.
        bits: The width of the weight's integers.
        group_size: The number of adjacent values of a row that share a scale. None: all of them.
        dtype: The dtype of the float layer.
        transposed: Whether the float layer keeps its weight as ``[K, N]`` (transformers'
            ``Conv1D``); the integers are ``[N, K]`` all the same.
        input: How the input is rounded; None leaves it as it is.
        smooth: ``[K]``: the input is divided by it first. None: by nothing.
        rotate: The block of :func:`baraquant.ops.hadamard` that rotates the input first, and has
            rotated the weight. 0: no rotation.
    """

    path: str
    module: nn.Module
    float_name: str
    qweight: Tensor
    scale: Tensor
    zero_point: Tensor | None
    bits: int
    group_size: int | None
    dtype: torch.dtype
    input: QuantizedInput | None
    bias: Tensor | None = None
    transposed: bool = False
    smooth: Tensor | None = None
    rotate: int = 0

    @property
    def grouped_scale(self) -> Tensor:
        """The scale as ``[N, groups]``; one group where a scale is for a whole row."""
        return self.scale.reshape(self.qweight.shape[0], -1)


def integer_layers(
    model: nn.Module, caller: str, experts: Callable[..., dict[str, IntegerLayer]] | None = None
) -> dict[str, IntegerLayer]:
    """Return the quantized layers of a converted model by all of their names.

    A layer that several parents share stands under each name, as the same object.
    ``experts(model, path, module, caller)`` returns the layers that a format has for a module of
    experts, by their paths there. None: experts are an error.
    """
    check_is_module(model, caller)
    found: dict[str, IntegerLayer] = {}
    known: dict[int, IntegerLayer] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if is_prepared(module):
            raise ValueError(
                f"{caller}: {path or 'the model'}: expected converted layers, but it is prepared "
                "for training; call baraquant.qat.convert_ first"
            )
        form = form_of(module)
        if form is None:
            continue
        if form.takes_place and experts is not None:
            with placed(caller, path):
                form.check_values(module)
            found |= experts(model, path, module, caller)
            continue
        if id(module) not in known:
            known[id(module)] = integer_layer(path, module, caller)
        found[path] = known[id(module)]
    if not found:
        raise ValueError(
            f"{caller}: expected a quantized model, but got a {type(model).__name__} without a "
            "quantized layer; call baraquant.quantize_ or baraquant.qat.convert_ first"
        )
    return found


def check_layers(
    layers: dict[str, IntegerLayer], caller: str, why_not: Callable[[IntegerLayer], str | None]
) -> None:
    """Check that a format holds all layers; each is asked for once, under its first name."""
    for layer in {id(layer): layer for layer in layers.values()}.values():
        reason = why_not(layer)
        if reason is not None:
            raise ValueError(f"{caller}: {layer.path}: {reason}")


def integer_layer(path: str, module: Any, caller: str) -> IntegerLayer:
    """Return what an exporter needs of a converted module."""
    form = form_of(module)
    assert form is not None
    if form.takes_place:
        raise ValueError(
            f"{caller}: {path}: a {type(module).__name__} has a weight for each expert, which only "
            "to_compressed_tensors writes; keep the experts floating (a rule that maps them to "
            "None)"
        )
    with placed(caller, path):
        form.check_values(module)
    if isinstance(module, (Int4Factors, WeightOnlyInt4Linear)):  # the same bits, as int8
        module = module.as_int8()
    smooth: Tensor | None = getattr(module, "smooth", None)
    if smooth is None and getattr(module, "smooth_scale", None) is not None:
        smooth = module.smooth_scale / module.act_scale
    return IntegerLayer(
        path=path,
        module=module,
        float_name=(layer_of_converted(module) or layer_with(form)).name,
        qweight=module.qweight,
        scale=module.weight_scale,
        zero_point=getattr(module, "weight_zero_point", None),
        bias=getattr(module, "bias", None),
        bits=module.weight_bits,
        group_size=getattr(module, "group_size", None) or None,
        dtype=module.dtype,
        transposed=bool(getattr(module, "transposed", False)),
        input=_input_of(module),
        smooth=smooth,
        rotate=rotate_of(module),
    )


def _input_of(module: Any) -> QuantizedInput | None:
    if hasattr(module, "act_scale"):
        zero_point = module.act_zero_point
        return QuantizedInput(
            module.bits, zero_point is None, "per_tensor", None, module.act_scale, zero_point
        )
    if hasattr(module, "granularity"):
        return QuantizedInput(module.bits, module.symmetric, module.granularity)
    rounder = getattr(module, "input_fake_quant", None)
    return input_of(rounder, rounder.symmetric) if isinstance(rounder, FakeQuantize) else None


def input_of(rounder: FakeQuantize, symmetric: bool) -> QuantizedInput:
    """Return how a fake quantizer makes integers of an input."""
    bits, size = (rounder.quant_max - rounder.quant_min).bit_length(), rounder.group_size or None
    given = QuantizedInput(bits, symmetric, rounder.granularity, size)
    if rounder.mode != "fixed":
        return given
    zero_point = None if symmetric else rounder.zero_point
    return replace(given, scale=rounder.scale, zero_point=zero_point)


# ---- Copies of models in which some layers are others --------------------------------------------


class RewrittenLinear(nn.Module):  # type: ignore[misc]
    """The base of layers that stand for a quantized linear layer in a copy."""

    bias: Tensor | None

    def __init__(self, layer: IntegerLayer) -> None:
        super().__init__()
        self._float = [layer.module]  # in a list, so that it is no submodule
        self.out_features, self.in_features = layer.qweight.shape
        self.register_buffer("bias", layer.bias)
        self.rotate = layer.rotate

    def rotated(self, input: Tensor) -> Tensor:
        """Return :func:`baraquant.ops.hadamard` of the input in plain arithmetic, bit for bit."""
        if self.rotate == 0:
            return input
        values, step = input.float(), 1
        while step < self.rotate:
            count = self.in_features // (2 * step)
            pairs = values.reshape(*input.shape[:-1], count, 2, step)
            first, second = pairs.select(-2, 0), pairs.select(-2, 1)
            values = torch.stack([first + second, first - second], -2)
            step *= 2
        return (values.reshape(input.shape) * (1 / math.sqrt(self.rotate))).to(input.dtype)

    @property
    def weight(self) -> Any:
        """The dequantized weight, for parents that read it."""
        return self._float[0].weight


def rewritten(
    model: nn.Module,
    layers: dict[str, IntegerLayer],
    replace: Callable[[str, nn.Module, IntegerLayer | None], nn.Module],
) -> nn.Module:
    """Return a copy of a converted model, in evaluation mode, that shares its tensors.

    ``replace(path, module, layer)`` returns what a module becomes in the copy: itself, if it stays.
    A module of several paths is asked for once. The new module gets the hooks of the old one, and
    the forward of a subclass of ``Linear``.
    """
    made: dict[int, nn.Module] = {}
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in made:
            continue
        new = made[id(module)] = replace(path, module, layers.get(path))
        if new is module:
            continue
        if path in layers:
            new = with_forward_of(new, module, nn.Linear)
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            getattr(new, name).update(getattr(module, name))
        memo[id(module)] = new
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied.eval()
