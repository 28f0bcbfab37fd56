# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: rounds a weight column by column, and corrects later columns (Frantar et al., 2023).

With ``H = X^T X`` of the inputs and ``H^-1 = U^T U``, ``U`` upper triangular, a column ``w_j`` with
the rounded ``q_j`` has the error ``e = (w_j - q_j) / U_jj``, and each later column k becomes
``w_k - e U_jk``. This is the change of the later columns that keeps ``|X W^T - X Q^T|`` smallest.
Everything but the rounding itself is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ... import ops
from ...nn import FakeQuantize, FakeQuantizeInt4
from ...nn.shared.precision import compute_dtype
from ...nn.training.quantizers import Int4Integers, Integers
from ..calibration.observers import FiniteCalls, NearOne

# Columns that are corrected at once. It changes the time, and of the result at most a tie.
_BLOCK = 128

# The damping that is tried after one that does not suffice, and the factor to the next one.
_LEAST_DAMPING, _FACTOR, _MOST_DAMPING = 1e-6, 10.0, 1.0


class Hessian(FiniteCalls):
    """Adds up ``X^T X`` of one layer's inputs, and keeps nothing else.

    The inputs are multiplied by a power of two, as :class:`NearOne` does.

    Args:
        features: The number K of inputs.
        dtype: The dtype of the sum, float32 or float64.
        as_multiplied: Returns what the layer multiplies, for rows of an input in ``dtype``.
        known: The number of skipped inputs that a warning has named already.

    Attributes:
        matrix: The sum, ``[K, K]``; None if no input was seen.
    """

    _axes = 2  # of the sum

    def __init__(
        self,
        features: int,
        dtype: torch.dtype,
        as_multiplied: Callable[[Tensor], Tensor] = lambda rows: rows,
        known: int = 0,
    ) -> None:
        super().__init__()
        self._features, self._dtype = features, dtype
        self._as_multiplied, self.known = as_multiplied, known
        self.near_one = NearOne()
        self.matrix: Tensor | None = None

    def observe(self, input: Tensor) -> None:
        """Add ``input``, ``[..., K]``, if it is finite."""
        if input.numel() == 0 or input.shape[-1] != self._features:
            return  # the layer itself raises the error of a wrong shape
        input = input.detach()
        if self.matrix is None:
            size = [self._features] * self._axes
            self.matrix = torch.zeros(size, dtype=self._dtype, device=input.device)
        is_finite = self.begin(input)
        rows = input.reshape(-1, self._features).to(self.matrix)
        with torch.autocast(rows.device.type, enabled=False):
            self._add(*self.near_one(self._as_multiplied(torch.where(is_finite, rows, 0.0))))

    def _add(self, rows: Tensor, change: Tensor) -> None:
        assert self.matrix is not None
        self.matrix.mul_(change.square()).addmm_(rows.t(), rows)


def rounded(
    rows: Tensor,
    hessian: Tensor,
    quantizer: FakeQuantize | FakeQuantizeInt4,
    *,
    searches: bool,
    damping: float,
    act_order: bool,
    block: int = _BLOCK,
) -> tuple[Integers | Int4Integers, float]:
    """Return the integers of a weight, and the damping that sufficed.

    An input that is always 0 has no part in the sums, and its column is rounded to nearest.

    Args:
        rows: The weight, ``[N, K]``.
        hessian: ``X^T X`` of its inputs, ``[K, K]``, or any multiple of it.
        quantizer: The dynamic quantizer of the weight.
        searches: Whether to search the scales, as ``FakeQuantize.fitted`` does.
        damping: What is added to the diagonal, as a share of its mean.
        act_order: Whether to round the columns in the order of the falling diagonal.
        block: The number of columns that are corrected at once.

    Raises:
        ValueError: No damping makes the Hessian positive definite, or it is not finite.
    """
    compute = compute_dtype(rows.dtype)
    hessian = hessian.to(rows.device, torch.float64)
    columns = rows.t().to(torch.float64).contiguous()  # [K, N]
    order = torch.arange(len(columns), device=rows.device)
    if act_order:
        order = hessian.diagonal().argsort(descending=True, stable=True)
        columns, hessian = columns[order], hessian[order][:, order]
    factor, used = inverse_factor(hessian, damping)
    rows = rows.to(compute)
    grid = (
        FactorGrid(rows, quantizer, searches, fixed=act_order)
        if isinstance(quantizer, FakeQuantizeInt4)
        else Grid(rows, quantizer, searches, fixed=act_order)
    )
    integers = torch.empty(columns.shape, dtype=torch.int8, device=rows.device)
    places = order.tolist()
    for start, stop in _blocks(len(columns), grid.size, block):
        errors = torch.empty_like(columns[start:stop])
        for j in range(start, stop):
            if grid.follows and j % grid.size == 0:
                grid.find(j // grid.size, columns[j : j + grid.size].t().to(compute))
            integers[j], value = grid.quantize(places[j] // grid.size, columns[j].to(compute))
            error = (columns[j] - value) / factor[j, j]
            # On the CPU addmm_ is far faster than addr_.
            columns[j + 1 : stop].addmm_(factor[j, j + 1 : stop, None], error[None], alpha=-1)
            errors[j - start] = error
        columns[stop:].addmm_(factor[start:stop, stop:].t(), errors, alpha=-1)
    result = torch.empty_like(integers)
    result[order] = integers
    return grid.integers(result.t().contiguous()), used


def _blocks(columns: int, size: int, block: int) -> Iterator[tuple[int, int]]:
    """Return the ends of blocks of columns.

    A group begins with a block or lies within one. So its columns have all corrections when its
    scales are found.
    """
    whole = size if size > block else block // size * size
    for outer in range(0, columns, whole):
        end = min(outer + whole, columns)
        for start in range(outer, end, block):
            yield start, min(start + block, end)


def inverse_factor(hessian: Tensor, damping: float) -> tuple[Tensor, float]:
    """Return the upper triangular ``U`` with ``U^T U = (H + d mean(diag H) I)^-1``, and ``d``.

    The Hessian is ``[K, K]``, float64. Columns of a zero diagonal are replaced by those of ``I``,
    and have no part in the mean. Where the given damping does not suffice, ``d`` is a larger one.

    Raises:
        ValueError: No damping up to 1 suffices, or the Hessian is not finite.
    """
    diagonal = hessian.diagonal()
    is_dead = diagonal == 0
    mean = diagonal.sum() / (~is_dead).sum().clamp_min(1)
    if not bool(hessian.isfinite().all()):
        raise ValueError(
            "expected a finite Hessian, but rotating or rounding the inputs overflows; scale the "
            "calibration data, or leave the layer out with filter_fn"
        )
    tried = damping
    while True:
        damped = torch.where(is_dead, 1.0, diagonal + tried * mean)
        # With the rows and columns in reverse order, the lower factor of Cholesky becomes an upper
        # one: H = M M^T, so that U = M^-1.
        matrix = hessian.clone()
        matrix.diagonal().copy_(damped)
        lower, failed = torch.linalg.cholesky_ex(matrix.flip(0, 1))
        if not bool(failed):
            break
        tried = max(tried * _FACTOR, _LEAST_DAMPING)
        if tried > _MOST_DAMPING:
            raise ValueError(
                "expected the Hessian of the inputs to be positive definite, but it is not, with "
                f"damping {damping:g} and with larger ones up to {_MOST_DAMPING:g}; pass more "
                "calibration data, or leave the layer out with filter_fn"
            )
    one = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    return torch.linalg.solve_triangular(lower.flip(0, 1), one, upper=True), tried


class Grid:
    """The scales and zero points of a weight, one pair for each row and group.

    Args:
        rows: The weight, ``[N, K]``, in the dtype of the scales.
        quantizer: The dynamic quantizer of the weight.
        searches: Whether to search the scales, or the factors.
        fixed: Whether to find those of groups now, from the weight itself.

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
        quantizer = self._quantizer
        if self._searches:
            return quantizer.searched_qparams(rows)[:2]
        return quantizer.qparams_of_rows(rows)

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
            quantizer.searched_factors(rows)
            if searches and fixed
            else ops.choose_int4_qparams(
                rows, self.size, symmetric=quantizer.symmetric, bits=quantizer.bits
            )
        )

    def find(self, group: int, rows: Tensor) -> None:
        """Find the factors of a group from its corrected values, ``[N, size]``."""
        _, factor, zero_point = self._quantizer.searched_factors(rows, self._scale)
        self._factor[:, group], self._zero_point[:, group] = factor[:, 0], zero_point[:, 0]

    def quantize(self, group: int, column: Tensor) -> tuple[Tensor, Tensor]:
        """Return a column ``[N]`` of a group as numbers in [0, 15], and what they stand for."""
        factor, zero_point = self._factor[:, group, None], self._zero_point[:, group, None]
        # A group of two columns, the second of which is not used.
        packed = ops.quantize_int4(
            column[:, None],
            self._scale,
            factor,
            2,
            group_zero_point=zero_point,
            bits=self._quantizer.bits,
        )
        weights = ops.expand_int4(packed, factor, 2, 1, group_zero_point=zero_point)[:, 0]
        return (packed[:, 0] & 15).to(torch.int8), weights.to(torch.float64) * self._scale

    def integers(self, numbers: Tensor) -> Int4Integers:
        """Return the numbers packed, with scales, factors and zero points."""
        return Int4Integers(ops.pack_int4(numbers - 8), self._scale, self._factor, self._zero_point)
