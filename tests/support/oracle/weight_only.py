# SPDX-License-Identifier: BSD-3-Clause
"""A floating input times a weight of integers in NumPy, independent of the reference.

y = T(sum over k of x[t, k] * w^[n, k] + b[n]),  w^ = T((C(q) - C(z)) * s)

w^ is exact, bit for bit. The sums are those of a wider dtype. As the op adds in C in any order, a
result may be off by (K + 2) eps(C) (sum |x| |w^| + |b|) and by its rounding to T; with a bias, one
of 16 bits by that of the product too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.support.bits import to_numpy
from tests.support.cases import INT32_MAX, INT32_MIN
from tests.support.oracle.affine import round_to


def saturated(zero_point: Tensor) -> np.ndarray:
    """As int64; what int32 cannot hold becomes its nearest end (an uint64 has no int64)."""
    values = to_numpy(zero_point).reshape(-1).tolist()
    clamped = [min(max(value, INT32_MIN), INT32_MAX) for value in values]
    return np.array(clamped, np.int64).reshape(tuple(zero_point.shape))


def unpacked(packed: Tensor, columns: int) -> Tensor:
    """The integers of bytes that hold two each, the first in the low bits: int8 [N, columns]."""
    pairs = np.stack([to_numpy(packed) & 15, to_numpy(packed) >> 4], axis=2)
    numbers = pairs.reshape(len(pairs), 2 * packed.shape[1])[:, :columns]
    return torch.from_numpy(numbers.astype(np.int8) - np.int8(8))


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
    z = np.zeros(s.shape, np.int64) if zero_point is None else saturated(zero_point)
    group = np.zeros(q.shape[1], np.int64)
    if group_size is not None:
        group = np.arange(q.shape[1]) // group_size
    s, z = (a.reshape(q.shape[0], *s.shape[1:] or (1,))[:, group] for a in (s, z))
    with np.errstate(all="ignore"):
        return round_to((q.astype(compute) - z.astype(compute)) * s, dtype)


class Expected(NamedTuple):
    """The sums, unrounded, and how far C-accumulation may be from them: each [T, N].

    Attributes:
        exact: With the bias; in float64, or NumPy's longdouble for float64.
        product: Without it.
        bound: How far from `exact`, before the rounding to the dtype; infinite where a sum may
            leave the range of C on its way, and so come out as anything.
        dtype: That of the result.
        twice: Whether the product may be rounded to the dtype before the bias is added.
    """

    exact: np.ndarray
    product: np.ndarray
    bound: np.ndarray
    dtype: torch.dtype
    twice: bool

    def rows(self, count: int) -> Expected:
        """The first rows."""
        first = {name: getattr(self, name)[:count] for name in ("exact", "product", "bound")}
        return self._replace(**first)


def linear(x: Tensor, weight: np.ndarray, bias: Tensor | None = None) -> Expected:
    """Of an input [T, K] and the dequantized weight [N, K]."""
    wide = np.longdouble if x.dtype == torch.float64 else np.float64
    compute = np.finfo(np.float64 if x.dtype == torch.float64 else np.float32)
    terms = weight.shape[1] + 2
    a, w = to_numpy(x).astype(wide), weight.astype(wide).T
    b = np.zeros(weight.shape[0], wide) if bias is None else to_numpy(bias).astype(wide)
    with np.errstate(all="ignore"):
        product = a @ w
        exact = product + b
        a, w, c = (np.where(np.isfinite(t), np.abs(t), 0) for t in (a, w, b))
        magnitude = a @ w + c
        eps = float(compute.eps) + float(np.finfo(wide).eps)  # the oracle's own error too
        least = float(compute.smallest_subnormal)
        flushed = np.zeros_like(magnitude)
        if x.dtype == torch.bfloat16:  # whose product in AVX-512 takes subnormal numbers for zeros
            least = float(compute.smallest_normal)
            small, weak = (np.where(t < least, t, 0) for t in (a, w))
            flushed = small @ w + a @ weak
        bound = terms * (magnitude * eps + least) + flushed
        bound = np.where(magnitude > float(compute.max) / 2, np.inf, bound)
    twice = bias is not None and x.dtype in (torch.float16, torch.bfloat16)
    return Expected(exact, product, bound, x.dtype, twice)


def _half_step(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """What rounding to the dtype adds at a magnitude, at most."""
    info = torch.finfo(dtype)
    size = np.clip(value, info.smallest_normal, info.max).astype(np.float64)
    return np.ldexp(np.full(size.shape, info.eps / 2), np.frexp(size)[1] - 1)


def assert_close(actual: Tensor, expected: Expected, note: str = "") -> None:
    """Within the bound and the roundings; what is not finite is the same."""
    assert actual.dtype == expected.dtype, note
    got, limit = to_numpy(actual), float(torch.finfo(expected.dtype).max)
    exact, bound = expected.exact, expected.bound
    got = got.reshape(-1, exact.shape[1])
    assert got.shape == exact.shape, f"{note} shape {got.shape} for {exact.shape}"
    with np.errstate(all="ignore"):
        largest = np.abs(exact) + bound
        slack = bound + _half_step(largest, expected.dtype)
        good = np.abs(got.astype(exact.dtype) - exact) <= slack
        # Beyond the largest number, or so near to it that a rounding may go there.
        good |= np.isinf(got) & (np.sign(got) == np.sign(exact)) & (largest >= limit)
        if expected.twice:
            first = np.abs(expected.product) + bound
            slack = slack + _half_step(first, expected.dtype)
            good = good | (np.abs(got.astype(exact.dtype) - exact) <= slack)
            good |= ~np.isfinite(got) & (first >= limit)
    as_special = np.where(np.isnan(exact), np.isnan(got), got == exact)
    good = np.where(np.isfinite(exact), good, as_special) | (np.isinf(bound) & ~np.isnan(exact))
    if not good.all():
        first = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(
            f"{note} {(~good).sum()} of {good.size} are off, first at {first}: got {got[first]!r}, "
            f"expected {exact[first]!r} within {slack[first]!r}"
        )
