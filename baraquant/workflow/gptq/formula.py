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

from ...nn import FakeQuantize, FakeQuantizeInt4
from ...nn.training._quantizers import Int4Integers, Integers
from ..calibration.finite import FiniteCalls, NearOne
from .grids import grid_of

# Columns that are corrected at once. It changes the time, and of the result at most a tie.
_BLOCK = 128

# The damping that is tried after one that does not suffice, and the factor to the next one.
_LEAST_DAMPING, _FACTOR, _MOST_DAMPING = 1e-6, 10.0, 1.0


class Hessian:
    """Adds up ``X^T X`` of one layer's inputs, and keeps nothing else.

    The inputs are multiplied by a power of two, as :class:`NearOne` does.

    Args:
        features: The number K of inputs.
        dtype: The dtype of the sum, float32 or float64.
        as_multiplied: Returns what the layer multiplies, for rows of an input in ``dtype``.
        known: The number of skipped inputs that a warning has named already.

    Attributes:
        matrix: The sum, ``[K, K]``; None if no input was seen.
        near_one: Has the power of two.
    """

    def __init__(
        self,
        features: int,
        dtype: torch.dtype,
        as_multiplied: Callable[[Tensor], Tensor] = lambda rows: rows,
        known: int = 0,
    ) -> None:
        self._features, self._dtype = features, dtype
        self._as_multiplied, self._known = as_multiplied, known
        self._calls = FiniteCalls()
        self.near_one = NearOne()
        self.matrix: Tensor | None = None

    def observe(self, input: Tensor) -> None:
        """Add ``input``, ``[..., K]``, if it is finite."""
        if input.numel() == 0 or input.shape[-1] != self._features:
            return  # the layer itself raises the error of a wrong shape
        input = input.detach()
        if self.matrix is None:
            size = (self._features, self._features)
            self.matrix = torch.zeros(size, dtype=self._dtype, device=input.device)
        is_finite = self._calls.begin(input)
        rows = input.reshape(-1, self._features).to(self.matrix)
        with torch.autocast(rows.device.type, enabled=False):
            self._add(*self.near_one(self._as_multiplied(torch.where(is_finite, rows, 0.0))))

    def _add(self, rows: Tensor, change: Tensor) -> None:
        assert self.matrix is not None
        self.matrix.mul_(change.square()).addmm_(rows.t(), rows)

    def unusable(self) -> Tensor | None:
        """Return whether no finite input was seen; None if no input was seen."""
        return self._calls.unusable()

    @property
    def skipped_batches(self) -> Tensor | None:
        """The number of ignored inputs beyond the known ones; None if no input was seen."""
        skipped = self._calls.skipped_batches
        return None if skipped is None else skipped - self._known


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
        searches: Whether to search the scales, as :func:`fit_scale` does.
        damping: What is added to the diagonal, as a share of its mean.
        act_order: Whether to round the columns in the order of the falling diagonal.
        block: The number of columns that are corrected at once.

    Raises:
        ValueError: No damping makes the Hessian positive definite, or it is not finite.
    """
    compute = torch.float64 if rows.dtype == torch.float64 else torch.float32
    hessian = hessian.to(rows.device, torch.float64)
    columns = rows.t().to(torch.float64).contiguous()  # [K, N]
    order = torch.arange(len(columns), device=rows.device)
    if act_order:
        order = hessian.diagonal().argsort(descending=True, stable=True)
        columns, hessian = columns[order], hessian[order][:, order]
    factor, used = inverse_factor(hessian, damping)
    grid = grid_of(rows.to(compute), quantizer, searches, fixed=act_order)
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


def check_finite(hessian: Tensor) -> None:
    """Raise a ValueError unless a Hessian is finite."""
    if not bool(hessian.isfinite().all()):
        raise ValueError(
            "expected a finite Hessian, but rotating or rounding the inputs overflows; scale the "
            "calibration data, or leave the layer out with filter_fn"
        )


def inverse_factor(hessian: Tensor, damping: float) -> tuple[Tensor, float]:
    """Return the upper triangular ``U`` with ``U^T U = (H + damping mean(diag H) I)^-1``.

    Args:
        hessian: ``[K, K]``, float64. Columns of a zero diagonal are replaced by those of ``I``.
        damping: The share of the mean of the other diagonal elements. If it does not suffice,
            larger ones are tried.

    Returns:
        ``U``, ``[K, K]``, and the damping that sufficed.

    Raises:
        ValueError: No damping up to 1 suffices, or the Hessian is not finite.
    """
    diagonal = hessian.diagonal()
    is_dead = diagonal == 0
    mean = diagonal.sum() / (~is_dead).sum().clamp_min(1)
    check_finite(hessian)
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
