# SPDX-License-Identifier: BSD-3-Clause
"""``WeightOnlyLinear``: a linear layer that stores integers and computes in floating point."""

from typing import Final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import ops
from .._product import linear
from ..training._quantizers import Integers, own
from ..training.fake_quantize import FakeQuantize
from ..training.linear import FakeQuantizedLinear
from . import _arguments
from .linear import LaysOutWeight


class WeightOnlyLinear(LaysOutWeight):
    """A linear layer that stores integers and computes in floating point.

    It serves the cases that an integer product cannot compute: weights with a scale for each group,
    weights with zero points, and inputs that stay floating.
    ``y = linear(input_fake_quant(x), w, bias)`` where ``w`` is the dequantized weight in the dtype
    of the input. The gradient is that of the prepared layer.

    Args:
        qweight: int8 ``[out_features, in_features]``.
        weight_scale: float32 (float64 for float64 inputs): ``[out_features]``, or
            ``[out_features, groups]`` with ``group_size``.
        bias: ``[out_features]``, of the dtype of the inputs.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of adjacent values of a row of the weight that share a scale.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: The width of the weight's integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.
        transposed: Whether ``weight`` reads as ``[in_features, out_features]``, the layout of
            transformers' ``Conv1D``.

    Raises:
        ValueError: A shape or width does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> weight = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> layer = baraquant.nn.WeightOnlyLinear(weight, scale, group_size=2)
        >>> layer(torch.ones(1, 4))
        tensor([[1.2500]])
    """

    _scales = ("weight_scale",)
    weight_scale: Tensor
    bias: Tensor | None
    weight_zero_point: Tensor | None
    in_features: Final[int]
    out_features: Final[int]
    group_size: Final[int | None]
    weight_bits: Final[int]

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        weight_zero_point: Tensor | None = None,
        group_size: int | None = None,
        input_fake_quant: FakeQuantize | None = None,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        name = "WeightOnlyLinear"
        _arguments.check_weight(name, qweight, bias)
        _arguments.check_bits(name, "weight_bits", weight_bits)
        self.out_features, self.in_features = qweight.shape
        self.group_size = group_size
        self.weight_bits = weight_bits
        scale = _arguments.scale_of_weight(name, weight_scale, qweight, group_size)
        self.dtype = _arguments.weight_dtype(name, dtype, bias, scale)
        self.register_buffer("qweight", _arguments.plain(qweight).contiguous())
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if bias is None else _arguments.plain(bias))
        zero_point = _arguments.zero_point_of_weight(name, weight_zero_point, scale)
        self.register_buffer("weight_zero_point", zero_point)
        self.set_layout(transposed)
        self.input_fake_quant = nn.Identity() if input_fake_quant is None else input_fake_quant

    @classmethod
    def from_prepared(cls, layer: FakeQuantizedLinear, integers: Integers) -> Self:
        """Return the converted form of a layer that computes in floating point.

        Args:
            layer: The prepared layer.
            integers: Its weight, quantized.

        Raises:
            ValueError: The range of the input is not known yet.
        """
        return cls(
            integers.qweight,
            integers.scale,
            own(layer.bias),
            weight_zero_point=integers.zero_point,
            group_size=layer.config.weight.group_size,
            input_fake_quant=layer.frozen_input(),
            weight_bits=layer.config.weight.bits,
            dtype=layer.float_weight().dtype,
            transposed=layer.transposed_groups > 0,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
        return linear(self.input_fake_quant(input), self._dequantized(input.dtype), self.bias)

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight."""
        return self._dequantized(self.dtype)

    def _dequantized(self, dtype: torch.dtype) -> Tensor:
        scale, zero_point = self.weight_scale, self.weight_zero_point
        group_size = self.group_size
        if group_size is None:
            weight = ops.dequantize_per_channel(self.qweight, scale, zero_point, 0, dtype=dtype)
        else:
            weight = ops.dequantize_per_group(
                self.qweight, scale, zero_point, group_size, 1, dtype=dtype
            )
        return weight

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        how = "per_channel" if self.group_size is None else f"per_group({self.group_size})"
        zero = "" if self.weight_zero_point is None else " asymmetric"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight=int{self.weight_bits} {how}{zero}"
        )
