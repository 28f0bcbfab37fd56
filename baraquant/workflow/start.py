# SPDX-License-Identifier: BSD-3-Clause
"""Training that starts at integers: a prepared layer holds those of a served one.

The learned scales and zero points (and factors) become those that are stored. The float weight
becomes the point nearest to a given one that rounds to the integers: each value is projected into
its cell, whose ends are ``(q - z - 1/2) s`` and ``(q - z + 1/2) s``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import nn as bnn
from ..configs import TRAINING_OBSERVERS, QuantConfig, TensorConfig
from ..nn import FakeQuantize, LearnedFakeQuantize, LearnedFakeQuantizeInt4, QuantizesWeight
from ..nn.inference.inputs import DynamicInput, StaticInput
from ..nn.inference.integers import unpacked
from ..nn.inference.weights import Int4Factors, IntegerLinear
from ..nn.shared.master import round_master
from ..nn.shared.rotation import rotate_of
from .layers import Layer, is_transposed

# ---- What a served layer stores -----------------------------------------------------------------


@dataclass
class Stored:
    """What a served layer stores of its weight.

    Attributes:
        integers: int8, with the output channels first; of four bits with factors ``u - 8``.
        scale: Of a channel ``[N]`` or of a group ``[N, groups]``; with factors ``[N]``.
        zero_point: Shaped like the scale; None: 0. With factors, shaped like them, in [0, 15];
            None: 8.
        factor: uint8 ``[N, groups]``; None: the scales are floating.
    """

    integers: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    factor: Tensor | None = None


def stored_of(served: Any) -> Stored:
    """Return what a served layer stores of its weight."""
    if isinstance(served, Int4Factors):
        integers = unpacked(served.packed, served.in_features)
        own = served.weight_scale, served.group_zero_point, served.group_factor
        return Stored(integers, *own)
    zeros = getattr(served, "weight_zero_point", None)
    return Stored(served.qweight, served.weight_scale, zeros)


def config_of(served: Any, like: QuantConfig) -> QuantConfig:
    """Return the configuration that a served layer fits; what is not stored is that of ``like``."""
    size = getattr(served, "group_size", None)
    is_symmetric = stored_of(served).zero_point is None
    weight = TensorConfig(
        served.weight_bits,
        "per_channel" if size is None else "per_group",
        is_symmetric,
        learned=True,
        group_size=size,
        group_factors=isinstance(served, Int4Factors),
    )
    if like.weight.granularity == "per_tensor" and size is None:
        scale = served.weight_scale
        if bool((scale == scale[:1]).all()):
            weight = replace(weight, granularity="per_tensor")
    activation = _input_of(served, like.activation)
    if activation is None:
        like = like.with_floating_input()
    return replace(like, weight=weight, activation=activation, rotate=rotate_of(served) or None)


def _input_of(served: Any, like: TensorConfig | None) -> TensorConfig | None:
    """Return how a served layer rounds its input; None: it stays floating."""
    learned = like is not None and like.learned
    if isinstance(served, DynamicInput):
        return TensorConfig(served.bits, served.granularity, served.symmetric)
    rounder = getattr(served, "input_fake_quant", None)
    if isinstance(served, StaticInput):
        bits, is_symmetric = served.bits, served.symmetric
    elif isinstance(rounder, FakeQuantize):
        bits = rounder.quant_max.bit_length() + 1
        if rounder.is_dynamic:
            size = rounder.group_size or None
            return TensorConfig(bits, rounder.granularity, rounder.symmetric, group_size=size)
        is_symmetric = not bool(rounder.zero_point.any())
    else:
        return None
    # A zero point that is 0 is that of symmetric inputs, and may be one of others.
    is_symmetric = is_symmetric and (like is None or like.symmetric)
    return TensorConfig(bits, "per_tensor", is_symmetric, dynamic=False, learned=learned)


def can_start(layer: Layer) -> bool:
    """Whether training can start from served layers of a kind: experts and users' kinds cannot."""
    return layer.is_linear or layer.float_type in _FLOATS


def why_not_started(served: Any, layer: Layer) -> str | None:
    """Return why training cannot start from a served layer; None if it can."""
    if not can_start(layer):
        return f"it is a {type(served).__name__}, from which no training starts"
    if any(getattr(served, name, None) is not None for name in ("smooth", "smooth_scale")):
        return "it divides its input (SmoothQuant), which training cannot follow"
    if served._integers().is_meta:
        return "its integers are on the meta device"
    return None


class _Conv1D(nn.Module):  # type: ignore[misc]
    """Stands for transformers' ``Conv1D``, whose weight has the inputs first."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.nx, self.nf = weight.shape


def _linear(served: Any, weight: nn.Parameter) -> nn.Module:
    if is_transposed(served):
        return _Conv1D(weight)
    return nn.Linear(served.in_features, served.out_features, bias=False, device="meta")


def _embedding(served: Any, weight: nn.Parameter) -> nn.Module:
    sizes = served.num_embeddings, served.embedding_dim, served.padding_idx
    return nn.Embedding(*sizes, device="meta")


def _conv(served: Any, weight: nn.Parameter) -> nn.Module:
    sizes = served.in_channels, served.out_channels, served.kernel_size
    options = {name: getattr(served, name) for name in served._options}
    new: nn.Module = served._float(*sizes, bias=False, device="meta", **options)
    return new


_CONVS = (f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3))
_FLOATS: dict[type[nn.Module] | None, Callable[[Any, nn.Parameter], nn.Module]] = {
    nn.Embedding: _embedding,
    **{getattr(nn, name): _conv for name in _CONVS},
}


def as_float(served: Any, layer: Layer, weights: dict[tuple[int, bool], nn.Parameter]) -> nn.Module:
    """Return a float layer with the weight that a served one stands for, rotated if that is.

    ``weights`` has those of layers that share integers, by the ids of these.
    """
    key = id(served._integers()), is_transposed(served)
    if key not in weights:
        weights[key] = nn.Parameter(_dequantized(served))
    new = _FLOATS.get(layer.float_type, _linear)(served, weights[key])
    new.weight = weights[key]
    if layer.float_type is not nn.Embedding:
        bias = None if served.bias is None else nn.Parameter(served.bias.detach().clone())
        new.register_parameter("bias", bias)
    return new.train(served.training)


def _dequantized(served: Any) -> Tensor:
    """Return the weight in the layout of the parameter."""
    if isinstance(served, IntegerLinear):
        weight = served._dequantized().to(served.dtype)
    elif isinstance(served, bnn.QuantizedEmbedding):
        weight = served.dequantized_weight()
    else:
        weight = served._dequantized(served.dtype)
    return weight.t().contiguous() if is_transposed(served) else weight


class Starts:
    """Prepares layers that are quantized already, so that training starts at what they store."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, bool], nn.Parameter] = {}  # of integers that are shared

    def prepare(
        self, served: Any, layer: Layer, scheme: QuantConfig
    ) -> tuple[nn.Module, str] | str:
        """Return the prepared layer of a scheme with learned scales, and what a report adds.

        Or return why there is none.

        Raises:
            ValueError: The scheme does not fit what is stored; the message says what that is.
        """
        reason = why_not_started(served, layer)
        if reason is not None:
            return reason
        stored, remark = config_of(served, scheme), "; it holds the stored integers"
        if stored.activation is None and scheme.activation is not None:
            keeps = layer.float_type is nn.Embedding or layer.keeps_input
            if not keeps or (layer.keeps_input and scheme.conv_inputs):
                remark += "; its input stays floating, as that is how it is stored"
            scheme = scheme.with_floating_input()
        given = as_float(served, layer, self._weights)
        try:
            if layer.is_linear:
                prepared: Any = layer.training.sharing(given, scheme, is_rotated=True)
            else:
                prepared = layer.training.from_float(given, scheme)
            config: QuantConfig = prepared.config
            is_same = config.weight == stored.weight and config.activation == stored.activation
            is_same, got = is_same and config.rotate == stored.rotate, str(config)
        except ValueError as error:
            is_same, got = False, f"{scheme}: {error}"
        if not is_same:
            weight = replace(stored.weight, learned=False, dynamic=True)
            told = replace(stored.with_float_backward(), weight=weight)
            raise ValueError(
                f"expected a configuration that fits the stored integers, {told}, but got {got}"
            )
        remark += start(prepared, stored_of(served), prepared.rows_of_weight())
        if stored.is_static:
            start_input(prepared, served)
        return prepared, remark


# ---- The start ----------------------------------------------------------------------------------


@torch.no_grad()  # type: ignore[untyped-decorator]
def start(prepared: QuantizesWeight, stored: Stored, near: Tensor) -> str:
    """Let a prepared layer hold integers and scales; return what a report adds.

    The weight is written in place. It becomes the point nearest to ``near``, the rows of a weight
    as :meth:`QuantizesWeight.rows_of_weight` returns them, that rounds to the integers.
    """
    quantizer: Any = prepared.weight_fake_quant
    if stored.factor is not None:
        zeros = stored.zero_point
        zeros = torch.full_like(stored.factor, 8) if zeros is None else zeros
        quantizer.start_from(stored.scale, stored.factor, zeros)
    else:
        count = quantizer.scale.numel()  # per_tensor each channel has a copy of the only scale
        zeros = torch.zeros_like(stored.scale) if stored.zero_point is None else stored.zero_point
        quantizer.start(stored.scale.flatten()[:count], zeros.flatten()[:count])
    parameter, wanted = prepared.float_weight(), stored.integers.flatten(1)
    step, zero_point = quantizer.calculate_qparams()
    step = _of_columns(step.double(), wanted.shape[1])
    center = (wanted - _of_columns(zero_point, wanted.shape[1])) * step
    # Within the ends, by what a cast to the weight's dtype may move them.
    eps = torch.finfo(getattr(torch, prepared.master or "float64")).eps
    eps = max(eps, torch.finfo(parameter.dtype).eps)
    half = (step / 2 - eps * (center.abs() + step / 2)).clamp_min(0)
    value = near.flatten(1).to(parameter.dtype)
    projected = near.flatten(1).double().clamp(center - half, center + half)
    wrong = _integers(prepared, value, near.shape) != wanted
    for other in (projected, center):
        value = torch.where(wrong, other.to(value.dtype), value)
        wrong = _integers(prepared, value, near.shape) != wanted
    set_weight(prepared, value)
    return _about(prepared, stored, int(wrong.sum()))


@torch.no_grad()  # type: ignore[untyped-decorator]
def set_weight(prepared: QuantizesWeight, rows: Tensor) -> None:
    """Write a weight that has its channels first into the parameter."""
    parameter = prepared.float_weight()
    shape = prepared._channels_first(parameter).shape
    parameter.copy_(prepared._channels_first(rows.reshape(shape)))  # back again


def _of_columns(values: Tensor, columns: int) -> Tensor:
    """Return values of channels or groups for each column."""
    values = values.reshape(len(values), -1)
    return values.repeat_interleave(columns // values.shape[1], dim=1)


def _integers(prepared: QuantizesWeight, value: Tensor, shape: torch.Size) -> Tensor:
    """Return the integers of a weight ``[N, K]``."""
    quantizer: Any = prepared.weight_fake_quant
    rows = round_master(value, prepared.master).reshape(shape)
    if isinstance(quantizer, LearnedFakeQuantizeInt4):
        return unpacked(quantizer.pack(rows)[0], value.shape[1])
    return quantizer.quantize(rows)[0].flatten(1)


def _about(prepared: QuantizesWeight, stored: Stored, wrong: int) -> str:
    """Return what a report says of what the layer cannot hold."""
    quantizer: Any = prepared.weight_fake_quant
    qparams = quantizer.calculate_qparams if stored.factor is None else quantizer.qparams
    scale, text = qparams()[0], ""
    if not torch.equal(scale.flatten(), stored.scale.flatten()[: scale.numel()].to(scale.dtype)):
        text += f"; its scales are rounded to {prepared.master or quantizer.scale_dtype}"
    if wrong:
        dtype = str(prepared.float_weight().dtype).removeprefix("torch.")
        text += f"; {wrong} of its values are not those found, as no {dtype} rounds to them"
    return text


def start_input(prepared: QuantizesWeight, served: Any) -> None:
    """Let a prepared layer hold the range of the static input of a served one."""
    quantizer = prepared.input_fake_quant
    if isinstance(served, StaticInput):
        scale, zero_point = served.act_scale, served.act_zero_point
    else:
        scale, zero_point = served.input_fake_quant.scale, served.input_fake_quant.zero_point
    zeros = torch.zeros_like(scale, dtype=torch.int32) if zero_point is None else zero_point
    if isinstance(quantizer, LearnedFakeQuantize):
        quantizer.start(scale, zeros)
        return
    assert isinstance(quantizer, FakeQuantize)
    with torch.no_grad():
        low, high = ((end - zeros) * scale for end in (quantizer.quant_min, quantizer.quant_max))
        values = {"scale": scale, "zero_point": zeros, "min_val": low, "max_val": high}
        for name, value in values.items():
            own = getattr(quantizer, name)
            own.copy_(value.reshape(own.shape))
    if prepared.config.observer not in TRAINING_OBSERVERS:
        quantizer.disable_observer()
