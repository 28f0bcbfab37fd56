# SPDX-License-Identifier: BSD-3-Clause
"""The bases of the linear layers that store integers."""

from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...configs import integer_range
from ..shared.product import fixed_dtype, is_exported, matching_bias
from ..shared.rotation import check_block, has_same_metadata, note_metadata
from ..shared.straight_through import makes_graph, without_gradient
from ..shared.weight import Shaped
from . import _arguments
from .integers import HoldsIntegers


class LaysOutWeight(HoldsIntegers):
    """A linear layer whose ``weight`` reads as ``[in_features, out_features]`` if ``transposed``.

    This is the layout of transformers' ``Conv1D``, whose sizes ``nx`` and ``nf`` it has too. The
    integers are always ``[out_features, in_features]``.
    """

    in_features: int
    out_features: int
    transposed: bool
    rotate: int  # the block that is rotated in inputs, and is in the weight; 0 if none is

    def set_layout(self, transposed: bool) -> None:
        """Set the layout in which ``weight`` is read."""
        self.transposed = transposed
        if transposed:
            self.nf, self.nx = self.out_features, self.in_features

    def _shaped_as_weight(self) -> Tensor | Shaped:
        return self.qweight.t() if self.transposed else self.qweight

    def _shape_alone(self, device: torch.device) -> Shaped:
        """Return what reading ``weight`` needs, where no tensor has an element for each weight."""
        rows, columns = self.out_features, self.in_features
        step = max(columns, 1)
        if self.transposed:
            return Shaped((columns, rows), (1, step), device)
        return Shaped((rows, columns), (step, 1), device)

    def _weight_as_laid_out(self) -> Tensor:
        weight = self.dequantized_weight()
        return weight.t() if self.transposed else weight

    def _rotated(self, rows: Tensor) -> Tensor:
        """Return an input as the integers need it, or a weight in the other basis."""
        return ops.hadamard(rows, self.rotate) if self.rotate > 0 else rows

    def rotate_repr(self) -> str:
        """Return what ``repr`` shows of the rotation."""
        return f", rotate={self.rotate}" if self.rotate > 0 else ""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_metadata(self, destination, prefix)

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        if has_same_metadata(self, metadata, prefix, args[-1]):  # else the layer stays as it is
            super()._load_from_state_dict(state, prefix, metadata, *args)


class IntegerLinear(LaysOutWeight):
    """The base of the quantized linear layers: a weight of integers with its scale, and the bias.

    A subclass says how the integers are stored, and defines the products:

    * ``_dynamic_product(rows, bias, dtype)`` of rows that get a scale for each token,
    * ``_static_product(rows, scale, bias, zero_point, smooth_scale, dtype)`` with one scale,
    * ``_product_of_integers(integers, scale, bias, zero_point, dtype)`` of rows that are integers.
    """

    __constants__: tuple[str, ...] = (
        "in_features",
        "out_features",
        "weight_bits",
        "symmetric",
        "bits",
        "quant_min",
        "quant_max",
        "rotate",
    )

    weight_scale: Tensor
    bias: Tensor | None
    weight_bits: int
    symmetric: bool
    bits: int
    quant_min: int
    quant_max: int

    def _set(
        self,
        shape: tuple[int, int],
        weight_scale: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype | None,
        transposed: bool,
        rotate: int | None,
    ) -> None:
        """Check and keep everything but the integers, which are there already.

        So are ``weight_bits``, ``symmetric`` and ``bits``, which are checked here. ``shape`` is
        ``(out_features, in_features)``; the others are as in the constructors.
        """
        name = type(self).__name__
        _arguments.check_bits(name, "weight_bits", self.weight_bits)
        _arguments.check_bits(name, "bits", self.bits)
        self.out_features, self.in_features = shape
        self.rotate = check_block(name, rotate, self.in_features)
        self.quant_min, self.quant_max = integer_range(self.bits)
        scale = _arguments.scale_of_channels(name, weight_scale, self.out_features)
        self.dtype = _arguments.weight_dtype(name, dtype, bias, scale)
        self.register_buffer("weight_scale", scale)
        self.set_layout(transposed)

    def _int8_weight(self) -> Tensor:
        """Return the integers that are multiplied, int8 ``[out_features, in_features]``."""
        raise NotImplementedError

    def check_one(self, smooth: str, given: Tensor | None) -> None:
        """Check that a layer is not both rotated and smoothed."""
        if self.rotate > 0 and given is not None:
            raise ValueError(
                f"{type(self).__name__}: expected rotate or {smooth}, but got both; a rotation "
                "mixes the features that a smoothing divides"
            )

    def _dequantized(self) -> Tensor:
        return ops.dequantize_per_channel(self._int8_weight(), self.weight_scale, None, 0)

    def _weight_repr(self) -> str:
        return f"weight=int{self.weight_bits} per_channel"

    def _input_repr(self, granularity: str, how: str, smooth: Tensor | None) -> str:
        zero = "symmetric" if self.symmetric else "asymmetric"
        smoothed = "" if smooth is None else ", smooth"
        rotated = self.rotate_repr()
        return f"input=int{self.bits} {granularity} {zero} {how}{smoothed}{rotated}"

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self._weight_repr()}"
        )


class HoldsInt8(IntegerLinear):
    """Stores an int8 for each weight."""

    qweight: Tensor

    def _store(self, qweight: Tensor, bias: Tensor | None) -> tuple[int, int]:
        """Check and keep the integers; return their shape."""
        _arguments.check_weight(type(self).__name__, qweight, bias)
        self.set_weight("qweight", qweight, bias)
        rows, columns = qweight.shape
        return rows, columns

    def _int8_weight(self) -> Tensor:
        return self.qweight

    def _dynamic_product(
        self, rows: Tensor, bias: Tensor | None, dtype: torch.dtype | None
    ) -> Tensor:
        return ops.quantized_linear(
            rows,
            self.qweight,
            self.weight_scale,
            bias,
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
        return ops.static_quantized_linear(
            rows,
            self.qweight,
            self.weight_scale,
            scale,
            bias,
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
        return ops.int8_linear(
            integers,
            self.qweight,
            scale,
            self.weight_scale,
            bias,
            input_zero_point=zero_point,
            dtype=dtype,
        )


class DynamicInput(IntegerLinear):
    """Computes the scale of its input from the input."""

    __constants__ = (*IntegerLinear.__constants__, "granularity", "per_token")

    smooth: Tensor | None
    granularity: str
    per_token: bool

    def _set_input(self, granularity: str, smooth: Tensor | None) -> None:
        """Check and keep how the input becomes integers."""
        name = type(self).__name__
        if granularity not in ("per_token", "per_tensor"):
            raise ValueError(
                f"{name}: expected granularity to be per_token or per_tensor, "
                f"but got {granularity!r}"
            )
        self.granularity = granularity
        self.per_token = granularity == "per_token"
        self.check_one("smooth", smooth)
        if smooth is not None:
            smooth = _arguments.scale_of_inputs(name, "smooth", smooth, self.in_features)
        self.register_buffer("smooth", smooth)

    def _output_of_floats(self, input: Tensor) -> Tensor:
        """Return the output for a floating input."""
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

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
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
