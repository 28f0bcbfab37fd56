# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions that store integers and compute in floating point; conv_transpose.py has more."""

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import ops
from .._convolution import swap_channels
from ..training._quantizers import Integers, own
from ..training.fake_quantize import FakeQuantize
from . import _arguments
from ._integers import HoldsIntegers

OPTIONS = ("stride", "padding", "dilation", "groups", "padding_mode")


class Convolution(HoldsIntegers):
    """The base of all convolutions, also the transposed ones; ``_float`` is PyTorch's class."""

    __constants__ = (*OPTIONS, "output_padding", "in_channels", "out_channels", "kernel_size")
    _scales = ("weight_scale",)
    _float: type[nn.Module]
    _options: tuple[str, ...] = OPTIONS
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None
    padding: Any
    group_size: Final[int | None]
    positions: Final[int]  # of the kernel
    transposed_groups: Final[int]  # the groups of a transposed convolution; else 0
    weight_bits: Final[int]

    @classmethod
    def options_of(cls, convolution: nn.Module) -> dict[str, Any]:
        """Return the constructor's arguments that a float or prepared module has as attributes."""
        return {name: getattr(convolution, name) for name in cls._options}

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        weight_zero_point: Tensor | None,
        group_size: int | None,
        input_fake_quant: FakeQuantize | None,
        weight_bits: int,
        dtype: torch.dtype | None,
        **options: Any,  # PyTorch's
    ) -> None:
        super().__init__()
        name, kind = type(self).__name__, self._float
        _arguments.check_weight(name, qweight, bias, 2 + int(kind.__name__[-2]))
        _arguments.check_bits(name, "weight_bits", weight_bits)
        self.weight_bits = weight_bits
        self.group_size = group_size
        # PyTorch's module checks the options and expands them.
        like = kind(
            in_channels=qweight.shape[1] * options["groups"],
            out_channels=qweight.shape[0],
            kernel_size=tuple(qweight.shape[2:]),
            bias=False,
            device="meta",
            **options,
        )
        for attribute in (*self.__constants__, "_reversed_padding_repeated_twice"):
            setattr(self, attribute, getattr(like, attribute))
        self.positions = math.prod(self.kernel_size)
        self.transposed_groups = self.groups if like.transposed else 0
        scale = _arguments.scale_of_weight(name, weight_scale, qweight, group_size)
        zero_point = _arguments.zero_point_of_weight(name, weight_zero_point, scale)
        self.dtype = _arguments.weight_dtype(name, dtype, bias, scale)
        self.register_buffer("qweight", _arguments.plain(qweight).contiguous())
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if bias is None else _arguments.plain(bias))
        self.register_buffer("weight_zero_point", zero_point)
        self.input_fake_quant = nn.Identity() if input_fake_quant is None else input_fake_quant

    @classmethod
    def from_prepared(cls, layer: Any, integers: Integers) -> Self:
        """Return the converted form of a prepared convolution.

        Args:
            layer: The prepared convolution.
            integers: Its weight, quantized.

        Raises:
            ValueError: The range of its input is not known yet.
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
            **cls.options_of(layer),
        )

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight, in PyTorch's layout."""
        return self._dequantized(self.dtype)

    def _dequantized(self, dtype: torch.dtype) -> Tensor:
        integers, scale, zero_point = self.qweight, self.weight_scale, self.weight_zero_point
        group_size = self.group_size
        if group_size is None:
            weight = ops.dequantize_per_channel(integers, scale, zero_point, 0, dtype=dtype)
        else:
            rows, size = integers.flatten(1), group_size * self.positions
            weight = ops.dequantize_per_group(rows, scale, zero_point, size, 1, dtype=dtype)
            weight = weight.reshape(integers.shape)
        if self.transposed_groups > 0:
            weight = swap_channels(weight, self.transposed_groups).contiguous()
        return weight

    def _shaped_as_weight(self) -> Tensor:
        if self.transposed_groups == 0:
            return self.qweight
        # The values are in another order, but nothing reads them.
        outputs = self.out_channels // self.groups
        return self.qweight.view(self.in_channels, outputs, *self.kernel_size)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        zero = "" if self.weight_zero_point is None else " asymmetric"
        how = "per_channel" if self.group_size is None else f"per_group({self.group_size})"
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        added = f", output_padding={self.output_padding}" if self.transposed_groups > 0 else ""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}{added}, dilation={self.dilation}, "
            f"groups={self.groups}{mode}, bias={self.bias is not None}, "
            f"weight=int{self.weight_bits} {how}{zero}"
        )


class _QuantizedConv(Convolution):
    """The base of the convolutions; ``_conv_forward`` is PyTorch's."""

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        weight_zero_point: Tensor | None = None,
        group_size: int | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        input_fake_quant: FakeQuantize | None = None,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            qweight,
            weight_scale,
            bias,
            weight_zero_point,
            group_size,
            input_fake_quant,
            weight_bits,
            dtype,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input``, in its dtype."""
        weight = self._dequantized(input.dtype)
        return self._conv_forward(self.input_fake_quant(input), weight, self.bias)


class QuantizedConv1d(_QuantizedConv):
    """A ``Conv1d`` that stores integers and computes in floating point.

    The gradient is that of the prepared layer.

    Args:
        qweight: int8 ``[out_channels, in_channels / groups, kernel]``.
        weight_scale: float32 or float64 ``[out_channels]``, or ``[out_channels, in_channels /
            groups / group_size]``, rounded up.
        bias: ``[out_channels]``, of the dtype of the inputs.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of inputs of an output channel that share a scale, with all positions
            of their kernels.
        stride: As in ``torch.nn.Conv1d``, like ``padding``, ``dilation``, ``groups`` and
            ``padding_mode``.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: The width of the integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.

    Raises:
        ValueError: A shape or width does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> weight = torch.ones(6, 4, 3, dtype=torch.int8)
        >>> layer = baraquant.nn.QuantizedConv1d(weight, torch.full((6,), 0.5))
        >>> layer(torch.ones(2, 4, 5)).shape
        torch.Size([2, 6, 3])
    """

    _float = nn.Conv1d
    _conv_forward = nn.Conv1d._conv_forward


class QuantizedConv2d(_QuantizedConv):
    """A ``Conv2d`` that stores integers and computes in floating point.

    The gradient is that of the prepared layer.

    Args:
        qweight: int8 ``[out_channels, in_channels / groups, height, width]``.
        weight_scale: float32 or float64 ``[out_channels]``, or ``[out_channels, in_channels /
            groups / group_size]``, rounded up.
        bias: ``[out_channels]``, of the dtype of the inputs.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of inputs of an output channel that share a scale, with all positions
            of their kernels.
        stride: As in ``torch.nn.Conv2d``, like ``padding``, ``dilation``, ``groups`` and
            ``padding_mode``.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: The width of the integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.

    Raises:
        ValueError: A shape or width does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> weight = torch.ones(6, 4, 3, 3, dtype=torch.int8)
        >>> layer = baraquant.nn.QuantizedConv2d(weight, torch.full((6,), 0.5))
        >>> layer(torch.ones(2, 4, 5, 5)).shape
        torch.Size([2, 6, 3, 3])
    """

    _float = nn.Conv2d
    _conv_forward = nn.Conv2d._conv_forward


class QuantizedConv3d(_QuantizedConv):
    """A ``Conv3d`` that stores integers and computes in floating point.

    The gradient is that of the prepared layer.

    Args:
        qweight: int8 ``[out_channels, in_channels / groups, depth, height, width]``.
        weight_scale: float32 or float64 ``[out_channels]``, or ``[out_channels, in_channels /
            groups / group_size]``, rounded up.
        bias: ``[out_channels]``, of the dtype of the inputs.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of inputs of an output channel that share a scale, with all positions
            of their kernels.
        stride: As in ``torch.nn.Conv3d``, like ``padding``, ``dilation``, ``groups`` and
            ``padding_mode``.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: The width of the integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.

    Raises:
        ValueError: A shape or width does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> weight = torch.ones(6, 4, 3, 3, 3, dtype=torch.int8)
        >>> layer = baraquant.nn.QuantizedConv3d(weight, torch.full((6,), 0.5))
        >>> layer(torch.ones(2, 4, 5, 5, 5)).shape
        torch.Size([2, 6, 3, 3, 3])
    """

    _float = nn.Conv3d
    _conv_forward = nn.Conv3d._conv_forward
