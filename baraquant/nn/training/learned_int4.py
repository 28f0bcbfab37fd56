# SPDX-License-Identifier: BSD-3-Clause
"""``LearnedFakeQuantizeInt4``: rounds a weight to 2 to 4 bits, with factors that are trained."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from ... import ops
from ...configs import SCALE_RULES, integer_range
from ..shared.arguments import (
    SCALES,
    check,
    check_bits,
    check_choice,
    check_dtype,
    check_even,
    check_sizes,
)
from ..shared.master import round_master
from ..shared.precision import compute_dtype
from ..shared.range import fitted_factors
from ..shared.straight_through import makes_graph
from ._first_batch import check_unwrapped
from .int4 import RoundsToInt4
from .learned import NAN, LearnedFakeQuantize


class LearnedFakeQuantizeInt4(RoundsToInt4, LearnedFakeQuantize):
    """Rounds a weight to 2 to 4 bits, and learns the scales of rows and the factors of groups.

    The numbers are those of :class:`FakeQuantizeInt4`: an int8 ``w8 = (u - z) * f`` stands for
    ``w8 * scale``. Each group learns the step that it would like to have, and this is rounded to a
    whole multiple of the row's scale: ``f = clamp(rint(step / scale), 1, 16)``. So the product
    stays one exact sum of integers.

    Both roundings pass gradients straight through, each by the rule and with the factor of "Learned
    Step Size Quantization" (LSQ, Esser et al. 2020, equation 3 and section 2.2). With
    ``d = f * scale``, ``y = (u - z) * d``, ``v = w / d`` and ``t = step / scale``:

    * ``dy/dd = rint(v) - v``, or ``u - z`` where ``u`` was clamped (to [0, 15], and to those whose
      ``w8`` is an int8). The gradient of ``d`` is the sum of this over the group, times
      ``1 / sqrt(group_size * 7)`` (three bits: 3 instead of 7, two: 1). It is also the gradient
      of the step, but 0 where ``f`` was clamped.
    * ``dd/dscale = rint(t) - t``, or ``f`` where it was clamped. The gradient of the scale is the
      sum of this, times the gradient of ``d``, over the groups of a row, times
      ``1 / sqrt(groups * 16)``.

    With ``symmetric=False`` the zero points are learned as in :class:`LearnedFakeQuantize`.

    The parameters are ``scale`` ``[rows, groups]``, the steps, as in a
    :class:`LearnedFakeQuantize` ``per_group``; ``largest_step`` ``[rows]``, the step of a group
    with the factor 16, so 16 times the row's scale; and, if not symmetric, ``zero_point``
    ``[rows, groups]`` for signed integers of the width. The scale itself is no parameter because an
    optimizer such as Adam moves each parameter by about its learning rate, which is much for a
    number as small as the scale. The gradient of ``largest_step`` is 16 times that of the scale, so
    that gradient descent moves the scale as if it were the parameter. :meth:`initialize` sets all
    of them from a weight, to the factors with the minimum squared error. Before that they are NaN,
    and a weight with a NaN or an infinity leaves them so; ``skipped_batches`` counts it.

    Args:
        group_size: The number of adjacent columns that share a factor and a zero point, even.
        shape: ``[rows, groups]``.
        symmetric: True for the zero point 8 in every group.
        bits: The width of the numbers, 2 to 4.
        scale_rule: How :meth:`initialize` finds the factors, as in :class:`baraquant.QuantConfig`.
        device: Of the parameters and buffers.
        dtype: Of the parameters: float32 or float64.
        master: As in :class:`LearnedFakeQuantize`.

    Raises:
        ValueError: The group size is not even and above 0, the shape is not one of rows and groups,
            the bits are out of range, or the rule is unknown.
        TypeError: The dtype is another one.

    Example:
        >>> quantizer = baraquant.nn.LearnedFakeQuantizeInt4(2, shape=(1, 2))
        >>> quantizer(torch.tensor([[0.7, -0.13, 11.2, 3.0]])).detach()
        tensor([[ 0.7000, -0.1000, 11.2000,  3.2000]])
        >>> quantizer.qparams()[:2]
        (tensor([0.1000]), tensor([[ 1, 16]], dtype=torch.uint8))
    """

    is_dynamic: Final[bool]
    groups: Final[int]
    largest_factor: Final[int]
    _kind = "learned int4"

    def __init__(
        self,
        group_size: int,
        *,
        shape: Sequence[int],
        symmetric: bool = True,
        bits: int = 4,
        scale_rule: str = "search",
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        master: str | None = None,
    ) -> None:
        name = "LearnedFakeQuantizeInt4"
        check_even(name, group_size)
        check_bits(name, "bits", bits, 4)
        is_matrix = len(shape) == 2 and all(type(size) is int and size >= 0 for size in shape)
        check(name, is_matrix, "shape to be [rows, groups]", list(shape))
        check_choice(name, "scale_rule", scale_rule, SCALE_RULES)
        check_dtype(name, "dtype", dtype, *SCALES)
        low, high = integer_range(bits)
        super().__init__(
            "per_group",
            group_size=group_size,
            shape=shape,
            quant_min=low,
            quant_max=high,
            symmetric=symmetric,
            device=device,
            dtype=dtype,
            master=master,
            scale_rule=scale_rule,
        )
        self._name, self.bits = name, bits
        self.is_dynamic = False
        self.largest_factor = 16
        rows, self.groups = shape
        self.largest_step = nn.Parameter(torch.full((rows,), NAN, device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` ``[rows, columns]`` rounded, in its own dtype."""
        return self.round(input) if self._rounds and not self.is_teacher() else input

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def initialize(self, input: Tensor) -> None:
        """Set the parameters to the factors that fit ``input`` ``[rows, columns]``.

        A row with a NaN or an infinity changes nothing; ``skipped_batches`` counts such an input.
        """
        columns = self.groups * self.group_size
        shape = [len(self.scale), columns]
        fits = list(input.shape) == shape
        check_sizes(self._name, "input", input, fits, f"the shape {shape}")
        self._start_by(input, False)
        self._note_if_known()

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _start_by(self, input: Tensor, only_unknown: bool) -> None:
        """Set the parameters of rows from those of ``input`` that are finite."""
        rows, rule = input.detach(), self.scale_rule
        if rule is not None and rule != "max":
            scale, factor, zeros, _ = fitted_factors(
                rows, self.group_size, self.symmetric, self.bits, rule
            )
        else:
            scale, factor, zeros = ops.choose_int4_qparams(
                rows, self.group_size, symmetric=self.symmetric, bits=self.bits
            )
        self._set(scale, factor, zeros, self._is_new(scale, self.largest_step, only_unknown))

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def start_from(self, scale: Tensor, factor: Tensor, zero_point: Tensor) -> None:
        """Set the parameters to given scales ``[rows]``, factors and zero points in [0, 15]."""
        self._set(scale, factor, zero_point, torch.ones_like(scale, dtype=torch.bool))
        self._initialized = True

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _set(self, scale: Tensor, factor: Tensor, zeros: Tensor, is_new: Tensor) -> None:
        """Set the parameters of the rows that are new."""
        values = [(self.scale, scale[:, None] * factor)]
        values += [(self.largest_step, scale * self.largest_factor)]
        if self.zero_point is not None:
            values += [(self.zero_point, zeros.to(self.zero_point.dtype) - 8)]
        with torch.no_grad():
            for parameter, value in values:
                rows = is_new.to(parameter.device)
                rows = rows[:, None] if value.dim() == 2 else rows
                parameter.copy_(torch.where(rows, value.to(parameter), parameter))

    @torch.jit.export  # type: ignore[untyped-decorator]
    def qparams(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the current scale ``[rows]``, and the uint8 factors and zero points.

        A row with a step or a zero point that is not finite has the scale NaN.
        """
        return self._qparams_in(self.scale.dtype)

    @torch.jit.export  # type: ignore[untyped-decorator]
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return the steps ``f * scale`` and the int32 zero points, signed, for each group."""
        scale, factor, zero_point = self.qparams()
        return scale[:, None] * factor, zero_point.to(torch.int32) - 8

    def qparams_of(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scale, the factors and the zero points for a weight of this dtype."""
        self._set_by_first(input)
        return self._qparams_in(compute_dtype(input.dtype))

    def smooth(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded by floating formulas, which give ``round`` its gradient."""
        if not (torch.is_grad_enabled() or makes_graph()):
            return input
        steps, zero_point = self._parameters_of(input.dtype)
        scale = self._row_scale(input.dtype)
        smooth: Tensor = torch.ops.baraquant._smooth_int4(
            input, steps, scale, zero_point, self.group_size, self.bits
        )
        return smooth

    def _qparams_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        steps, zero_point = self._parameters_of(dtype)
        qparams: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant._learned_int4_qparams(
            steps, self._row_scale(dtype), zero_point, self.bits
        )
        return qparams

    def _row_scale(self, dtype: torch.dtype) -> Tensor:
        """Return the positive scale of each row."""
        largest = round_master(self.largest_step, self.master)
        largest = largest.to(compute_dtype(dtype)).abs()
        return (largest / self.largest_factor).clamp_min(2.0**-126)  # the smallest normal float32

    def _set_by_first(self, input: Tensor) -> None:
        """Set the parameters from the first weight in training, if nothing else has."""
        if self._is_initialized():
            return
        if not self.training:
            raise RuntimeError(
                "LearnedFakeQuantizeInt4: expected a finite weight in training mode, or "
                "initialize(), before anything is rounded: the factors are not known"
            )
        if not torch.jit.is_scripting():
            check_unwrapped(self)
        self._start_by(input, True)
        self._note_if_known()

    def extra_repr(self) -> str:
        """Return the arguments that differ between modules, for ``repr``."""
        shape = list(self.scale.shape)
        width = "" if self.bits == 4 else f", bits={self.bits}"
        return f"group_size={self.group_size}, symmetric={self.symmetric}{width}, scale={shape}"
