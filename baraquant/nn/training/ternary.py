# SPDX-License-Identifier: BSD-3-Clause
"""``FakeQuantizeTernary``: rounds a weight to -1, 0 and 1 times its mean magnitude."""

import torch
from torch import Tensor

from ..shared.fake_quantize import FakeQuantize
from ..shared.range import rounded_scale
from ..shared.straight_through import straight_through, without_gradient


class FakeQuantizeTernary(FakeQuantize):
    """Rounds a weight to -1, 0 and 1 times the mean of its absolute values (BitNet b1.58).

    The scale is ``mean(abs(w))`` of the values that share it, 1 where all are 0; the integers are
    ``clamp(rint(w / scale), -1, 1)``. The mean comes from an exact sum of integers, so that its
    bits are the same on every device. The gradient goes straight through the rounding, and through
    the clamp: weights beyond the scale are trained too.

    Args:
        granularity: ``per_tensor``, ``per_channel`` or ``per_group``.
        axis: As in :class:`FakeQuantize`.
        group_size: As in :class:`FakeQuantize`.
        scale_dtype: As in :class:`FakeQuantize`.

    Raises:
        ValueError: An argument does not fit.

    Example:
        >>> quantizer = baraquant.nn.FakeQuantizeTernary()
        >>> quantizer(torch.tensor([[0.1, -0.5, 0.25, 1.15]]))
        tensor([[ 0.0000, -0.5000,  0.0000,  0.5000]])
    """

    _has_own_rule = True

    def __init__(
        self,
        granularity: str = "per_tensor",
        *,
        axis: int | None = None,
        group_size: int | None = None,
        scale_dtype: str = "float32",
    ) -> None:
        super().__init__(
            granularity=granularity,
            axis=axis,
            group_size=group_size,
            quant_min=-1,
            quant_max=1,
            mode="dynamic",
            scale_dtype=scale_dtype,
        )
        self._name = "FakeQuantizeTernary"

    def qparams_of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale of each row of a matrix, ``[rows]``, and zeros."""
        largest, count = rows.abs().amax(dim=1), rows.shape[1]
        total = torch.ops.baraquant._sum_of_magnitudes(rows, largest, count)
        return self._qparams_of_sum(total, largest, count)

    def _qparams_of_sum(self, total: Tensor, largest: Tensor, count: int) -> tuple[Tensor, Tensor]:
        mean = torch.ops.baraquant._mean_of_magnitudes(total, largest, count)
        scale = rounded_scale(mean, self.scale_dtype)
        return scale, torch.zeros_like(scale, dtype=torch.int32)

    @torch.jit.export  # type: ignore[untyped-decorator]
    def round(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded; without switches."""
        scale, zero_point = self._qparams_of(input)
        rounded = self._fake_quantize(without_gradient(input), scale, zero_point, None)
        return straight_through(rounded, input)

    def smooth(self, input: Tensor) -> Tensor:
        """Return ``input``: the gradient goes straight through."""
        return input
