# SPDX-License-Identifier: BSD-3-Clause
"""``FakeQuantizeInt4``: rounds a weight to 2 to 4 bits, with a whole factor for each group."""

from typing import Final

import torch
from torch import Tensor

from ... import ops
from ...configs import integer_range
from ..shared.arguments import SCALES, check, check_bits, check_dtype, check_even
from ..shared.quantizer import Quantizer
from ..shared.range import fitted_factors, searched_factors, share_of
from ..shared.straight_through import straight_through, without_gradient


class RoundsToInt4(Quantizer):
    """A quantizer of rows to 2 to 4 bits with a scale for each row, and a factor for each group.

    A subclass says where these come from, and what carries the gradient.
    """

    group_size: int
    bits: int

    def qparams_of(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scale ``[rows]``, and the factors and zero points ``[rows, groups]``."""
        raise NotImplementedError

    def smooth(self, input: Tensor) -> Tensor:
        """Return what gives ``round`` its gradient, and is near it: ``input``, straight through."""
        return input

    @torch.jit.export  # type: ignore[untyped-decorator]
    def round(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded; without switches."""
        integers, scale, _ = self.quantize(input)
        rounded = ops.dequantize_per_channel(integers, scale, None, 0, dtype=input.dtype)
        return straight_through(rounded, self.smooth(input))

    @torch.jit.export  # type: ignore[untyped-decorator]
    def pack(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ``input`` as packed numbers, uint8, with scale, factors and zero points."""
        scale, factor, zero_point = self.qparams_of(input)
        packed = ops.quantize_int4(
            without_gradient(input),
            scale,
            factor,
            self.group_size,
            group_zero_point=zero_point,
            bits=self.bits,
        )
        return packed, scale, factor, zero_point

    @torch.jit.export  # type: ignore[untyped-decorator]
    def quantize(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``input`` as the int8 that a product multiplies, with scales and zeros ``[rows]``.

        ``round`` returns these integers dequantized.
        """
        packed, scale, factor, zero_point = self.pack(input)
        integers = ops.expand_int4(
            packed, factor, self.group_size, input.shape[1], group_zero_point=zero_point
        )
        return integers, scale, torch.zeros_like(scale, dtype=torch.int32)


class FakeQuantizeInt4(RoundsToInt4):
    """Rounds a weight to 2 to 4 bits; rows have scales, and groups of columns whole factors.

    ``w8 = (u - z) * f`` with ``u`` in [0, 15] and ``f`` in [1, 16] is an int8, and stands for
    ``w8 * scale``. So a product with the integers of an input is one exact sum of integers over all
    groups, as with a weight of int8 (:func:`baraquant.ops.int4_linear`). The gradient goes straight
    through the rounding. With three bits ``u`` is in [4, 11], with two in [6, 9]: ``u - 8`` is a
    signed integer of the width, and is stored in four bits.

    Without arguments for them the scale, the factors and the zero points come from each weight
    (:func:`baraquant.ops.choose_int4_qparams`); given ones are buffers.

    Args:
        group_size: The number of adjacent columns that share a factor and a zero point, even.
        symmetric: True for the zero point 8 in every group, so that ``u - z`` lies in [-8, 7]
            (three bits: [-4, 3], two: [-2, 1]). False fits it to the range of a group, extended to
            include 0.
        scale: float32 (float64 for a float64 weight) ``[rows]``; None: from each weight.
        group_factor: uint8 ``[rows, groups]``; with a scale, and not without one.
        group_zero_point: uint8 ``[rows, groups]``, the same.
        bits: The width of the numbers, 2 to 4.

    Raises:
        ValueError: The group size is not even and above 0, the bits are out of range, or some of
            the tensors are missing.
        TypeError: A tensor has another dtype.

    Example:
        >>> quantizer = baraquant.nn.FakeQuantizeInt4(2)
        >>> quantizer(torch.tensor([[0.7, -0.13, 11.2, 3.0]]))
        tensor([[ 0.7000, -0.1000, 11.2000,  3.2000]])
    """

    granularity: Final[str]
    symmetric: Final[bool]
    is_dynamic: Final[bool]
    is_observed: Final[bool]
    quant_min: Final[int]
    quant_max: Final[int]
    scale_dtype: Final[str]
    scale: Tensor | None
    group_factor: Tensor | None
    group_zero_point: Tensor | None

    def __init__(
        self,
        group_size: int,
        *,
        symmetric: bool = True,
        scale: Tensor | None = None,
        group_factor: Tensor | None = None,
        group_zero_point: Tensor | None = None,
        bits: int = 4,
    ) -> None:
        super().__init__()
        name = "FakeQuantizeInt4"
        check_even(name, group_size)
        check_bits(name, "bits", bits, 4)
        tensors = {"group_factor": group_factor, "group_zero_point": group_zero_point}
        if len({one is None for one in (scale, *tensors.values())}) > 1:
            raise ValueError(
                f"{name}: expected scale, group_factor and group_zero_point together, or none of "
                "them"
            )
        if scale is not None:
            check_dtype(name, "scale", scale.dtype, *SCALES)
            for what, tensor in tensors.items():
                assert tensor is not None and group_factor is not None
                check_dtype(name, what, tensor.dtype, torch.uint8)
                is_alike = tensor.dim() == 2 and tensor.shape == group_factor.shape
                wanted = f"{what} to have the shape [rows, groups] and scale [rows]"
                got = f"{list(tensor.shape)} and {list(scale.shape)}"
                check(name, is_alike and scale.shape == tensor.shape[:1], wanted, got)
        self.granularity = "per_group"
        self.group_size = group_size
        self.symmetric = symmetric
        self.is_dynamic, self.is_observed = scale is None, False
        self.bits = bits
        self.quant_min, self.quant_max = integer_range(bits)
        self.scale_dtype = "float32"
        self._rounds = True
        self._keep_state("int4", 0 if scale is None else scale.numel())
        self.register_buffer("scale", scale)
        self.register_buffer("group_factor", group_factor)
        self.register_buffer("group_zero_point", group_zero_point)

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` ``[rows, columns]`` rounded, in its own dtype."""
        return self.round(input) if self._rounds and not self.is_teacher() else input

    @torch.jit.export  # type: ignore[untyped-decorator]
    def calculate_qparams(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scale, the factors and the zero points: the given ones, or of ``input``."""
        scale, factor, zero_point = self.scale, self.group_factor, self.group_zero_point
        if scale is None or factor is None or zero_point is None:
            return ops.choose_int4_qparams(
                without_gradient(input), self.group_size, symmetric=self.symmetric, bits=self.bits
            )
        return scale, factor, zero_point

    def qparams_of(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what :meth:`calculate_qparams` does."""
        qparams: tuple[Tensor, Tensor, Tensor] = self.calculate_qparams(input)
        return qparams

    def fitted(
        self, rows: Tensor, importance: Tensor | None = None, scale_rule: str = "search"
    ) -> tuple["FakeQuantizeInt4", float]:
        """Return a fake quantizer with the factors that fit a weight ``[N, K]`` best.

        With it the share of the rows that keep their own bits, in [0, 1]. All columns count alike,
        whatever their ``importance``: a product of integers has no other.
        """
        scale, factor, zero_point, is_exact = fitted_factors(
            rows, self.group_size, self.symmetric, self.bits, scale_rule
        )
        fitted = FakeQuantizeInt4(
            self.group_size,
            symmetric=self.symmetric,
            scale=scale,
            group_factor=factor,
            group_zero_point=zero_point,
            bits=self.bits,
        )
        return fitted, share_of(is_exact)

    def searched_factors(self, rows: Tensor, scale: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the scale, and the factors and zero points of groups, that fit rows best."""
        return searched_factors(rows, self.group_size, self.symmetric, self.bits, scale)

    def extra_repr(self) -> str:
        """Return the arguments that differ between modules, for ``repr``."""
        mode = "dynamic" if self.is_dynamic else "fixed"
        width = "" if self.bits == 4 else f", bits={self.bits}"
        return f"{mode}, group_size={self.group_size}, symmetric={self.symmetric}{width}"
