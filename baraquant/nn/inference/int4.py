# SPDX-License-Identifier: BSD-3-Clause
"""Quantized linear layers for inference whose weights are packed numbers of four bits.

A group of columns has a whole factor and a zero point, and a row has a scale:
:class:`baraquant.nn.FakeQuantizeInt4`. The products are exact sums of integers, with the bits of
the layers of int8 for the expanded weight. The buffers have the names of the constructor's
arguments. ``weight`` is the dequantized weight, to read.
"""

from typing import Any

import torch
from torch import Tensor

from ... import ops
from ..shared.weight import Shaped
from . import _arguments
from ._integer_linear import DynamicInput, HoldsInt8, IntegerLinear, StaticInput
from .linear import QuantizedLinear, StaticQuantizedLinear


class HoldsInt4(IntegerLinear):
    """Stores half a byte for each weight."""

    packed: Tensor
    group_factor: Tensor
    group_zero_point: Tensor | None
    group_size: int

    def _store(
        self,
        packed: Tensor,
        group_factor: Tensor,
        group_size: int,
        group_zero_point: Tensor | None,
        in_features: int,
        bias: Tensor | None,
    ) -> tuple[int, int]:
        """Check and keep the integers; return the shape of the weight."""
        name = type(self).__name__
        _arguments.check_int4(name, packed, group_factor, group_size, group_zero_point, in_features)
        _arguments.check_bias(name, "packed", packed.shape[0], bias)
        self.group_size = group_size
        self.set_weight("packed", packed, bias)
        self.register_parameter("group_factor", _arguments.parameter(group_factor))
        if group_zero_point is not None:
            group_zero_point = _arguments.parameter(group_zero_point)
        self.register_parameter("group_zero_point", group_zero_point)
        return packed.shape[0], in_features

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _int8_options(self) -> dict[str, Any]:
        """Return the arguments that the constructors of both layers of int8 have."""
        return {
            "qweight": self._int8_weight(),
            "weight_scale": self.weight_scale,
            "bias": self.bias,
            "bits": self.bits,
            "dtype": self.dtype,
            "transposed": self.transposed,
            "rotate": self.rotate or None,
        }

    def _integers(self) -> Tensor:
        return self.packed

    def _shaped_as_weight(self) -> Shaped:
        return self._shape_alone(self.packed.device)

    def _int8_weight(self) -> Tensor:
        return ops.expand_int4(
            self.packed,
            self.group_factor,
            self.group_size,
            self.in_features,
            group_zero_point=self.group_zero_point,
        )

    def _dynamic_product(
        self, rows: Tensor, bias: Tensor | None, dtype: torch.dtype | None
    ) -> Tensor:
        return ops.quantized_int4_linear(
            rows,
            self.packed,
            self.weight_scale,
            self.group_factor,
            self.group_size,
            bias,
            group_zero_point=self.group_zero_point,
            symmetric=self.symmetric,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            dtype=dtype,
        )

    def _static_product(
        self,
        rows: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        zero_point: Tensor | None,
        smooth_scale: Tensor | None,
        dtype: torch.dtype | None,
    ) -> Tensor:
        return ops.static_quantized_int4_linear(
            rows,
            self.packed,
            self.weight_scale,
            self.group_factor,
            self.group_size,
            scale,
            bias,
            group_zero_point=self.group_zero_point,
            act_zero_point=zero_point,
            smooth_scale=smooth_scale,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            dtype=dtype,
        )

    def _product_of_integers(
        self,
        integers: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        zero_point: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        return ops.int4_linear(
            integers,
            self.packed,
            scale,
            self.weight_scale,
            self.group_factor,
            self.group_size,
            bias,
            group_zero_point=self.group_zero_point,
            input_zero_point=zero_point,
            dtype=dtype,
        )

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def as_int8(self) -> HoldsInt8:
        """Return a layer of int8 with the same bits, for formats that have no factors."""
        raise NotImplementedError

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def check_products(self) -> None:
        """Check that every ``(u - z) * f`` is an int8.

        Raises:
            ValueError: One is not.
        """
        numbers = torch.stack([self.packed & 15, self.packed >> 4], dim=2).flatten(1)
        numbers = numbers[:, : self.in_features].to(torch.int16)
        factor, zero_point = self.group_factor, self.group_zero_point
        zeros = torch.full_like(factor, 8) if zero_point is None else zero_point
        low, high = 0, 0
        for group, part in enumerate(numbers.split(self.group_size, dim=1)):
            weights = (part - zeros[:, group, None]) * factor[:, group, None]
            if weights.numel() > 0:
                low, high = min(low, int(weights.min())), max(high, int(weights.max()))
        if low < -128 or high > 127:
            raise ValueError(
                "packed: expected numbers that stand for int8 weights, but (u - z) * f reaches "
                f"{low} to {high}"
            )

    def _weight_repr(self) -> str:
        zero = "" if self.group_zero_point is None else " asymmetric"
        return f"weight=int4 per_group({self.group_size}){zero} factors"


class QuantizedInt4Linear(HoldsInt4, DynamicInput):
    """A linear layer of four-bit weights that computes the scale of its input from the input.

    ``y = x_int @ w8.T * (x_scale * weight_scale) + bias`` with ``w8 = (u - z) * f``, by
    :func:`baraquant.ops.quantized_int4_linear`: the input ``[..., in_features]`` is quantized on
    the fly, with one scale for each token, and the output has the dtype of the input. The gradient
    goes straight through the rounding to the input, as in the prepared layer.

    Args:
        packed: uint8 ``[out_features, ceil(in_features / 2)]``: the numbers ``u``, two in a byte.
        weight_scale: float32 (float64 for float64 inputs) ``[out_features]``.
        group_factor: ``f``, uint8 ``[out_features, groups]``, 1 to 16.
        group_size: The number of adjacent inputs that share a factor and a zero point, even.
        in_features: Size of each input.
        group_zero_point: ``z``, uint8 ``[out_features, groups]``, 0 to 15; None stands for 8.

    The other arguments are those of :class:`QuantizedLinear`.

    Raises:
        ValueError: A shape, width, block or granularity does not fit.
        TypeError: A tensor has another dtype, or the dtype is not floating.

    Example:
        >>> packed = torch.tensor([[0x7F, 0xAF]], dtype=torch.uint8)  # 7, -1; 7, 2
        >>> factor = torch.tensor([[1, 16]], dtype=torch.uint8)
        >>> scale = torch.tensor([0.5])
        >>> layer = baraquant.nn.QuantizedInt4Linear(packed, scale, factor, 2, in_features=4)
        >>> layer.weight.tolist(), layer(torch.tensor([[127.0, 1.0, 0.0, 1.0]])).item()
        ([[3.5, -0.5, 56.0, 16.0]], 460.0)
    """

    _scales = ("weight_scale", "smooth")
    __constants__ = (*DynamicInput.__constants__, "group_size")

    def __init__(
        self,
        packed: Tensor,
        weight_scale: Tensor,
        group_factor: Tensor,
        group_size: int,
        bias: Tensor | None = None,
        *,
        in_features: int,
        group_zero_point: Tensor | None = None,
        symmetric: bool = True,
        bits: int = 8,
        granularity: str = "per_token",
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        self.weight_bits, self.symmetric, self.bits = 4, symmetric, bits
        shape = self._store(packed, group_factor, group_size, group_zero_point, in_features, bias)
        self._set(shape, weight_scale, bias, dtype, transposed, rotate)
        self._set_input(granularity, None)

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
        return self._output_of_floats(input)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def as_int8(self) -> QuantizedLinear:
        """Return a layer of int8 with the same bits, for formats that have no factors."""
        return QuantizedLinear(
            symmetric=self.symmetric, granularity=self.granularity, **self._int8_options()
        )


class StaticQuantizedInt4Linear(HoldsInt4, StaticInput):
    """A linear layer of four-bit weights whose input has one scale, fixed in advance.

    ``y = x_int @ w8.T * (act_scale * weight_scale) + bias`` with ``w8 = (u - z) * f``, by
    :func:`baraquant.ops.static_quantized_int4_linear`. The gradient goes straight through the
    rounding to the input, and is 0 where the input was clamped.

    Args:
        act_scale: ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
        act_zero_point: Integer ``[]`` or ``[1]``; None stands for 0.

    The other arguments and the errors are those of :class:`QuantizedInt4Linear`.

    Example:
        >>> packed = torch.tensor([[0x7F, 0xAF]], dtype=torch.uint8)  # 7, -1; 7, 2
        >>> factor = torch.tensor([[1, 16]], dtype=torch.uint8)
        >>> scales = torch.tensor([0.5]), torch.tensor(1.0)
        >>> kind = baraquant.nn.StaticQuantizedInt4Linear
        >>> layer = kind(packed, scales[0], factor, 2, scales[1], in_features=4)
        >>> layer(torch.tensor([[127.0, 1.0, 0.0, 1.0]]))
        tensor([[460.]])
    """

    _scales = ("weight_scale", "act_scale", "smooth_scale")
    __constants__ = (*StaticInput.__constants__, "group_size")

    def __init__(
        self,
        packed: Tensor,
        weight_scale: Tensor,
        group_factor: Tensor,
        group_size: int,
        act_scale: Tensor,
        bias: Tensor | None = None,
        *,
        in_features: int,
        group_zero_point: Tensor | None = None,
        act_zero_point: Tensor | None = None,
        bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        self.weight_bits, self.symmetric, self.bits = 4, act_zero_point is None, bits
        shape = self._store(packed, group_factor, group_size, group_zero_point, in_features, bias)
        self._set(shape, weight_scale, bias, dtype, transposed, rotate)
        self._set_input(act_scale, act_zero_point, None)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def as_int8(self) -> StaticQuantizedLinear:
        """Return a layer of int8 with the same bits, for formats that have no factors."""
        return StaticQuantizedLinear(
            act_scale=self.act_scale, act_zero_point=self.act_zero_point, **self._int8_options()
        )
