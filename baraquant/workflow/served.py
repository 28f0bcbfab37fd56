# SPDX-License-Identifier: BSD-3-Clause
"""The layer that serves a prepared one: its weight as integers, its input and its bias.

A served layer is chosen by what its weight is stored as, and by what becomes of its input; the
arguments of its constructor are those of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn

from .. import nn as bnn
from ..nn.shared.convolution import is_channels_last
from ..nn.training.freeze import check_scale, frozen
from ..nn.training.quantizers import Int4Integers, Integers, PackedIntegers

StoredWeight: TypeAlias = Integers | Int4Integers | PackedIntegers

# The linear layers, by the weight and the input.
_LINEAR: dict[tuple[type[StoredWeight], str], type[nn.Module]] = {
    (Integers, "dynamic"): bnn.QuantizedLinear,
    (Integers, "static"): bnn.StaticQuantizedLinear,
    (Integers, "floating"): bnn.WeightOnlyLinear,
    (PackedIntegers, "floating"): bnn.WeightOnlyInt4Linear,
    (Int4Integers, "dynamic"): bnn.QuantizedInt4Linear,
    (Int4Integers, "static"): bnn.StaticQuantizedInt4Linear,
}


def served_linear(
    prepared: Any,
    weight: StoredWeight,
    *,
    smooth: Tensor | None = None,
) -> nn.Module:
    """Return the linear layer that serves a prepared one.

    Args:
        prepared: The prepared layer.
        weight: Its weight, quantized.
        smooth: ``[in_features]``: what the input is divided by before it becomes integers.

    Raises:
        ValueError: The range of the input is not known yet.
    """
    how = _input_of(prepared)
    read = {"floating": _floating, "static": _static, "dynamic": _dynamic}[how]
    packed = {} if isinstance(weight, Integers) else {"in_features": prepared.in_features}
    arguments = {
        **_weight_arguments(prepared, weight, floating=how == "floating"),
        **read(prepared, weight, smooth),
        **packed,
        "dtype": prepared.float_weight().dtype,
        "transposed": prepared.transposed_groups > 0,
        "rotate": prepared.rotate or None,
    }
    return _LINEAR[type(weight), how](**arguments)


def packs_weight(prepared: Any) -> bool:
    """Whether a prepared linear layer is served with integers of four bits that are packed."""
    return _input_of(prepared) == "floating" and prepared.config.weight.bits <= 4


def _input_of(prepared: Any) -> str:
    """Return what becomes of the input: it stays floating, or gets a scale then or in advance."""
    if not prepared.is_integer:
        return "floating"
    return "static" if prepared.config.is_static else "dynamic"


def _weight_arguments(prepared: Any, weight: StoredWeight, *, floating: bool) -> dict[str, Any]:
    """Return the arguments of the weight and the bias."""
    config = prepared.config.weight
    arguments = {
        "qweight" if isinstance(weight, Integers) else "packed": weight[0],
        "weight_scale": weight.scale,
        "bias": _own(prepared.bias_to_add()),
    }
    if isinstance(weight, Int4Integers):
        zero_point = None if config.symmetric else weight.group_zero_point
        arguments |= {"group_factor": weight.group_factor, "group_zero_point": zero_point}
        return {**arguments, "group_size": config.group_size}
    if floating:
        arguments |= {"weight_zero_point": weight.zero_point, "group_size": config.group_size}
    return {**arguments, "weight_bits": config.bits}


def _own(bias: Tensor | None) -> Tensor | None:
    """Return a copy of a bias that no optimizer changes."""
    return None if bias is None else bias.detach().clone()


def _floating(prepared: Any, weight: StoredWeight, smooth: Tensor | None) -> dict[str, Any]:
    assert smooth is None
    return {"input_fake_quant": prepared.frozen_input()}


def _dynamic(prepared: Any, weight: StoredWeight, smooth: Tensor | None) -> dict[str, Any]:
    activation = prepared.config.activation
    options = {"bits": activation.bits, "symmetric": activation.symmetric}
    smoothed = {} if smooth is None else {"smooth": smooth}
    return {**options, "granularity": str(activation.granularity), **smoothed}


def _static(prepared: Any, weight: StoredWeight, smooth: Tensor | None) -> dict[str, Any]:
    activation, rounder = prepared.config.activation, prepared.frozen_input()
    scale = rounder.scale.to(weight.scale.dtype)
    zero_point = None if activation.symmetric else rounder.zero_point
    smoothed = {} if smooth is None else {"smooth_scale": scale.reshape(()) * smooth}
    return {"bits": activation.bits, "act_scale": scale, "act_zero_point": zero_point, **smoothed}


def serves_conv(kind: Any) -> Callable[[Any, Integers], nn.Module]:
    """Return a function that makes a convolution of this class for a prepared one."""

    def served_conv(prepared: Any, weight: Integers) -> nn.Module:
        new: Any = kind(
            **_weight_arguments(prepared, weight, floating=True),
            **_floating(prepared, weight, None),
            **{name: getattr(prepared, name) for name in kind._options},
            dtype=prepared.float_weight().dtype,
        )
        # Where a prepared layer cuts its weight into groups or swaps channels, it makes a copy.
        is_whole = new.group_size is None and new.transposed_groups == 0
        new.channels_last = is_whole and is_channels_last(prepared.float_weight())
        return new

    return served_conv


def served_embedding(prepared: Any, weight: Integers) -> nn.Module:
    """Return the embedding that serves a prepared one."""
    config = prepared.config.weight
    return bnn.QuantizedEmbedding(
        weight.qweight,
        weight.scale,
        weight_zero_point=weight.zero_point,
        group_size=config.group_size,
        dtype=prepared.float_weight().dtype,
        padding_idx=prepared.padding_idx,
        weight_bits=config.bits,
    )


def served_experts(prepared: bnn.FakeQuantizedExperts) -> bnn.QuantizedExperts:
    """Return the experts that serve prepared ones.

    Args:
        prepared: The experts, in training or evaluation mode.

    Raises:
        ValueError: A scale is unknown, because training has seen no batch, or it is not finite.
    """
    config, tensors = prepared.config, dict[str, Tensor]()
    for name in prepared.form.weights:
        weight, scale, zero_point = prepared.quantized_weight(name)
        check_scale(name, scale)
        tensors |= {f"{name}_qweight": weight, f"{name}_scale": scale}
        if not config.weight.symmetric:
            tensors[f"{name}_zero_point"] = zero_point
        bias = _own(prepared.bias_to_add(name))
        if bias is not None:
            tensors[f"{name}_bias"] = bias
        rounder = f"{name}_input_fake_quant"
        fixed = frozen(prepared._modules[rounder])
        if fixed is not None and not fixed.is_dynamic:
            tensors |= {f"{rounder}.scale": fixed.scale, f"{rounder}.zero_point": fixed.zero_point}
    activation, inputs = config.activation, dict[str, Any]()
    if activation is not None:
        inputs = {
            "granularity": str(activation.granularity),
            "bits": activation.bits,
            "symmetric": activation.symmetric,
            "is_static": not activation.dynamic,
            "input_group_size": activation.group_size,
        }
    return bnn.QuantizedExperts(
        tensors,
        prepared,
        group_size=config.weight.group_size,
        weight_bits=config.weight.bits,
        dtype=prepared.float_weight(prepared.form.up).dtype,
        **inputs,
    )
