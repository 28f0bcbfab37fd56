# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions that store integers and compute in floating point."""

from typing import Any, Final

import torch
from torch import Tensor, nn

from ... import ops
from ..training.fake_quantize import FakeQuantize
from . import _arguments
from ._integers import HoldsIntegers


class _QuantizedConv(HoldsIntegers):
    """What the convolutions share. ``_conv_forward`` is PyTorch's, of the class ``_float``."""

    __constants__ = (
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
        "in_channels",
        "out_channels",
        "kernel_size",
    )
    _scales = ("weight_scale",)
    _float: type[nn.Module]
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None
    padding: Any
    weight_bits: Final[int]

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        weight_zero_point: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        input_fake_quant: FakeQuantize | None = None,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        _arguments.check_weight(name, qweight, bias, 3 if self._float is nn.Conv1d else 4)
        _arguments.check_bits(name, "weight_bits", weight_bits)
        self.weight_bits = weight_bits
        # PyTorch's module checks the arguments, and says what they stand for.
        like = self._float(
            qweight.shape[1] * groups,
            qweight.shape[0],
            tuple(qweight.shape[2:]),
            stride,
            padding,
            dilation,
            groups,
            bias=False,
            padding_mode=padding_mode,
            device="meta",
        )
        for attribute in (*self.__constants__, "_reversed_padding_repeated_twice"):
            setattr(self, attribute, getattr(like, attribute))
        scale = _arguments.scale_of_channels(name, weight_scale, qweight.shape[0])
        zero_point = _arguments.zero_point_of_weight(name, weight_zero_point, scale)
        self.dtype = _arguments.weight_dtype(name, dtype, bias, scale)
        self.register_buffer("qweight", _arguments.plain(qweight).contiguous())
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if bias is None else _arguments.plain(bias))
        self.register_buffer("weight_zero_point", zero_point)
        self.input_fake_quant = nn.Identity() if input_fake_quant is None else input_fake_quant

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input``, in its dtype."""
        weight = self._dequantized(input.dtype)
        return self._conv_forward(self.input_fake_quant(input), weight, self.bias)

    def dequantized_weight(self) -> Tensor:
        """Return the floating weight that the integers stand for."""
        return self._dequantized(self.dtype)

    def _dequantized(self, dtype: torch.dtype) -> Tensor:
        return ops.dequantize_per_channel(
            self.qweight, self.weight_scale, self.weight_zero_point, 0, dtype=dtype
        )

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        zero = "" if self.weight_zero_point is None else " asymmetric"
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}{mode}, bias={self.bias is not None}, "
            f"weight=int{self.weight_bits} per_channel{zero}"
        )


class QuantizedConv1d(_QuantizedConv):
    """A ``Conv1d`` that stores integers and computes in floating point.

    Its gradient is that of the prepared layer.

    Args:
        qweight: int8 ``[out_channels, in_channels / groups, kernel]``.
        weight_scale: float32 or float64 ``[out_channels]``.
        bias: ``[out_channels]``, of the inputs' dtype.
        weight_zero_point: Integer ``[out_channels]``; None stands for 0.
        stride: As in ``torch.nn.Conv1d``, like ``padding``, ``dilation``, ``groups`` and
            ``padding_mode``.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: Width of the integers, 2 to 8; they are stored as int8 all the same.
        dtype: Of ``weight`` when it is read; None: that of the bias, else of the scale.

    Raises:
        ValueError: A shape or width that does not fit.
        TypeError: A weight that is not int8, a scale that is not float32 or float64, a zero point
            that is not integer, or a dtype that is not floating.
    """

    _float = nn.Conv1d
    _conv_forward = nn.Conv1d._conv_forward


class QuantizedConv2d(_QuantizedConv):
    """A ``Conv2d`` that stores integers and computes in floating point.

    Its gradient is that of the prepared layer.

    Args:
        qweight: int8 ``[out_channels, in_channels / groups, height, width]``.
        weight_scale: float32 or float64 ``[out_channels]``.
        bias: ``[out_channels]``, of the inputs' dtype.
        weight_zero_point: Integer ``[out_channels]``; None stands for 0.
        stride: As in ``torch.nn.Conv2d``, like ``padding``, ``dilation``, ``groups`` and
            ``padding_mode``.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: Width of the integers, 2 to 8; they are stored as int8 all the same.
        dtype: Of ``weight`` when it is read; None: that of the bias, else of the scale.

    Raises:
        ValueError: A shape or width that does not fit.
        TypeError: A weight that is not int8, a scale that is not float32 or float64, a zero point
            that is not integer, or a dtype that is not floating.
    """

    _float = nn.Conv2d
    _conv_forward = nn.Conv2d._conv_forward
