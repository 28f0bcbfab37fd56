# SPDX-License-Identifier: BSD-3-Clause
"""A floating input times a weight of integers in NumPy, independent of the reference.

y = T(sum over k of x[t, k] * w^[n, k] + b[n]),  w^ = T((C(q) - C(z)) * s)

w^ is exact, bit for bit. The sums are those of a wider dtype. As the op adds in C in any order, a
result may be off by (K + 2) eps(C) (sum |x| |w^| + |b|) and by its roundings to T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.support.bits import same_bits, to_numpy
from tests.support.cases import INT32_MAX, INT32_MIN
from tests.support.oracle.affine import round_to


def _saturated(zero_point: Tensor) -> np.ndarray:
    """As int64; what int32 cannot hold becomes its nearest end (an uint64 has no int64)."""
    values = to_numpy(zero_point).reshape(-1).tolist()
    clamped = [min(max(value, INT32_MIN), INT32_MAX) for value in values]
    return np.array(clamped, np.int64).reshape(tuple(zero_point.shape))


def dequantized(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int | None,
    dtype: torch.dtype,
) -> np.ndarray:
    """w^, in NumPy's form of the dtype (bfloat16 as float32): [N, K]."""
    q, s = to_numpy(weight), to_numpy(scale)
    compute = s.dtype
    z = np.zeros(s.shape, np.int64) if zero_point is None else _saturated(zero_point)
    group = np.zeros(q.shape[1], np.int64)
    if group_size is not None:
        group = np.arange(q.shape[1]) // group_size
    s, z = (a.reshape(q.shape[0], *s.shape[1:] or (1,))[:, group] for a in (s, z))
    with np.errstate(all="ignore"):
        return round_to((q.astype(compute) - z.astype(compute)) * s, dtype)


class Expected(NamedTuple):
    """The sums, unrounded, and how far C-accumulation may be from them: each [T, N].

    Attributes:
        exact: In float64, or NumPy's longdouble for float64.
        bound: Of the sum, before its rounding to the dtype.
        dtype: That of the result.
        roundings: To the dtype, at most.
    """

    exact: np.ndarray
    bound: np.ndarray
    dtype: torch.dtype
    roundings: int

    def rows(self, count: int) -> Expected:
        """The first rows."""
        return self._replace(exact=self.exact[:count], bound=self.bound[:count])


def linear(x: Tensor, weight: np.ndarray, bias: Tensor | None = None) -> Expected:
    """Of an input [T, K] and the dequantized weight [N, K]."""
    wide = np.longdouble if x.dtype == torch.float64 else np.float64
    compute = np.finfo(np.float64 if x.dtype == torch.float64 else np.float32)
    a, w = to_numpy(x).astype(wide), weight.astype(wide).T
    b = np.zeros(weight.shape[0], wide) if bias is None else to_numpy(bias).astype(wide)
    with np.errstate(all="ignore"):
        exact = a @ w + b
        magnitude = np.abs(a) @ np.abs(w) + np.abs(b)
        terms = weight.shape[1] + 2
        own = terms * float(np.finfo(wide).eps)
        bound = terms * (magnitude * (float(compute.eps) + own) + float(compute.smallest_subnormal))
        # Sums that may leave C's range on the way may come out as anything.
        bound = np.where(magnitude > float(compute.max) / 2, np.inf, bound)
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    return Expected(exact, bound, x.dtype, 2 if narrow and bias is not None else 1)


def _step(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The distance of the dtype's numbers at a magnitude."""
    info = torch.finfo(dtype)
    size = np.minimum(np.abs(value), info.max).astype(np.float64)
    exponent = np.frexp(np.maximum(size, info.smallest_normal))[1]
    return np.ldexp(np.full(size.shape, info.eps), exponent - 1)


def assert_close(actual: Tensor, expected: Expected, note: str = "") -> None:
    """Within the bound and the roundings; what is not finite is the same."""
    assert actual.dtype == expected.dtype, note
    got = to_numpy(actual).reshape(-1, actual.shape[-1])
    exact, bound = expected.exact, expected.bound
    assert got.shape == exact.shape, f"{note} shape {got.shape} for {exact.shape}"
    with np.errstate(all="ignore"):
        largest = np.abs(exact) + bound
        slack = bound + expected.roundings * _step(largest, expected.dtype) / 2
        error = np.abs(got.astype(exact.dtype) - exact)
        limit = float(torch.finfo(expected.dtype).max)
        # Beyond the largest number, or so near to it that a rounding may go there.
        overflows = np.isinf(got) & (np.sign(got) == np.sign(exact)) & (largest >= limit)
    special = ~np.isfinite(exact)
    as_special = same_bits(actual.reshape(got.shape), round_to(exact, expected.dtype))
    # An infinite bound is one of finite numbers alone: with an infinity among them, the sum has it.
    good = np.where(special, as_special, (error <= slack) | overflows | np.isinf(bound))
    if not good.all():
        first = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(
            f"{note} {(~good).sum()} of {good.size} are off, first at {first}: got {got[first]!r}, "
            f"expected {exact[first]!r} within {slack[first]!r}"
        )
