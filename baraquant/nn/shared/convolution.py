# SPDX-License-Identifier: BSD-3-Clause
"""The layout of convolution weights, for prepared and converted layers.

Integers and scales have the output channels first: ``[out_channels, in_channels / groups, ...]``.
PyTorch's convolutions lay out their weights in the same way. Transposed convolutions do not: their
weight is ``[in_channels, out_channels / groups, ...]``.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import ops
from ...ops.limits import MAX_SHIFTED_FEATURES
from .product import is_exported, matching_bias, quantized_by
from .straight_through import conv_through, without_gradient

# The fewest inputs of a group whose product of integers is worth it; one input is depthwise.
_LEAST_INPUTS = 16


def swap_channels(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution with its output channels first, or back again.

    ``[groups * a, b, ...]`` becomes ``[groups * b, a, ...]``. Applied twice, it returns the
    original. The result is a view if the strides allow it.
    """
    return weight.unflatten(0, [groups, -1]).transpose(1, 2).flatten(0, 1)


def is_integer_conv(
    rounds: bool, is_flat: bool, weight_shape: tuple[int, ...], groups: int
) -> bool:
    """Whether a convolution multiplies integers in evaluation, and once it is converted.

    ``rounds``: its input is rounded to int8 with one scale. ``is_flat``: its weight has a scale for
    each output channel and no zero point.
    """
    inputs, depth = weight_shape[1], math.prod(weight_shape[1:])
    fits = groups == 1 or inputs == 1 or inputs >= _LEAST_INPUTS
    return rounds and is_flat and fits and depth <= MAX_SHIFTED_FEATURES


def is_channels_last(weight: Tensor) -> bool:
    """Whether a weight of two or three dimensions of space has the strides of ``channels_last``.

    PyTorch chooses an algorithm by the strides, also where there is one input or one position.
    """
    if weight.dim() not in (4, 5):
        return False
    like = torch.empty(weight.shape, device="meta")
    return bool(weight.stride() == laid_out(like, True).stride() != like.stride())


def laid_out(weight: Tensor, channels_last: bool) -> Tensor:
    """Return a contiguous weight, or a copy whose strides are those of ``channels_last``."""
    if not channels_last:
        return weight.contiguous()
    if weight.dim() == 5:
        return weight.clone(memory_format=torch.channels_last_3d)
    return weight.clone(memory_format=torch.channels_last)


class ConvolvesIntegers(nn.Module):  # type: ignore[misc]
    """A convolution that may multiply integers, prepared or converted."""

    is_integer: bool  # whether it does, see is_integer_conv
    has_zero_point: bool  # of the input
    integer_padding: list[int]  # of the op
    pads_first: bool  # the input is padded before it is quantized
    pad_mode: str

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _set_integer(self, is_integer: bool, has_zero_point: bool) -> None:
        """Set these attributes, from the options of PyTorch's module that are there already."""
        self.is_integer, self.has_zero_point = is_integer, has_zero_point
        ends = self._reversed_padding_repeated_twice
        befores, afters = ends[-2::-2], ends[::-2]
        self.pads_first = self.padding_mode != "zeros" or befores != afters
        self.integer_padding = [0] if self.pads_first else list(befores)
        self.pad_mode = "constant" if self.padding_mode == "zeros" else self.padding_mode

    def _convolve_integers(
        self,
        input: Tensor,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """Return the convolution of the quantized input, in the dtype of ``input``."""
        values = without_gradient(input)
        if self.pads_first:
            values = F.pad(values, self._reversed_padding_repeated_twice, mode=self.pad_mode)
        if torch.jit.is_scripting():
            integers, scale, zero_point = self.input_fake_quant.quantize(values)
        else:
            integers, scale, zero_point = quantized_by(self.input_fake_quant, values)
        bias = matching_bias(bias, input.dtype, weight_scale)
        dtype: torch.dtype | None = None  # that of the scale; rounded then, it has the same bits
        if input.dtype != weight_scale.dtype and not is_exported():
            dtype = input.dtype
        elif bias is not None:
            bias = bias.to(weight_scale.dtype)
        output = ops.int8_conv(
            integers,
            qweight,
            scale,
            weight_scale,
            bias,
            input_zero_point=zero_point if self.has_zero_point else None,
            stride=self.stride,
            padding=self.integer_padding,
            dilation=self.dilation,
            groups=self.groups,
            dtype=dtype,
        )
        return output.to(input.dtype)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _through(
        self, output: Tensor, rounded: Tensor, weight: Tensor, scale: Tensor | None
    ) -> Tensor:
        """Return ``output`` with the gradient of the floating formula, in a graph."""
        if self.pads_first:
            rounded = F.pad(rounded, self._reversed_padding_repeated_twice, mode=self.pad_mode)
        padding, dilation = self.integer_padding, list(self.dilation)
        return conv_through(
            output, rounded, weight, scale, self.bias, list(self.stride),
            padding * len(dilation) if len(padding) == 1 else padding, dilation, self.groups,
        )  # fmt: skip


class Transposes(nn.Module):  # type: ignore[misc]
    """A transposed convolution with a weight of PyTorch's layout, over one to three dimensions."""

    _output_padding = nn.ConvTranspose1d._output_padding

    def _conv_transpose(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None
    ) -> Tensor:
        added = self._output_padding(
            input,
            output_size,
            self.stride,
            self.padding,
            self.kernel_size,
            len(self.kernel_size),
            self.dilation,
        )
        stride, padding, groups, dilation = self.stride, self.padding, self.groups, self.dilation
        if weight.dim() == 3:
            return F.conv_transpose1d(input, weight, bias, stride, padding, added, groups, dilation)
        if weight.dim() == 4:
            return F.conv_transpose2d(input, weight, bias, stride, padding, added, groups, dilation)
        return F.conv_transpose3d(input, weight, bias, stride, padding, added, groups, dilation)


def words_of(kind: str) -> dict[str, str]:
    """Return the words of the docstrings of a kind of convolution, such as ``Conv2d``."""
    space = int(kind[-2])
    size = 7 if "Transpose" in kind else 3  # of the output of the example
    kernel = ("kernel", "height, width", "depth, height, width")[space - 1]
    sizes = {"threes": 3, "fives": 5, "sizes": size}
    words = {name: ", ".join([str(number)] * space) for name, number in sizes.items()}
    return {"kind": kind, "kernel": kernel, **words}
