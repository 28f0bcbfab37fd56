# SPDX-License-Identifier: BSD-3-Clause
"""``convert_``: a prepared and trained model becomes one of integers."""

import copy

import torch
from torch import Tensor, nn

from ..configs import TensorConfig
from ..nn import (
    FakeQuantize,
    FakeQuantizedConv1d,
    FakeQuantizedConv2d,
    FakeQuantizedEmbedding,
    FakeQuantizedLinear,
    LearnedFakeQuantize,
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyLinear,
)
from .prepare import CONVERTED, unknown_weights
from .replace import Decision, Report, Swap, replace_modules, take_over

CALLER = "baraquant.qat.convert_"

# int8 weights, their scale, and a zero point where there is one.
Integers = tuple[Tensor, Tensor, Tensor | None]


def convert_(model: nn.Module) -> Report:
    """Swap the layers of a prepared model, in place, for layers of integers.

    Each computes what the prepared one did in evaluation: the same bits, where the model is of
    linear layers, embeddings and what lies between; of a convolution too, as long as PyTorch
    chooses the same algorithm. Weights that are tied stay tied: their integers are stored once. All
    is decided before the first swap: an error leaves the model as it was.

    Args:
        model: Prepared by :func:`prepare_`, and trained.

    Returns:
        What was swapped, and what stayed floating.

    Raises:
        ValueError: No layer is prepared; a scale is not known yet, as no batch was seen in
            training, or it is NaN or infinite. The message has the layer's path.
        TypeError: Something that is no module, or scripted.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> _ = baraquant.qat.prepare_(model, baraquant.W8A8())
        >>> print(baraquant.qat.convert_(model))
        0  QuantizedLinear
        1 changed, 0 left out
    """
    converter = Converter()
    report = replace_modules(model, CALLER, lambda module, name: converter.decide(module))
    if not report.changed:
        kind = type(model).__name__
        if any(isinstance(module, CONVERTED) for module in model.modules()):
            raise ValueError(
                f"{CALLER}: expected a prepared model, but {kind} is converted already"
            )
        raise ValueError(
            f"{CALLER}: expected a model prepared by baraquant.qat.prepare_, but {kind} has no "
            "prepared layer"
        )
    return report


class Converter:
    """Makes layers of integers of prepared ones; those whose weights are tied share the integers.

    :func:`baraquant.quantize_` makes its convolutions with it.
    """

    def __init__(self) -> None:
        self._shared: dict[tuple[int, int | None, TensorConfig], Integers] = {}

    def decide(self, module: nn.Module) -> Decision:
        """Return the layer that takes the place of a prepared one, or why there is none."""
        if isinstance(module, FakeQuantizedLinear):
            new = self._linear(module)
        elif isinstance(module, FakeQuantizedEmbedding):
            new = self._embedding(module)
        elif isinstance(module, (FakeQuantizedConv1d, FakeQuantizedConv2d)):
            new = self._conv(module)
        elif isinstance(module, CONVERTED):
            return "it is converted already"
        else:
            return None if unknown_weights(module) is None else "it was not prepared"
        take_over(new, module)
        return Swap(new, type(new).__name__ + _skipped(module.input_fake_quant))

    def _linear(self, module: FakeQuantizedLinear) -> nn.Module:
        weight, scale, zero_point = self._integers(module)
        bias, config, bits = _own(module.bias), module.config, module.config.weight.bits
        dtype = module.float_weight().dtype
        activation = config.activation
        if not module.is_integer or activation is None:
            return WeightOnlyLinear(
                weight,
                scale,
                bias,
                weight_zero_point=zero_point,
                group_size=config.weight.group_size,
                input_fake_quant=_frozen(module.input_fake_quant),
                weight_bits=bits,
                dtype=dtype,
            )
        if activation.dynamic:
            return QuantizedLinear(
                weight,
                scale,
                bias,
                symmetric=activation.symmetric,
                bits=activation.bits,
                granularity=activation.granularity,
                weight_bits=bits,
                dtype=dtype,
            )
        frozen = _frozen(module.input_fake_quant)
        assert frozen is not None
        return StaticQuantizedLinear(
            weight,
            scale,
            frozen.scale,
            bias,
            act_zero_point=None if activation.symmetric else frozen.zero_point,
            bits=activation.bits,
            weight_bits=bits,
            dtype=dtype,
        )

    def _embedding(self, module: FakeQuantizedEmbedding) -> nn.Module:
        weight, scale, zero_point = self._integers(module)
        return QuantizedEmbedding(
            weight,
            scale,
            weight_zero_point=zero_point,
            group_size=module.config.weight.group_size,
            dtype=module.float_weight().dtype,
            padding_idx=module.padding_idx,
            weight_bits=module.config.weight.bits,
        )

    def _conv(self, module: FakeQuantizedConv1d | FakeQuantizedConv2d) -> nn.Module:
        weight, scale, zero_point = self._integers(module)
        kind = QuantizedConv1d if isinstance(module, FakeQuantizedConv1d) else QuantizedConv2d
        return kind(
            weight,
            scale,
            _own(module.bias),
            weight_zero_point=zero_point,
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=module.groups,
            padding_mode=module.padding_mode,
            input_fake_quant=_frozen(module.input_fake_quant),
            weight_bits=module.config.weight.bits,
            dtype=module.float_weight().dtype,
        )

    def _integers(self, module: nn.Module) -> Integers:
        config = module.config.weight
        quantizer = None if config.dynamic else id(module.weight_fake_quant)
        key = id(module.float_weight()), quantizer, config
        if key not in self._shared:
            integers, scale, zero_point = module.quantized_weight()
            _check_scale("the weight", scale)
            self._shared[key] = integers, scale, None if config.symmetric else zero_point
        return self._shared[key]


def _frozen(quantizer: nn.Module) -> FakeQuantize | None:
    """Return what rounds the input from now on; None where nothing does."""
    if isinstance(quantizer, LearnedFakeQuantize):
        scale, zero_point = quantizer.calculate_qparams()
        if not quantizer._is_initialized() and not scale.is_meta:
            raise ValueError(_UNSEEN)
        _check_scale("the input", scale)
        return FakeQuantize(
            scale, zero_point, quant_min=quantizer.quant_min, quant_max=quantizer.quant_max
        )
    if not isinstance(quantizer, FakeQuantize):
        return None
    if quantizer.is_dynamic:
        dynamic = copy.deepcopy(quantizer)
        dynamic.enable_fake_quant()
        return dynamic
    if not quantizer.scale.is_meta and bool(quantizer.min_val > quantizer.max_val):
        raise ValueError(_UNSEEN + _skipped(quantizer))
    _check_scale("the input", quantizer.scale)
    return quantizer.freeze()


def _skipped(quantizer: nn.Module) -> str:
    """Say how many batches took no part in the range of an input; nothing where all did."""
    if not isinstance(quantizer, FakeQuantize) or not quantizer.is_observed:
        return ""
    count = 0 if quantizer.skipped_batches.is_meta else int(quantizer.skipped_batches)
    batches = "1 batch" if count == 1 else f"{count} batches"
    return f"; {batches} with a NaN or infinity took no part in its input's range" if count else ""


_UNSEEN = (
    "expected the range of its input to be known, but it has seen no data: run batches in training "
    "mode first"
)


def _check_scale(what: str, scale: Tensor) -> None:
    if not scale.is_meta and not bool(torch.isfinite(scale).all()):
        raise ValueError(
            f"expected the scale of {what} to be finite, but got NaN or infinity, as a value was"
        )


def _own(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().clone()
