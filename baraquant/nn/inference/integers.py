# SPDX-License-Identifier: BSD-3-Clause
"""The bases of quantized layers: integers, and a floating ``weight`` to read."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import ops
from ..shared.arguments import check_bits
from ..shared.fake_quantize import FakeQuantize
from ..shared.precision import KeepsScales
from ..shared.pretrained import refuse_save_pretrained
from ..shared.weight import Shaped, WeightView, weight_to_read
from . import _arguments


def unpacked(packed: Tensor, columns: int) -> Tensor:
    """Return the integers in [-8, 7] that are packed, int8 ``[rows, columns]``."""
    # In a group of all columns with the factor 1, the numbers stand for themselves.
    size = max(columns + columns % 2, 2)
    groups = min(columns, 1)
    factor = torch.ones([packed.shape[0], groups], dtype=torch.uint8, device=packed.device)
    return ops.expand_int4(packed, factor, size, columns)


class ReadsFloats(KeepsScales):
    """A module whose floating weights are computed from integers when they are read.

    ``dtype`` is theirs, and follows the conversions of the module (``half()``, ``to(dtype)``).
    """

    dtype: torch.dtype

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _check_assigned(self, name: str, value: Any, scale: Tensor, integers: str) -> None:
        """Check that what is assigned to a weight is itself, multiplied in place by a number."""
        if not (isinstance(value, WeightView) and value.is_result_of(scale)):
            raise AttributeError(
                f"{type(self).__name__}: expected {name} to be read only, as it is computed from "
                f"the integers in {integers}; to change it, quantize the float model again"
            )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        refuse_save_pretrained()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # No buffer has the weights' dtype: convert a tensor of this dtype to learn the new one.
        device = next(tensor.device for tensor in self._parameters.values() if tensor is not None)
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=device)).dtype
        return self


class HoldsIntegers(ReadsFloats):
    """A layer that stores its weight as integers.

    Each read of ``weight`` computes it from the integers: a parent module may read its dtype, or
    compute with its values.
    """

    qweight: Tensor
    weight_scale: Tensor

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, to read, or to multiply in place by a number."""
        if torch.jit.is_scripting():
            weight = self.dequantized_weight()
        else:
            like = self._shaped_as_weight()
            scale = self.weight_scale
            weight = weight_to_read(self, self._weight_as_laid_out, like, self.dtype, scaled=scale)
        return weight

    def _integers(self) -> Tensor:
        """Return the tensor that holds the integers."""
        return self.qweight

    def _shaped_as_weight(self) -> Tensor | Shaped:
        """Return the weight's shape, strides and device, or a tensor that has them."""
        return self.qweight

    def _weight_as_laid_out(self) -> Tensor:
        """Return the floating weight in the layout of the layer that this one replaces."""
        return self.dequantized_weight()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            self._check_assigned(name, value, self.weight_scale, "qweight")
            return
        super().__setattr__(name, value)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def set_weight(self, name: str, integers: Tensor, bias: Tensor | None) -> None:
        """Register the bias and the integers as parameters without a gradient.

        Tools that move, offload or shard a model handle its parameters, and leave buffers alone.
        The bias comes first, as much code asks the first parameter of a model for its dtype.
        """
        self.register_parameter("bias", None if bias is None else _arguments.parameter(bias))
        self.register_parameter(name, _arguments.parameter(integers))


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
        check_bits(name, "weight_bits", self.weight_bits)
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
