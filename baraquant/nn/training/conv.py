# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions for quantization-aware training, with fake-quantized weights.

In evaluation each gives the same bits as the layer that :func:`baraquant.qat.convert_` makes of it.
A group of the weight that shares a scale lies within an output channel: it holds ``group_size`` of
its inputs, with all positions of their kernels. So the scale is
``[out_channels, in_channels / groups / group_size]``.
"""

import math

from torch import Tensor, nn

from ..._docstrings import documented
from ...configs import Config, QuantConfig
from ...schemes import quant_config
from .._convolution import Transposes
from ._drop_in import DropIn
from ._quantizers import QuantizesWeight, check_groups

_ARGUMENTS = """
Args:
    config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
        :class:`baraquant.W8A8Static`. A group of the weight holds ``group_size`` inputs of an
        output channel, with all positions of their kernels. All other arguments are those of
        ``torch.nn.$kind``.

Raises:
    ValueError: The group size does not divide ``in_channels / groups``, or training cannot follow
        the configuration.
    TypeError: ``config`` is not a configuration.

$example
"""
_CONVOLUTION = f"""
The input of a convolution takes no scale per token or per group, because a vector along its last
dimension is a row of space. With such a configuration the input stays floating, and with
``conv_inputs=False`` too.
{_ARGUMENTS}"""
_TRANSPOSED = f"""
Its scales belong to output channels, although PyTorch lays out the weight as
``[in_channels, out_channels / groups, ...]``. An input with a scale per token or per group stays
floating, and with ``conv_inputs=False`` too.
{_ARGUMENTS}"""

_CONSTANTS = (*QuantizesWeight.__constants__, *nn.Conv2d.__constants__)


class _FakeQuantizedConv(DropIn):
    """The base of the convolutions."""

    def _set_config(self, config: Config) -> None:
        qat = conv_config(quant_config(config)).with_rotation(0)
        check_groups(qat.weight, self.in_channels // self.groups, "in_channels / groups")
        self.set_quantizers(
            qat,
            qat.activation,
            positions=math.prod(self.kernel_size),
            transposed_groups=self.groups if self.transposed else 0,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the rounded input."""
        weight = self.fake_quantized_weight()
        return self._conv_forward(self.rounded_input(input), weight, self.bias)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return f"{nn.modules.conv._ConvNd.extra_repr(self)}, {self.config}"


class _FakeQuantizedConvTranspose(Transposes, _FakeQuantizedConv):
    """The base of the transposed convolutions."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution of the rounded input, in the requested size."""
        weight = self.fake_quantized_weight()
        return self._conv_transpose(self.rounded_input(input), weight, self.bias, output_size)


@documented(_CONVOLUTION, kind="Conv1d")
class FakeQuantizedConv1d(_FakeQuantizedConv, nn.Conv1d):  # type: ignore[misc]
    """A ``Conv1d`` whose weight, and input, are fake-quantized; both stay floating.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConv1d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5)).shape
        torch.Size([2, 6, 3])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


@documented(_CONVOLUTION, kind="Conv2d")
class FakeQuantizedConv2d(_FakeQuantizedConv, nn.Conv2d):  # type: ignore[misc]
    """A ``Conv2d`` whose weight, and input, are fake-quantized; both stay floating.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConv2d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5)).shape
        torch.Size([2, 6, 3, 3])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


@documented(_CONVOLUTION, kind="Conv3d")
class FakeQuantizedConv3d(_FakeQuantizedConv, nn.Conv3d):  # type: ignore[misc]
    """A ``Conv3d`` whose weight, and input, are fake-quantized; both stay floating.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConv3d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5, 5)).shape
        torch.Size([2, 6, 3, 3, 3])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


@documented(_TRANSPOSED, kind="ConvTranspose1d")
class FakeQuantizedConvTranspose1d(_FakeQuantizedConvTranspose, nn.ConvTranspose1d):  # type: ignore[misc]
    """A ``ConvTranspose1d`` whose weight, and input, are fake-quantized; both stay floating.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConvTranspose1d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5)).shape
        torch.Size([2, 6, 7])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


@documented(_TRANSPOSED, kind="ConvTranspose2d")
class FakeQuantizedConvTranspose2d(_FakeQuantizedConvTranspose, nn.ConvTranspose2d):  # type: ignore[misc]
    """A ``ConvTranspose2d`` whose weight, and input, are fake-quantized; both stay floating.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConvTranspose2d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5)).shape
        torch.Size([2, 6, 7, 7])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


@documented(_TRANSPOSED, kind="ConvTranspose3d")
class FakeQuantizedConvTranspose3d(_FakeQuantizedConvTranspose, nn.ConvTranspose3d):  # type: ignore[misc]
    """A ``ConvTranspose3d`` whose weight, and input, are fake-quantized; both stay floating.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedConvTranspose3d(4, 6, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4, 5, 5, 5)).shape
        torch.Size([2, 6, 7, 7, 7])
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


def conv_config(config: QuantConfig) -> QuantConfig:
    """Return the configuration for a convolution: its input is per tensor, or floating."""
    activation = config.activation
    if activation is None:
        return config
    rounds = activation.granularity == "per_tensor" and config.conv_inputs is not False
    return config.with_float_scales() if rounds else config.with_floating_input()
