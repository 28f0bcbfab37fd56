# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions that store integers and compute in floating point.

Their integers are ``[out_channels, in_channels / groups, ...]``, as in other convolutions.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..._docstrings import documented
from ..shared.convolution import Transposes, words_of
from ..shared.fake_quantize import FakeQuantize
from ..shared.recomputed import product_of_integers
from .conv import CONVOLUTION, OPTIONS, Convolution

_TRANSPOSED = f"""
The integers have the output channels first, unlike PyTorch's weight. ``weight``, which is computed
when it is read, has PyTorch's layout.
{CONVOLUTION}"""


class _QuantizedConvTranspose(Transposes, Convolution):
    """The base of the transposed convolutions."""

    _options = (*OPTIONS, "output_padding")

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
        output_padding: Any = 0,
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
            weight_zero_point=weight_zero_point,
            group_size=group_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
            input_fake_quant=input_fake_quant,
            weight_bits=weight_bits,
            dtype=dtype,
        )

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution of ``input``, in its dtype.

        Args:
            input: ``[batch, in_channels, ...]``, or without a batch.
            output_size: The sizes of the output's dimensions after the channels, among those that
                the stride allows. None: ``output_padding`` decides.
        """
        rounded = self.input_fake_quant(input)
        if torch.jit.is_scripting():
            weight = self._dequantized(input.dtype)
            output = self._conv_transpose(rounded, weight, self.bias, output_size)
        else:
            product = functools.partial(self._conv_transpose, output_size=output_size)
            output = product_of_integers(self, rounded, product)
        return output


@documented(_TRANSPOSED, **words_of("ConvTranspose1d"))
class QuantizedConvTranspose1d(_QuantizedConvTranspose):
    """A ``ConvTranspose1d`` that stores integers and computes in floating point."""

    _float = nn.ConvTranspose1d


@documented(_TRANSPOSED, **words_of("ConvTranspose2d"))
class QuantizedConvTranspose2d(_QuantizedConvTranspose):
    """A ``ConvTranspose2d`` that stores integers and computes in floating point."""

    _float = nn.ConvTranspose2d


@documented(_TRANSPOSED, **words_of("ConvTranspose3d"))
class QuantizedConvTranspose3d(_QuantizedConvTranspose):
    """A ``ConvTranspose3d`` that stores integers and computes in floating point."""

    _float = nn.ConvTranspose3d
