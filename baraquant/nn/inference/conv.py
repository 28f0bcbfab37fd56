# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions that store integers, ``[out_channels, in_channels / groups, ...]``.

Those that are not transposed multiply integers if their input is rounded, and compute in floating
point otherwise.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..._docstrings import documented
from ..shared.convolution import (
    ConvolvesIntegers,
    Transposes,
    is_channels_last,
    is_integer_conv,
    laid_out,
    swap_channels,
    words_of,
)
from ..shared.fake_quantize import FakeQuantize
from ..shared.product import product_of_integers
from ..shared.straight_through import makes_graph, straight_through
from ..shared.weight import Shaped
from . import _arguments
from .integers import Dequantizes

_CONVOLUTION = """
The gradient is that of the prepared layer.

Args:
    qweight: int8 ``[out_channels, in_channels / groups, $kernel]``.
    weight_scale: float32 or float64 ``[out_channels]``, or
        ``[out_channels, in_channels / groups / group_size]``, rounded up.
    bias: ``[out_channels]``, of the dtype of the inputs.
    weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
    group_size: The number of inputs of an output channel that share a scale, with all positions of
        their kernels.
    stride: As in ``torch.nn.$kind``. So are ``padding``, ``dilation``, ``groups`` and
        ``padding_mode``, and also ``output_padding`` in a transposed convolution.
    input_fake_quant: Rounds the input; None leaves it as it is.
    weight_bits: The width of the integers, 2 to 8. They are always stored as int8.
    dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the scale.

Raises:
    ValueError: A shape or width does not fit.
    TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is not an
        integer tensor, or the dtype is not floating.

Example:
    >>> weight = torch.ones(6, 4, $threes, dtype=torch.int8)
    >>> layer = baraquant.nn.Quantized$kind(weight, torch.full((6,), 0.5))
    >>> layer(torch.ones(2, 4, $fives)).shape
    torch.Size([2, 6, $sizes])
"""

_INTEGERS = """
It computes by :func:`baraquant.ops.int8_conv` if ``input_fake_quant`` gives int8 with one scale,
the weight has a scale for each output channel and no zero point, there is one group of channels, or
each has one input (depthwise) or at least 16, and ``qweight[0]`` has at most 65536 elements.
Otherwise it computes in floating point.
"""

_TRANSPOSED = f"""
The integers have the output channels first, unlike PyTorch's weight. ``weight``, which is computed
when it is read, has PyTorch's layout.
{_CONVOLUTION}"""

_OPTIONS = ("stride", "padding", "dilation", "groups", "padding_mode")


class Convolution(Dequantizes):
    """The base of all convolutions, also the transposed ones; ``_float`` is PyTorch's class."""

    __constants__: tuple[str, ...] = (
        *_OPTIONS,
        *("output_padding", "in_channels", "out_channels", "kernel_size"),
    )
    _float: type[nn.Module]
    _options: tuple[str, ...] = _OPTIONS
    padding: Any
    transposed_groups: Final[int]  # the groups of a transposed convolution; else 0
    # Whether the product is given a floating weight of this memory format, as the layer that this
    # one replaces gives it. PyTorch chooses its algorithm by that. The integers are contiguous.
    channels_last = False

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
        **further: Any,  # options of PyTorch's module that not all of them have
    ) -> None:
        super().__init__()
        name, kind = type(self).__name__, self._float
        _arguments.check_weight(name, qweight, bias, 2 + int(kind.__name__[-2]))
        # PyTorch's module checks the options and expands them.
        like = kind(
            in_channels=qweight.shape[1] * groups,
            out_channels=qweight.shape[0],
            kernel_size=tuple(qweight.shape[2:]),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
            bias=False,
            device="meta",
            **further,
        )
        for attribute in (*Convolution.__constants__, "_reversed_padding_repeated_twice"):
            setattr(self, attribute, getattr(like, attribute))
        self.transposed_groups = self.groups if like.transposed else 0
        self.channels_last = False
        self.group_size, self.weight_bits = group_size, weight_bits
        self._store(qweight, weight_scale, bias, weight_zero_point, input_fake_quant, dtype)

    def _dequantized(self, dtype: torch.dtype) -> Tensor:
        weight = self._channels_first(dtype)
        if self.transposed_groups > 0:
            weight = swap_channels(weight, self.transposed_groups)
        return laid_out(weight, self.channels_last)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # A conversion to a memory format is one of the floating weight, and the integers stay
        # contiguous: convert a tensor of two elements in each dimension to learn the new one.
        if self.qweight.dim() > 3:
            probe = laid_out(torch.empty([2] * self.qweight.dim()), self.channels_last)
            self.channels_last = is_channels_last(fn(probe))
        if not self.qweight.is_contiguous():
            self.qweight = self.qweight.contiguous()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if not self.qweight.is_contiguous():  # assigned, from a file of an older version
            self.qweight = self.qweight.contiguous()

    def _shaped_as_weight(self) -> Tensor | Shaped:
        if self.channels_last:
            like = laid_out(torch.empty(self.qweight.shape, device="meta"), True)
            return Shaped(tuple(like.shape), like.stride(), self.qweight.device)
        if self.transposed_groups == 0:
            return self.qweight
        # The values are in another order, but nothing reads them.
        outputs = self.out_channels // self.groups
        return self.qweight.view(self.in_channels, outputs, *self.kernel_size)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        added = f", output_padding={self.output_padding}" if self.transposed_groups > 0 else ""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}{added}, dilation={self.dilation}, "
            f"groups={self.groups}{mode}, bias={self.bias is not None}, "
            f"{self._scheme()}"
        )


class _QuantizedConv(ConvolvesIntegers, Convolution):
    """The base of the convolutions; ``_conv_forward`` is PyTorch's."""

    __constants__ = (
        *Convolution.__constants__,
        *("is_integer", "has_zero_point", "pads_first", "pad_mode"),
    )

    def _store(self, *args: Any, **kwargs: Any) -> None:
        super()._store(*args, **kwargs)
        rounder: Any = self.input_fake_quant
        is_rounded = isinstance(rounder, FakeQuantize)
        gives_int8 = (
            is_rounded
            and not rounder.is_observed
            and rounder.granularity == "per_tensor"
            and rounder.quant_min >= -128
            and rounder.quant_max <= 127
        )
        is_flat = self.weight_zero_point is None and self.group_size is None
        shape = tuple(self.qweight.shape)
        is_integer = is_integer_conv(gives_int8, is_flat, shape, self.groups)
        has_zero_point = is_rounded and not (  # unless it is surely 0
            rounder.is_dynamic
            and rounder.symmetric
            and rounder.quant_min + rounder.quant_max + 1 in (0, 1)
        )
        self._set_integer(is_integer, has_zero_point)

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input``, in its dtype."""
        if self.is_integer:  # noqa: SIM102 - alone: TorchScript leaves out what a constant guards
            if self._takes_integers(input):
                return self._integer_output(input)
        return self._float_output(input)

    def _takes_integers(self, input: Tensor) -> bool:
        """Whether the input is rounded at present, and computed with in the dtype of the scales."""
        is_double = input.dtype == torch.float64
        rounds: bool = self.input_fake_quant._rounds
        return rounds and is_double == (self.weight_scale.dtype == torch.float64)

    def _integer_output(self, input: Tensor) -> Tensor:
        output = self._convolve_integers(input, self.qweight, self.weight_scale, self.bias)
        if makes_graph():
            rounded = self.input_fake_quant(input)
            return self._through(output, rounded, self.qweight, self.weight_scale)
        if torch.is_grad_enabled() and input.requires_grad:
            output = straight_through(output, self._float_output(input))
        return output

    def _float_output(self, input: Tensor) -> Tensor:
        rounded = self.input_fake_quant(input)
        if torch.jit.is_scripting():
            output = self._conv_forward(rounded, self._dequantized(input.dtype), self.bias)
        else:
            output = product_of_integers(self, rounded, self._conv_forward)
        return output


@documented(_INTEGERS + _CONVOLUTION, **words_of("Conv1d"))
class QuantizedConv1d(_QuantizedConv):
    """A ``Conv1d`` that stores integers, and multiplies them if its input is rounded."""

    _float = nn.Conv1d
    _conv_forward = nn.Conv1d._conv_forward


@documented(_INTEGERS + _CONVOLUTION, **words_of("Conv2d"))
class QuantizedConv2d(_QuantizedConv):
    """A ``Conv2d`` that stores integers, and multiplies them if its input is rounded."""

    _float = nn.Conv2d
    _conv_forward = nn.Conv2d._conv_forward


@documented(_INTEGERS + _CONVOLUTION, **words_of("Conv3d"))
class QuantizedConv3d(_QuantizedConv):
    """A ``Conv3d`` that stores integers, and multiplies them if its input is rounded."""

    _float = nn.Conv3d
    _conv_forward = nn.Conv3d._conv_forward


class _QuantizedConvTranspose(Transposes, Convolution):
    """The base of the transposed convolutions."""

    _options = (*_OPTIONS, "output_padding")

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
