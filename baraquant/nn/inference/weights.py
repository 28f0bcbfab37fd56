# SPDX-License-Identifier: BSD-3-Clause
"""The weights of linear layers that multiply integers: how they are stored, and their products.

A layer is one of these classes and one of :mod:`.inputs`.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import ops
from ...configs import integer_range
from ..shared.arguments import check_bits
from ..shared.product import matching_bias
from ..shared.rotation import check_block, note_metadata, other_metadata
from ..shared.weight import Shaped
from . import _arguments
from .integers import HoldsIntegers
from .merged import Columns, Slots, State, merged_output

# The values of an input, their scale and zero point, and the dtype of the output.
Integers: TypeAlias = tuple[Tensor, Tensor, Tensor | None, torch.dtype]


class LaysOutWeight(HoldsIntegers):
    """A linear layer whose ``weight`` reads as ``[in_features, out_features]`` if ``transposed``.

    This is the layout of transformers' ``Conv1D``, whose sizes ``nx`` and ``nf`` it has too. The
    integers are always ``[out_features, in_features]``.
    """

    in_features: int
    out_features: int
    transposed: bool
    rotate: int  # the block that is rotated in inputs, and is in the weight; 0 if none is
    _integer_input: tuple[type, ...] = ()  # what the layer takes in place of floats
    _merged: Any = None  # the LinearGroup that computes the layer, and its place there

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
        if not torch.jit.is_scripting():
            output = None if self._merged is None else merged_output(self, input)
            if output is not None:
                return output
        return self._own_output(input)

    def _own_output(self, input: Tensor) -> Tensor:
        """Return the output that the layer computes by itself."""
        raise NotImplementedError

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

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._forget_merged()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._forget_merged()
        return self

    def _forget_merged(self) -> None:
        if self._merged is not None:
            self._merged[0].forget()

    def _rotated(self, rows: Tensor) -> Tensor:
        """Return an input as the integers need it, or a weight in the other basis."""
        return ops.hadamard(rows, self.rotate) if self.rotate > 0 else rows

    def rotate_repr(self) -> str:
        """Return what ``repr`` shows of the rotation."""
        return f", rotate={self.rotate}" if self.rotate > 0 else ""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_metadata(self, destination, prefix)

    def _why_not_state(self, state: Any, prefix: str, metadata: Any) -> list[str]:
        found = super()._why_not_state(state, prefix, metadata)
        return [*found, *other_metadata(self, metadata, prefix)]


class IntegerLinear(LaysOutWeight):
    """The base of the quantized linear layers: a weight of integers with its scale, and the bias.

    A subclass says how the integers are stored, and defines the products:

    * ``_dynamic_product(rows, bias, dtype)`` of rows that get a scale for each token,
    * ``_static_product(rows, scale, bias, zero_point, smooth_scale, dtype)`` with one scale,
    * ``_product_of_integers(integers, scale, bias, zero_point, dtype)`` of rows that are integers,
    * ``_products_of_integers(columns, input)``: the same for several layers, with a list of the
      tensors of all for each tensor of ``_weight_state()``.
    """

    __constants__: tuple[str, ...] = (
        *("in_features", "out_features", "weight_bits", "symmetric", "bits", "quant_min"),
        *("quant_max", "rotate"),
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
        check_bits(name, "weight_bits", self.weight_bits)
        check_bits(name, "bits", self.bits)
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

    def _weight_state(self) -> tuple[tuple[Any, ...], Slots]:
        """Return options of the weight that layers computed by one call share, and its tensors."""
        raise NotImplementedError

    def _products_of_integers(self, columns: Columns, input: Integers) -> list[Tensor]:
        """Return the products of an input with the weights of several layers."""
        raise NotImplementedError

    def _state_with(self, option: Any, names: tuple[str, ...]) -> State:
        """Return the state of the layer, whose input has an option and buffers of these names."""
        options, own = self._weight_state()
        kind = (self.in_features, self.rotate, self.bits, self.symmetric, option, *options)
        return State(kind, own, [(self._buffers, name) for name in names])

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
        return f"{nn.Linear.extra_repr(self)}, {self._weight_repr()}"


class Int8Rows(IntegerLinear):
    """Stores an int8 for each weight."""

    qweight: Tensor

    def _weight_state(self) -> tuple[tuple[Any, ...], Slots]:
        own = self._parameters
        return (), [(own, "qweight"), (self._buffers, "weight_scale"), (own, "bias")]

    def _products_of_integers(self, columns: Columns, input: Integers) -> list[Tensor]:
        (weights, scales, biases), (integers, scale, zero_point, dtype) = columns, input
        biases = biases and [matching_bias(bias, dtype, scales[0]) for bias in biases]
        outputs: list[Tensor] = torch.ops.baraquant._int8_linears(
            integers, weights, scale, scales, biases, zero_point, None, dtype
        )
        return outputs

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


class Int4Factors(IntegerLinear):
    """Stores half a byte for each weight."""

    packed: Tensor
    group_factor: Tensor
    group_zero_point: Tensor | None
    group_size: int

    def _weight_state(self) -> tuple[tuple[Any, ...], Slots]:
        own = self._parameters
        first = [(own, "packed"), (self._buffers, "weight_scale"), (own, "bias")]
        return (self.group_size,), [*first, (own, "group_factor"), (own, "group_zero_point")]

    def _products_of_integers(self, columns: Columns, input: Integers) -> list[Tensor]:
        packed, scales, biases, factors, group_zeros = columns
        integers, scale, zero_point, dtype = input
        biases = biases and [matching_bias(bias, dtype, scales[0]) for bias in biases]
        outputs: list[Tensor] = torch.ops.baraquant._int4_linears(
            integers, packed, scale, scales, factors, self.group_size, biases, group_zeros,
            zero_point, None, dtype,
        )  # fmt: skip
        return outputs

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
    def as_int8(self) -> Int8Rows:
        """Return a layer of int8 with the same bits, for formats that have no factors."""
        raise NotImplementedError

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def check_products(self) -> None:
        """Check that every ``(u - z) * f`` is an int8."""
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
