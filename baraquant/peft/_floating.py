# SPDX-License-Identifier: BSD-3-Clause
"""Floating layers out of quantized ones, for what PEFT writes into a weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..nn.shared.precision import wide
from ..nn.shared.rotation import rotate_of
from ..nn.shared.subclassed import _own_class, with_forward_of
from ..workflow.layers import (
    Layer,
    is_converted,
    is_prepared,
    layer_of_converted,
    stage_of,
)


def layer_kind(module: nn.Module) -> Layer | None:
    """Return the kind of layer that a quantized module replaces; None if it is not quantized."""
    return stage_of(module)[0] or layer_of_converted(module)


def is_quantized(module: nn.Module) -> bool:
    """Whether a module is a prepared or a converted layer."""
    return is_prepared(module) or is_converted(module)


def float_type(module: nn.Module) -> type[nn.Module] | None:
    """Return the float class that a quantized layer replaces; None if it is not known."""
    kind = layer_kind(module)
    if kind is None or kind.float_type is not None:
        return None if kind is None else kind.float_type
    return None if getattr(module, "nx", None) is None else Conv1D


def floating(module: Any) -> nn.Module:
    """Return the float layer with the weight of a quantized one whose :func:`float_type` is known.

    A converted layer gives its dequantized weight, in a new tensor. A prepared layer gives its own
    parameters, which both layers then share; but if its weight is rotated, it gives the weight
    before the rotation, in float32 or float64, and if it is computed, a copy.
    """
    kind, row = float_type(module), layer_kind(module)
    assert kind is not None and row is not None
    with torch.device("meta"):
        plain = kind(**{name: getattr(module, own) for own, name in row.sizes.items()})
    if is_prepared(module):
        weight, bias = module.float_weight(), getattr(module, "bias", None)
        if rotate_of(module) > 0:
            weight = module._in_other_basis(wide(weight))
        if not isinstance(weight, nn.Parameter):
            weight = _parameter(weight.detach())
    else:
        weight, bias = _parameter(module.weight.clone()), getattr(module, "bias", None)
        # PEFT may have made all floating parameters float32, the bias too.
        bias = None if bias is None else _parameter(bias.to(weight.dtype, copy=True))
    plain.weight = weight
    if hasattr(plain, "bias"):
        plain.bias = bias
    result = with_forward_of(plain, module, kind)
    if result is not plain:
        result.__class__ = _own_class(module, kind)
    return result.train(module.training)


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def with_floating_layers(module: nn.Module) -> nn.Module:
    """Return a module in which float layers stand for the converted ones; change it in place."""
    if is_converted(module):
        return floating(module) if float_type(module) is not None else module
    for name, child in list(module.named_children()):
        setattr(module, name, with_floating_layers(child))
    return module


def integer_parameters(model: nn.Module) -> int:
    """Return how many parameters the converted layers of a model stand for, beyond their own.

    Two numbers of four bits are one element of a parameter, and zero points and factors of groups
    are parameters that the float layer has not.
    """
    tensors: dict[int, int] = {}
    for module in model.modules():
        for name, own in module.named_parameters(recurse=False) if is_converted(module) else ():
            stands_for = module.weight.numel() if name == "packed" else own.numel()
            is_counted = name.endswith(("qweight", "packed", "bias"))
            tensors[id(own)] = (stands_for if is_counted else 0) - own.numel()
    return sum(tensors.values())
