# SPDX-License-Identifier: BSD-3-Clause
"""Layers as PyTorch's exporter is to see them: weights as ONNX wants them, and plain arithmetic.

Two forms decide whether onnxruntime is fast. Products of integers take their input as uint8: int8
by int8 has no fast kernel. Weights lie ``[K, N]``, so that a plain MatMul takes them: behind a
Transpose or in a Gemm a weight of four bits would be dequantized in each call.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import ops
from .._library import of_python_ops
from ..configs import integer_range
from ..nn import FakeQuantize
from ..nn.shared.by_granularity import ByGranularity
from ._layers import IntegerLayer, RewrittenLinear

_SMALLEST = torch.finfo(torch.float32).tiny
_MIDDLE = 128  # what makes a uint8 of an int8

_library = of_python_ops(__name__, "baraquant_export")
_library.define("integer_product(Tensor input, Tensor weight, Tensor zero_point) -> Tensor")


def _integer_product(input: Tensor, weight: Tensor, zero_point: Tensor) -> Tensor:
    """Return ``(input - zero_point) @ weight`` in int32, for a uint8 input and an int8 weight."""
    return torch.matmul(input.int() - zero_point.int(), weight.int())


def _like_integer_product(input: Tensor, weight: Tensor, zero_point: Tensor) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[1]), dtype=torch.int32)


_library.impl("integer_product", _integer_product, "CompositeExplicitAutograd")
torch.library.register_fake(
    "baraquant_export::integer_product", _like_integer_product, lib=_library
)


class _Linear(RewrittenLinear):
    """The base: the integers as ``[K, N]``."""

    qweight: Tensor
    weight_scale: Tensor

    def __init__(self, layer: IntegerLayer) -> None:
        super().__init__(layer)
        self.register_buffer("qweight", layer.qweight.t().contiguous())


class _IntegerLinear(_Linear):
    """The base of the integer layers: the smallest and the largest integer of the input."""

    def __init__(self, layer: IntegerLayer) -> None:
        super().__init__(layer)
        self.register_buffer("weight_scale", layer.scale)
        assert layer.input is not None
        self.low, self.high = integer_range(layer.input.bits)

    def _output(self, sums: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        output = sums.float() * self.weight_scale * scale
        if self.bias is not None:
            output = output + self.bias.float()
        return output.to(dtype)


class DynamicLinear(_IntegerLinear):
    """``QuantizedLinear``: a scale for each token, or for the whole input, out of its values."""

    def __init__(self, layer: IntegerLayer) -> None:
        super().__init__(layer)
        assert layer.input is not None
        self.symmetric = layer.input.symmetric
        self.per_token = layer.input.granularity == "per_token"
        self.register_buffer("smooth", layer.smooth)
        self.register_buffer("middle", torch.tensor(_MIDDLE, dtype=torch.uint8))
        if not self.symmetric:
            self.register_buffer("weight_sum", layer.qweight.sum(1, dtype=torch.int32))

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output."""
        rows = self.rotated(input).float()
        if self.smooth is not None:
            rows = rows / self.smooth
        dims = [-1] if self.per_token else list(range(rows.dim()))
        scale, zero_point = _qparams(rows, dims, self.low, self.high, self.symmetric)
        integers = _round(rows, scale, zero_point, self.low, self.high)
        unsigned = (integers + _MIDDLE).to(torch.uint8)
        sums = torch.ops.baraquant_export.integer_product(unsigned, self.qweight, self.middle)
        if zero_point is not None:
            sums = sums - zero_point.int() * self.weight_sum
        return self._output(sums, scale, input.dtype)


class _StaticLinear(_IntegerLinear):
    """The base for ``StaticQuantizedLinear``, whose input becomes int8 if it ``is_signed``.

    The integers are uint8 otherwise, 128 larger.
    """

    def __init__(self, layer: IntegerLayer, is_signed: bool = False) -> None:
        super().__init__(layer)
        assert layer.input is not None and layer.input.scale is not None
        self.integers = torch.int8 if is_signed else torch.uint8
        self.shift = 0 if is_signed else _MIDDLE
        given = layer.input.zero_point
        zero_point = torch.zeros((), dtype=torch.int32) if given is None else given.reshape(())
        zero_point = (zero_point.int() + self.shift).to(self.integers)
        self.register_buffer("act_scale", layer.input.scale.reshape(()))
        self.register_buffer("zero_point", zero_point)
        smooth_scale = getattr(layer.module, "smooth_scale", None)
        self.register_buffer("smooth_scale", smooth_scale)
        if smooth_scale is not None:
            # A zero point for each feature, as QuantizeLinear wants one for each scale.
            self.register_buffer("zero_points", zero_point.expand(smooth_scale.shape).clone())

    def _quantized(self, rows: Tensor) -> Tensor:
        low, high, kind = self.low + self.shift, self.high + self.shift, self.integers
        if self.smooth_scale is None:
            return ops.quantize_per_tensor(
                rows, self.act_scale, self.zero_point, low, high, dtype=kind
            )
        return ops.quantize_per_channel(
            rows, self.smooth_scale, self.zero_points, -1, low, high, dtype=kind
        )


class StaticLinear(_StaticLinear):
    """``StaticQuantizedLinear``, as a product of integers."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output."""
        integers = self._quantized(self.rotated(input).float())
        sums = torch.ops.baraquant_export.integer_product(integers, self.qweight, self.zero_point)
        return self._output(sums, self.act_scale, input.dtype)


class StaticLinearQDQ(_StaticLinear):
    """``StaticQuantizedLinear``, as QuantizeLinear and DequantizeLinear around a MatMul.

    The integers are int8 with the zero point 0, as TensorRT wants them. Where TensorRT has no such
    input, with another zero point or a scale for each feature, they are uint8, as onnxruntime wants
    them: it makes uint8 of int8 itself, and 1.32 fails at some of these. The bias is subtracted
    with its sign changed: of a MatMul and an Add onnxruntime makes a Gemm, for which it dequantizes
    the weight in each call, tens of times slower.
    """

    def __init__(self, layer: IntegerLayer, signed: bool) -> None:
        assert layer.input is not None
        is_plain = layer.input.symmetric and layer.smooth is None
        super().__init__(layer, is_signed=signed and is_plain)
        if layer.bias is not None:
            self.register_buffer("minus_bias", -layer.bias.float())

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output."""
        integers = self._quantized(self.rotated(input).float())
        rows = ops.dequantize_per_tensor(integers, self.act_scale, self.zero_point)
        weight = ops.dequantize_per_channel(self.qweight, self.weight_scale, None, 1)
        output = torch.matmul(rows, weight)
        if self.bias is not None:
            output = output - self.minus_bias
        return output.to(input.dtype)


class WeightOnly(_Linear):
    """``WeightOnlyLinear``: the weight is dequantized, and the product is floating."""

    def __init__(self, layer: IntegerLayer, rounder: nn.Module) -> None:
        super().__init__(layer)
        self.group_size = layer.group_size
        scale = layer.scale
        zero_point = None if layer.zero_point is None else layer.zero_point.to(torch.int8)
        if layer.group_size is not None:  # [N, groups] to [groups, N]
            scale = scale.t().contiguous()
            zero_point = None if zero_point is None else zero_point.t().contiguous()
        self.register_buffer("weight_scale", scale)
        self.register_buffer("weight_zero_point", zero_point)
        self.input_fake_quant = rounder

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output."""
        scale, zero_point = self.weight_scale, self.weight_zero_point
        if self.group_size is None:
            weight = ops.dequantize_per_channel(self.qweight, scale, zero_point, 1)
        else:
            weight = ops.dequantize_per_group(self.qweight, scale, zero_point, self.group_size, 0)
        rows = self.input_fake_quant(self.rotated(input))
        output = torch.matmul(rows, weight.to(input.dtype))
        return output if self.bias is None else output + self.bias


class FixedRounder(ByGranularity):
    """A ``FakeQuantize`` with given scales, on int8 without zero points, or else on uint8.

    Where zero points and limits grow by 128, the values stay the same. onnxruntime makes uint8 of
    int8 itself, and 1.32 fails at that where a zero point is given and a Reshape comes next. But
    without a zero point it recognizes no integer convolution: for the input of one ``keeps_zero``
    writes a zero point of 0. Without ``signed`` the integers are uint8, as uint8 weights want them.
    """

    zero_point: Tensor | None

    def __init__(self, rounder: FakeQuantize, keeps_zero: bool, signed: bool) -> None:
        super().__init__()
        self._set_granularity(rounder.granularity, rounder.axis, rounder.group_size or None)
        self.quant_min, self.quant_max = rounder.quant_min, rounder.quant_max
        zero_point: Tensor | None = rounder.zero_point
        is_zero = not bool(rounder.zero_point.any())
        is_int8 = self.quant_min >= -_MIDDLE and self.quant_max < _MIDDLE
        if is_zero and (signed or not is_int8):
            zero_point = rounder.zero_point if keeps_zero else None
        elif is_int8:
            zero_point = rounder.zero_point + _MIDDLE
            self.quant_min += _MIDDLE
            self.quant_max += _MIDDLE
        self.register_buffer("scale", rounder.scale)
        self.register_buffer("zero_point", zero_point)

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded input."""
        return self._fake_quantize(input, self.scale, self.zero_point, None)


class DynamicRounder(nn.Module):  # type: ignore[misc]
    """A ``FakeQuantize`` whose scale comes from its input, in plain arithmetic."""

    def __init__(self, rounder: FakeQuantize) -> None:
        super().__init__()
        self.granularity, self.symmetric = rounder.granularity, rounder.symmetric
        self.axis, self.group_size = rounder.axis, rounder.group_size
        self.low, self.high = rounder.quant_min, rounder.quant_max

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded input."""
        values = input.float()
        if self.granularity == "per_group":
            return self._by_groups(values).to(input.dtype)
        axis = self.axis % values.dim()
        dims = {
            "per_tensor": list(range(values.dim())),
            "per_token": [-1],
            "per_channel": [dim for dim in range(values.dim()) if dim != axis],
        }[self.granularity]
        return self._rounded(values, dims).to(input.dtype)

    def _by_groups(self, values: Tensor) -> Tensor:
        rows = values.movedim(self.axis, -1)
        size = rows.shape[-1]
        # The range of a group includes 0, so zeros after the last group change nothing.
        padded = F.pad(rows, (0, -size % self.group_size))
        groups = padded.unflatten(-1, (-1, self.group_size))
        return self._rounded(groups, [-1]).flatten(-2)[..., :size].movedim(-1, self.axis)

    def _rounded(self, values: Tensor, dims: list[int]) -> Tensor:
        scale, zero_point = _qparams(values, dims, self.low, self.high, self.symmetric)
        middle = (self.low + self.high + 1) // 2  # of a symmetric range of unsigned integers
        if zero_point is None and middle != 0:
            zero_point = torch.full_like(scale, middle)
        integers = _round(values, scale, zero_point, self.low, self.high)
        return (integers if zero_point is None else integers - zero_point) * scale


def _qparams(
    values: Tensor, dims: list[int], low: int, high: int, symmetric: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the scale and the zero point of the values along some dimensions, as floats."""
    if symmetric:
        widest = values.abs().amax(dims, keepdim=True)
        middle = (low + high + 1) // 2
        return _positive(widest / (high - middle), widest), None
    least = values.amin(dims, keepdim=True).clamp(max=0.0)
    most = values.amax(dims, keepdim=True).clamp(min=0.0)
    width = 0.5 * most - 0.5 * least
    scale = _positive(width / (0.5 * (high - low)), width)
    return scale, (low - torch.round(least / scale)).clamp(low, high)


def _positive(scale: Tensor, width: Tensor) -> Tensor:
    """Return 1 where all values are 0, else at least the smallest normal number."""
    return torch.where(width == 0, 1.0, scale.clamp(min=_SMALLEST))


def _round(values: Tensor, scale: Tensor, zero_point: Tensor | None, low: int, high: int) -> Tensor:
    """Return integers as floats."""
    integers = torch.round(values / scale)
    if zero_point is not None:
        integers = integers + zero_point
    return integers.clamp(low, high)
