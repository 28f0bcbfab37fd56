# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions in quantization-aware training: their weights are fake-quantized.

In evaluation each computes what :func:`baraquant.qat.convert_` makes of it, to the last bit. Groups
of the weight that share a scale are within an output channel: ``group_size`` of its inputs, with
all positions of their kernels, so that a scale is ``[out_channels, in_channels / groups /
group_size]``.
"""

import math

from torch import Tensor, nn

from ...configs import Config, QuantConfig, qat_config
from .._convolution import Transposes
from ._drop_in import DropIn
from ._quantizers import QuantizesWeight, check_groups

_CONSTANTS = (*QuantizesWeight.__constants__, *nn.Conv2d.__constants__)


class _FakeQuantizedConv(DropIn):
    """What the convolutions share."""

    def _set_config(self, config: Config) -> None:
        qat = conv_config(qat_config(config))
        check_groups(qat.weight, self.in_channels // self.groups, "in_channels / groups")
        self._set_quantizers(
            qat,
            qat.activation,
            positions=math.prod(self.kernel_size),
            transposed_groups=self.groups if self.transposed else 0,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the rounded input."""
        weight = self._fake_quantized_weight()
        return self._conv_forward(self._rounded_input(input), weight, self.bias)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        activation = self.config.activation
        about = f"weight={self.config.weight}, input={activation or 'float'}"
        return f"{nn.modules.conv._ConvNd.extra_repr(self)}, {about}"


class _FakeQuantizedConvTranspose(Transposes, _FakeQuantizedConv):
    """What the transposed convolutions share."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution of the rounded input, of the size asked for."""
        weight = self._fake_quantized_weight()
        return self._conv_transpose(self._rounded_input(input), weight, self.bias, output_size)


class FakeQuantizedConv1d(_FakeQuantizedConv, nn.Conv1d):  # type: ignore[misc]
    """A ``Conv1d`` whose weight, and input, are fake-quantized; both stay floating.

    A scale per token, or per group, is not for a convolution's input (a vector along the last
    dimension is a stretch of space): with such a configuration the input stays floating.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. A group of its weight is ``group_size`` of an output
            channel's inputs, with all positions of their kernels. All other arguments are those of
            ``torch.nn.Conv1d``.

    Raises:
        ValueError: A group size that does not divide ``in_channels / groups``, or a configuration
            that training cannot follow.
        TypeError: Something that is no configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConv1d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5)).shape
        torch.Size([2, 6, 3])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedConv2d(_FakeQuantizedConv, nn.Conv2d):  # type: ignore[misc]
    """A ``Conv2d`` whose weight, and input, are fake-quantized; both stay floating.

    A scale per token, or per group, is not for a convolution's input (a vector along the last
    dimension is a stretch of space): with such a configuration the input stays floating.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. A group of its weight is ``group_size`` of an output
            channel's inputs, with all positions of their kernels. All other arguments are those of
            ``torch.nn.Conv2d``.

    Raises:
        ValueError: A group size that does not divide ``in_channels / groups``, or a configuration
            that training cannot follow.
        TypeError: Something that is no configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConv2d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5)).shape
        torch.Size([2, 6, 3, 3])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedConv3d(_FakeQuantizedConv, nn.Conv3d):  # type: ignore[misc]
    """A ``Conv3d`` whose weight, and input, are fake-quantized; both stay floating.

    A scale per token, or per group, is not for a convolution's input (a vector along the last
    dimension is a stretch of space): with such a configuration the input stays floating.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. A group of its weight is ``group_size`` of an output
            channel's inputs, with all positions of their kernels. All other arguments are those of
            ``torch.nn.Conv3d``.

    Raises:
        ValueError: A group size that does not divide ``in_channels / groups``, or a configuration
            that training cannot follow.
        TypeError: Something that is no configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConv3d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5, 5)).shape
        torch.Size([2, 6, 3, 3, 3])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedConvTranspose1d(_FakeQuantizedConvTranspose, nn.ConvTranspose1d):  # type: ignore[misc]
    """A ``ConvTranspose1d`` whose weight, and input, are fake-quantized; both stay floating.

    Its scales are of output channels, though PyTorch keeps the weight as ``[in_channels,
    out_channels / groups, ...]``. An input with a scale per token or per group stays floating.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. A group of its weight is ``group_size`` of an output
            channel's inputs, with all positions of their kernels. All other arguments are those of
            ``torch.nn.ConvTranspose1d``.

    Raises:
        ValueError: A group size that does not divide ``in_channels / groups``, or a configuration
            that training cannot follow.
        TypeError: Something that is no configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConvTranspose1d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5)).shape
        torch.Size([2, 6, 7])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedConvTranspose2d(_FakeQuantizedConvTranspose, nn.ConvTranspose2d):  # type: ignore[misc]
    """A ``ConvTranspose2d`` whose weight, and input, are fake-quantized; both stay floating.

    Its scales are of output channels, though PyTorch keeps the weight as ``[in_channels,
    out_channels / groups, ...]``. An input with a scale per token or per group stays floating.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. A group of its weight is ``group_size`` of an output
            channel's inputs, with all positions of their kernels. All other arguments are those of
            ``torch.nn.ConvTranspose2d``.

    Raises:
        ValueError: A group size that does not divide ``in_channels / groups``, or a configuration
            that training cannot follow.
        TypeError: Something that is no configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConvTranspose2d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5)).shape
        torch.Size([2, 6, 7, 7])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedConvTranspose3d(_FakeQuantizedConvTranspose, nn.ConvTranspose3d):  # type: ignore[misc]
    """A ``ConvTranspose3d`` whose weight, and input, are fake-quantized; both stay floating.

    Its scales are of output channels, though PyTorch keeps the weight as ``[in_channels,
    out_channels / groups, ...]``. An input with a scale per token or per group stays floating.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. A group of its weight is ``group_size`` of an output
            channel's inputs, with all positions of their kernels. All other arguments are those of
            ``torch.nn.ConvTranspose3d``.

    Raises:
        ValueError: A group size that does not divide ``in_channels / groups``, or a configuration
            that training cannot follow.
        TypeError: Something that is no configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConvTranspose3d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5, 5)).shape
        torch.Size([2, 6, 7, 7, 7])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


def conv_config(config: QuantConfig) -> QuantConfig:
    """Return what a convolution makes of a configuration: per tensor inputs, or floating ones."""
    if config.activation is None or config.activation.granularity == "per_tensor":
        return config
    return QuantConfig(config.weight, None, config.observer)
