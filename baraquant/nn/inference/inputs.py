# SPDX-License-Identifier: BSD-3-Clause
"""The inputs of linear layers that multiply integers: how they become integers.

A layer is one of these classes and one of :mod:`.weights`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ... import ops
from ..shared.arguments import check
from ..shared.product import fixed_dtype, is_exported, matching_bias
from ..shared.straight_through import makes_graph, without_gradient
from . import _arguments
from .merged import Columns, State
from .weights import IntegerLinear


class QuantizedInput(NamedTuple):
    """The integers of an input of :class:`QuantizedLinear`, which takes them in place of numbers.

    :meth:`QuantizedLinear.quantize` makes one, and so do the ops whose names end in
    ``_quantize_per_token``: ``QuantizedInput(*ops.silu_mul_quantize_per_token(gate, up), dtype)``.
    :class:`QuantizedInt4Linear` takes one too. Layers with the same ``bits``, ``symmetric`` and
    ``rotate``, and no ``smooth``, may share one. No gradient goes through it.

    Args:
        values: int8 ``[..., in_features]``.
        scale: Of each token, ``[..., 1]``, of the dtype of the layer's scales.
        zero_point: int32 ``[..., 1]``; a symmetric layer ignores it, as it is 0.
        dtype: That of the numbers, which the layer's output will have.

    Example:
        >>> weight = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
        >>> layer = baraquant.nn.QuantizedLinear(weight, torch.tensor([0.5, 0.25]))
        >>> layer(layer.quantize(torch.tensor([[127.0, 64.0]])))
        tensor([[ -0.5000, 159.2500]])
    """

    values: Tensor
    scale: Tensor
    zero_point: Tensor
    dtype: torch.dtype


class DynamicInput(IntegerLinear):
    """Computes the scale of its input from the input, or gets a :class:`QuantizedInput`."""

    __constants__ = (*IntegerLinear.__constants__, "granularity", "per_token")

    _integer_input = (QuantizedInput,)
    smooth: Tensor | None
    granularity: str
    per_token: bool

    def _set_input(self, granularity: str, smooth: Tensor | None) -> None:
        """Check and keep how the input becomes integers."""
        name = type(self).__name__
        wanted = "granularity to be per_token or per_tensor"
        check(name, granularity in ("per_token", "per_tensor"), wanted, repr(granularity))
        self.granularity = granularity
        self.per_token = granularity == "per_token"
        self.check_one("smooth", smooth)
        if smooth is not None:
            smooth = _arguments.scale_of_inputs(name, "smooth", smooth, self.in_features)
        self.register_buffer("smooth", smooth)

    def _own_output(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting() and isinstance(input, QuantizedInput):
            self._check_per_token()
            values, scale, zero_point, dtype = input
            bias = matching_bias(self.bias, dtype, self.weight_scale)
            zero = None if self.symmetric else zero_point
            return self._product_of_integers(values, scale, bias, zero, dtype)
        smooth = self.smooth
        bias = matching_bias(self.bias, input.dtype, self.weight_scale)
        if self.rotate > 0:
            trains = torch.is_grad_enabled() and input.requires_grad
            if self.per_token and not trains and not (is_exported() or makes_graph()):
                integers, scale, zero = self._rotated_integers(input)
                zero_point = None if self.symmetric else zero
                return self._product_of_integers(integers, scale, bias, zero_point, input.dtype)
            input = self._rotated(input)
        rows = input if smooth is None else input / smooth
        dtype = fixed_dtype(input.dtype) if smooth is None else input.dtype
        if self.per_token:
            output = self._dynamic_product(rows, bias, dtype)
        else:
            scale, zero = ops.choose_qparams_per_tensor(
                without_gradient(rows), self.quant_min, self.quant_max, symmetric=self.symmetric
            )
            zero_point = None if self.symmetric else zero
            output = self._static_product(rows, scale, bias, zero_point, None, dtype)
        return output

    def _rotated_integers(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate an input and quantize it, by one op."""
        return ops.hadamard_quantize_per_token(
            input,
            self.rotate,
            symmetric=self.symmetric,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
        )

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight, before any smoothing or rotation."""
        weight, smooth = self._dequantized(), self.smooth
        weight = (weight if smooth is None else weight / smooth).to(self.dtype)
        return self._rotated(weight)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        input = self._input_repr(self.granularity, "dynamic", self.smooth)
        return f"{super().extra_repr()}, {input}"

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def quantize(self, input: Tensor) -> QuantizedInput:
        """Return the integers of an input, which this layer and others like it take in its place.

        ``layer(layer.quantize(x))`` has the bits of ``layer(x)``, but no gradient.

        Args:
            input: ``[..., in_features]``.

        Raises:
            ValueError: The layer's inputs have one scale in all (``granularity="per_tensor"``).
        """
        self._check_per_token()
        return self._integers_of(input.detach())

    def _integers_of(self, input: Tensor) -> QuantizedInput:
        if self.per_token and self.rotate > 0:
            return QuantizedInput(*self._rotated_integers(input), input.dtype)
        smooth, ends = self._buffers["smooth"], (self.quant_min, self.quant_max)
        rows = self._rotated(input) if smooth is None else input / smooth
        if self.per_token:
            integers = ops.dynamic_range_quantize_per_token(rows, *ends, symmetric=self.symmetric)
            return QuantizedInput(*integers, input.dtype)
        scale, zero = ops.choose_qparams_per_tensor(rows, *ends, symmetric=self.symmetric)
        zero_point = None if self.symmetric else zero
        values = ops.quantize_per_tensor(rows, scale, zero_point, *ends)
        return QuantizedInput(values, scale, zero, input.dtype)

    def _merge_state(self) -> State:
        return self._state_with(self.granularity, ("smooth",))

    def _merged_outputs(self, columns: Columns, input: Tensor | QuantizedInput) -> list[Tensor]:
        if isinstance(input, QuantizedInput):
            self._check_per_token()
        else:
            input = self._integers_of(input)
        values, scale, zero, dtype = input
        zero_point = None if self.symmetric else zero
        return self._products_of_integers(columns, (values, scale, zero_point, dtype))

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _check_per_token(self) -> None:
        if not self.per_token:
            raise ValueError(
                f"{type(self).__name__}: expected granularity per_token for an input of integers, "
                f"but got {self.granularity}; give the layer the floating input"
            )


class StaticInput(IntegerLinear):
    """Quantizes its input with one scale, fixed in advance."""

    act_scale: Tensor
    act_zero_point: Tensor | None
    smooth_scale: Tensor | None

    def _set_input(
        self, act_scale: Tensor, act_zero_point: Tensor | None, smooth_scale: Tensor | None
    ) -> None:
        """Check and keep how the input becomes integers."""
        name = type(self).__name__
        act_scale, act_zero_point = _arguments.scale_of_tensor(name, act_scale, act_zero_point)
        self.register_buffer("act_scale", act_scale)
        self.register_buffer("act_zero_point", act_zero_point)
        self.check_one("smooth_scale", smooth_scale)
        if smooth_scale is not None:
            features = self.in_features
            smooth_scale = _arguments.scale_of_inputs(name, "smooth_scale", smooth_scale, features)
        self.register_buffer("smooth_scale", smooth_scale)

    def _own_output(self, input: Tensor) -> Tensor:
        bias = matching_bias(self.bias, input.dtype, self.weight_scale)
        zero_point, smooth_scale = self.act_zero_point, self.smooth_scale
        rows = self._rotated(input)
        dtype = fixed_dtype(input.dtype)
        return self._static_product(rows, self.act_scale, bias, zero_point, smooth_scale, dtype)

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight, before any smoothing or rotation."""
        weight, smooth_scale = self._dequantized(), self.smooth_scale
        if smooth_scale is not None:
            weight = weight / (smooth_scale / self.act_scale)
        weight = weight.to(self.dtype)
        return self._rotated(weight)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        input = self._input_repr("per_tensor", "static", self.smooth_scale)
        return f"{super().extra_repr()}, {input}"

    def _merge_state(self) -> State:
        return self._state_with(None, ("act_scale", "act_zero_point", "smooth_scale"))

    def _merged_outputs(self, columns: Columns, input: Tensor) -> list[Tensor]:
        rows, ends, own = self._rotated(input), (self.quant_min, self.quant_max), self._buffers
        scale, zero, smooth_scale = own["act_scale"], own["act_zero_point"], own["smooth_scale"]
        if smooth_scale is None:
            values = ops.quantize_per_tensor(rows, scale, zero, *ends)
        else:
            zeros = None if zero is None else zero.expand(smooth_scale.shape)
            values = ops.quantize_per_channel(rows, smooth_scale, zeros, -1, *ends)
        return self._products_of_integers(columns, (values, scale, zero, input.dtype))
