# SPDX-License-Identifier: BSD-3-Clause
"""The numbers that a weight is rounded to: its scales and zero points, by row and group."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import ops
from ...nn import FakeQuantize, FakeQuantizeInt4
from ...nn.training._int4_search import searched_factors
from ...nn.training._quantizers import Int4Integers, Integers
from ..fit import qparams_of_rows


def grid_of(
    rows: Tensor, quantizer: FakeQuantize | FakeQuantizeInt4, searches: bool, *, fixed: bool
) -> Grid | FactorGrid:
    """Return the grid of a weight.

    Args:
        rows: The weight, ``[N, K]``, in the dtype of the scales.
        quantizer: The dynamic quantizer of the weight.
        searches: Whether to search the scales, or the factors.
        fixed: Whether to find those of groups now, from the weight itself.
    """
    if isinstance(quantizer, FakeQuantizeInt4):
        return FactorGrid(rows, quantizer, searches, fixed=fixed)
    return Grid(rows, quantizer, searches, fixed=fixed)


class Grid:
    """The scales and zero points of a weight, one pair for each row and group.

    The arguments are those of :func:`grid_of`.

    Attributes:
        size: The number of neighbouring columns that share a scale.
        follows: Whether each group waits for :meth:`find`.
    """

    def __init__(
        self, rows: Tensor, quantizer: FakeQuantize, searches: bool, *, fixed: bool
    ) -> None:
        self._quantizer, self._searches = quantizer, searches
        self._is_grouped = quantizer.granularity == "per_group"
        self.size = quantizer.group_size if self._is_grouped else rows.shape[1]
        groups = rows.shape[1] // self.size
        self._scale = rows.new_ones(groups, rows.shape[0])
        self._zero_point = torch.zeros_like(self._scale, dtype=torch.int32)
        self.follows = self._is_grouped and not fixed
        if quantizer.granularity == "per_tensor":
            scale, zero_point = self._qparams(rows.reshape(1, -1))
            self._scale[0], self._zero_point[0] = scale, zero_point
        elif not self.follows:
            for group, part in enumerate(rows.split(self.size, dim=1)):
                self._scale[group], self._zero_point[group] = self._qparams(part)

    def _qparams(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return qparams_of_rows(rows, self._quantizer, searches=self._searches)

    def find(self, group: int, rows: Tensor) -> None:
        """Find the scales of a group from its corrected values, ``[N, size]``."""
        self._scale[group], self._zero_point[group] = self._qparams(rows)

    def quantize(self, group: int, column: Tensor) -> tuple[Tensor, Tensor]:
        """Return a column ``[N]`` of a group as int8, and what this stands for, in float64."""
        scale, zero_point = self._scale[group], self._zero_point[group]
        low, high = self._quantizer.quant_min, self._quantizer.quant_max
        integers = ops.quantize_per_channel(column[:, None], scale, zero_point, 0, low, high)[:, 0]
        return integers, (integers.to(torch.float64) - zero_point) * scale

    def integers(self, qweight: Tensor) -> Integers:
        """Return the integers with their scales: ``[N, groups]`` for groups, else ``[N]``."""
        scale, zero_point = self._scale.t().contiguous(), self._zero_point.t().contiguous()
        if not self._is_grouped:
            scale, zero_point = scale[:, 0].contiguous(), zero_point[:, 0].contiguous()
        return Integers(qweight, scale, None if self._quantizer.symmetric else zero_point)


class FactorGrid:
    """A scale for each row of a weight, and a factor and a zero point for each row and group.

    The scale of a row comes from the weight, and without a search the factors do too. The arguments
    and attributes are those of :class:`Grid`.
    """

    def __init__(
        self, rows: Tensor, quantizer: FakeQuantizeInt4, searches: bool, *, fixed: bool
    ) -> None:
        self._quantizer, self._searches = quantizer, searches
        self.size, self.follows = quantizer.group_size, searches and not fixed
        self._scale, self._factor, self._zero_point = (
            searched_factors(rows, self.size, quantizer.symmetric)
            if searches and fixed
            else ops.choose_int4_qparams(rows, self.size, symmetric=quantizer.symmetric)
        )

    def find(self, group: int, rows: Tensor) -> None:
        """Find the factors of a group from its corrected values, ``[N, size]``."""
        symmetric = self._quantizer.symmetric
        _, factor, zero_point = searched_factors(rows, self.size, symmetric, self._scale)
        self._factor[:, group], self._zero_point[:, group] = factor[:, 0], zero_point[:, 0]

    def quantize(self, group: int, column: Tensor) -> tuple[Tensor, Tensor]:
        """Return a column ``[N]`` of a group as numbers in [0, 15], and what they stand for."""
        factor, zero_point = self._factor[:, group, None], self._zero_point[:, group, None]
        # A group of two columns, the second of which is not used.
        packed = ops.quantize_int4(
            column[:, None], self._scale, factor, 2, group_zero_point=zero_point
        )
        weights = ops.expand_int4(packed, factor, 2, 1, group_zero_point=zero_point)[:, 0]
        return (packed[:, 0] & 15).to(torch.int8), weights.to(torch.float64) * self._scale

    def integers(self, numbers: Tensor) -> Int4Integers:
        """Return the numbers packed, with scales, factors and zero points."""
        return Int4Integers(ops.pack_int4(numbers - 8), self._scale, self._factor, self._zero_point)
