# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions for quantization-aware training, with fake-quantized weights.

Where the converted layer multiplies integers, so does the prepared one in evaluation; otherwise,
and in training, they compute in floating point. In evaluation each gives the same bits as the layer
that :func:`baraquant.qat.convert_` makes of it. A group of the weight that shares a scale lies
within an output channel: it holds ``group_size`` of its inputs, with all positions of their
kernels. So the scale is ``[out_channels, in_channels / groups / group_size]``.
"""

import math

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..._docstrings import documented
from ...configs import Config, QuantConfig
from ...schemes import quant_config
from ..shared.convolution import ConvolvesIntegers, Transposes, is_integer_conv, words_of
from ..shared.straight_through import makes_graph, straight_through, without_gradient
from .quantizers import DropIn, QuantizesWeight, check_groups

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

Example:
    >>> layer = baraquant.nn.FakeQuantized$kind(4, 6, 3, config=baraquant.W8A8())
    >>> layer(torch.ones(2, 4, $fives)).shape
    torch.Size([2, 6, $sizes])
"""
_CONVOLUTION = f"""
In evaluation a layer whose input is rounded multiplies integers, as the converted one does
(:class:`QuantizedConv2d` says when), and has its bits.

The input of a convolution takes no scale per token or per group, because a vector along its last
dimension is a row of space. With such a configuration the input stays floating, and with
``conv_inputs=False`` too.
{_ARGUMENTS}"""
_TRANSPOSED = f"""
Its scales belong to output channels, although PyTorch lays out the weight as
``[in_channels, out_channels / groups, ...]``. An input with a scale per token or per group stays
floating, and with ``conv_inputs=False`` too.
{_ARGUMENTS}"""


class _FakeQuantizesConv(DropIn):
    """The base of all convolutions, also the transposed ones."""

    __constants__ = (*QuantizesWeight.__constants__, *nn.Conv2d.__constants__)

    def _set_config(self, config: Config) -> None:
        qat = conv_config(quant_config(config)).with_rotation(0)
        check_groups(qat.weight, self.in_channels // self.groups, "in_channels / groups")
        self.set_quantizers(
            qat,
            qat.activation,
            positions=math.prod(self.kernel_size),
            transposed_groups=self.groups if self.transposed else 0,
        )

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return f"{nn.modules.conv._ConvNd.extra_repr(self)}, {self.config}"


class _FakeQuantizedConv(ConvolvesIntegers, _FakeQuantizesConv):
    """The base of the convolutions."""

    __constants__ = (
        *_FakeQuantizesConv.__constants__,
        *("is_integer", "has_zero_point", "pads_first", "pad_mode"),
    )

    def _set_config(self, config: Config) -> None:
        super()._set_config(config)
        self._decide()

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _decide(self) -> None:
        """Decide whether this layer multiplies integers in evaluation."""
        weight, activation = self.config.weight, self.config.activation
        is_flat = weight.symmetric and weight.granularity in ("per_tensor", "per_channel")
        shape = tuple(self.float_weight().shape)
        is_integer = is_integer_conv(self.rounds_input, is_flat, shape, self.groups)
        self._set_integer(is_integer, activation is not None and not activation.symmetric)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def with_floating_input(self) -> Self:
        """Return a layer that shares all with this one, but leaves its input floating."""
        layer: Self = super().with_floating_input()
        layer._decide()
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the rounded input."""
        if self.is_integer:  # noqa: SIM102 - alone: TorchScript leaves out what a constant guards
            if not (self.training or self.is_teacher()):
                return self._integer_output(input)
        return self._float_output(input)

    def _float_output(self, input: Tensor) -> Tensor:
        weight = self.fake_quantized_weight()
        return self._conv_forward(self.rounded_input(input), weight, self.bias_to_add())

    def _integer_output(self, input: Tensor) -> Tensor:
        qweight, weight_scale, _ = self.quantized_weight()
        bias = self.bias_to_add()
        if bias is not None:
            bias = without_gradient(bias)
        output = self._convolve_integers(input, qweight, weight_scale, bias)
        if makes_graph():
            weight = self.fake_quantized_weight()
            return self._through(output, self.rounded_input(input), weight, None)
        trains = input.requires_grad or self.is_trained()
        if torch.is_grad_enabled() and trains:
            output = straight_through(output, self._float_output(input))
        return output


class _FakeQuantizedConvTranspose(Transposes, _FakeQuantizesConv):
    """The base of the transposed convolutions."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution of the rounded input, in the requested size."""
        weight = self.fake_quantized_weight()
        bias = self.bias_to_add()
        return self._conv_transpose(self.rounded_input(input), weight, bias, output_size)


@documented(_CONVOLUTION, **words_of("Conv1d"))
class FakeQuantizedConv1d(_FakeQuantizedConv, nn.Conv1d):  # type: ignore[misc]
    """A ``Conv1d`` whose weight, and input, are fake-quantized; both stay floating."""

    bias: Tensor | None


@documented(_CONVOLUTION, **words_of("Conv2d"))
class FakeQuantizedConv2d(_FakeQuantizedConv, nn.Conv2d):  # type: ignore[misc]
    """A ``Conv2d`` whose weight, and input, are fake-quantized; both stay floating."""

    bias: Tensor | None


@documented(_CONVOLUTION, **words_of("Conv3d"))
class FakeQuantizedConv3d(_FakeQuantizedConv, nn.Conv3d):  # type: ignore[misc]
    """A ``Conv3d`` whose weight, and input, are fake-quantized; both stay floating."""

    bias: Tensor | None


@documented(_TRANSPOSED, **words_of("ConvTranspose1d"))
class FakeQuantizedConvTranspose1d(_FakeQuantizedConvTranspose, nn.ConvTranspose1d):  # type: ignore[misc]
    """A ``ConvTranspose1d`` whose weight, and input, are fake-quantized; both stay floating."""

    bias: Tensor | None


@documented(_TRANSPOSED, **words_of("ConvTranspose2d"))
class FakeQuantizedConvTranspose2d(_FakeQuantizedConvTranspose, nn.ConvTranspose2d):  # type: ignore[misc]
    """A ``ConvTranspose2d`` whose weight, and input, are fake-quantized; both stay floating."""

    bias: Tensor | None


@documented(_TRANSPOSED, **words_of("ConvTranspose3d"))
class FakeQuantizedConvTranspose3d(_FakeQuantizedConvTranspose, nn.ConvTranspose3d):  # type: ignore[misc]
    """A ``ConvTranspose3d`` whose weight, and input, are fake-quantized; both stay floating."""

    bias: Tensor | None


def conv_config(config: QuantConfig) -> QuantConfig:
    """Return the configuration for a convolution: its input is per tensor, or floating."""
    activation = config.activation
    if activation is None:
        return config
    rounds = activation.granularity == "per_tensor" and config.conv_inputs is not False
    return config.with_float_scales() if rounds else config.with_floating_input()
