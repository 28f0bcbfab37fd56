# SPDX-License-Identifier: BSD-3-Clause
"""The base of the layers that store integers and compute in floating point."""

import math

import torch
from torch import Tensor, nn

from ... import ops
from ..shared.fake_quantize import FakeQuantize
from . import _arguments
from .integers import HoldsIntegers


class Dequantizes(HoldsIntegers):
    """A layer that stores integers and computes in floating point.

    A scale belongs to an output channel, or to a group: to ``group_size`` inputs of an output
    channel, with all ``positions`` of their kernels (one in a linear layer).
    """

    _scales = ("weight_scale",)
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None
    group_size: int | None
    positions: int
    weight_bits: int

    def _store(
        self,
        integers: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        weight_zero_point: Tensor | None,
        input_fake_quant: FakeQuantize | None,
        dtype: torch.dtype | None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Check the constructor's arguments, and keep them; subclasses check the integers.

        ``group_size`` and ``weight_bits`` are kept already. With ``shape``, that of the int8 that
        they stand for, the integers are ``packed``; else they are ``qweight``.
        """
        is_packed = shape is not None
        shape = integers.shape if shape is None else shape
        self.set_weight("packed" if is_packed else "qweight", integers, bias)
        name = type(self).__name__
        _arguments.check_bits(name, "weight_bits", self.weight_bits)
        self.positions = math.prod(shape[2:])
        scale = _arguments.scale_of_weight(name, weight_scale, shape, self.group_size)
        zero_point = _arguments.zero_point_of_weight(name, weight_zero_point, scale)
        self.dtype = _arguments.weight_dtype(name, dtype, bias, scale)
        self.register_buffer("weight_scale", scale)
        self.register_parameter("weight_zero_point", zero_point)
        rounder = None if input_fake_quant is None else input_fake_quant.without_state()
        self.input_fake_quant = nn.Identity() if rounder is None else rounder

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight."""
        return self._dequantized(self.dtype)

    def _dequantized(self, dtype: torch.dtype) -> Tensor:
        return self._channels_first(dtype)

    def _channels_first(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized weight in the layout of the integers."""
        integers, scale, zero_point = self.qweight, self.weight_scale, self.weight_zero_point
        group_size = self.group_size
        if group_size is None:
            weight = ops.dequantize_per_channel(integers, scale, zero_point, 0, dtype=dtype)
        else:
            rows, size = integers.flatten(1), group_size * self.positions
            weight = ops.dequantize_per_group(rows, scale, zero_point, size, 1, dtype=dtype)
            weight = weight.reshape(integers.shape)
        return weight

    def _scheme(self) -> str:
        """Return the shape of the integers' scales, for ``repr``."""
        how = "per_channel" if self.group_size is None else f"per_group({self.group_size})"
        zero = "" if self.weight_zero_point is None else " asymmetric"
        return f"weight=int{self.weight_bits} {how}{zero}"
