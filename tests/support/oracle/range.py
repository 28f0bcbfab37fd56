# SPDX-License-Identifier: BSD-3-Clause
"""The contract's range family in NumPy: scale and zero point from the data, running ranges.

What is done with a scale and zero point is `oracle.Affine`'s; here is where they come from. One
step of the contract is one NumPy call in the compute type C.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import to_numpy
from tests.support.cases import Granularity
from tests.support.oracle import affine as oracle
from tests.support.oracle.affine import Affine

Pair = tuple[np.ndarray, np.ndarray]


def extremes(x: np.ndarray, granularity: Granularity) -> Pair:
    """Minimum and maximum of each segment, NaN propagating; (inf, -inf) where it has no element."""
    with np.errstate(all="ignore"):
        low = _reduce(np.minimum, x, granularity, np.inf)
        return low, _reduce(np.maximum, x, granularity, -np.inf)


def signed_extremes(x: np.ndarray, granularity: Granularity) -> Pair:
    """The same where -0 is less than +0, so that their bits do not depend on an order."""
    low, high = extremes(x, granularity)
    with np.errstate(all="ignore"):
        sign = np.copysign(x.dtype.type(1), x)
        low_sign = _reduce(np.minimum, np.where(x == 0, sign, 1), granularity, 1)
        high_sign = _reduce(np.maximum, np.where(x == 0, sign, -1), granularity, -1)
        low = np.where(low == 0, np.copysign(low, low_sign), low)
        return low, np.where(high == 0, np.copysign(high, high_sign), high)


def _reduce(f: np.ufunc, x: np.ndarray, granularity: Granularity, start: float) -> np.ndarray:
    if granularity.kind == "per_tensor":
        return np.asarray(f.reduce(x.reshape(-1), initial=start), x.dtype)
    axis = granularity.axis % x.ndim
    if granularity.kind == "per_channel":
        others = tuple(d for d in range(x.ndim) if d != axis)
        return np.asarray(f.reduce(x, axis=others, initial=start), x.dtype)
    if granularity.kind == "per_token":
        return f.reduce(x, axis=-1, keepdims=True, initial=start)
    firsts = list(range(0, x.shape[axis], granularity.group_size))
    if not firsts:  # reduceat wants at least one
        return np.zeros(granularity.param_shape(x.shape), x.dtype)
    return f.reduceat(x, firsts, axis=axis)


def qparams(low: np.ndarray, high: np.ndarray, ends: tuple[int, int], symmetric: bool) -> Pair:
    """Scale (in C, the arrays' dtype) and zero point (int32) of data between `low` and `high`."""
    quant_min, quant_max = ends
    c = low.dtype.type
    low, high = np.minimum(low, c(0)), np.maximum(high, c(0))
    with np.errstate(all="ignore"):
        if symmetric:
            middle = (quant_min + quant_max + 1) // 2
            scale = np.maximum(-low, high) / c(quant_max - middle)
        else:
            scale = (c(0.5) * high - c(0.5) * low) / (c(0.5) * c(quant_max - quant_min))
        smallest = np.finfo(low.dtype).smallest_normal
        scale = np.where(scale < smallest, smallest, scale)  # a NaN stays
        scale = np.where((low == 0) & (high == 0), c(1), scale).astype(low.dtype)
        if symmetric:
            return scale, np.full(scale.shape, middle, np.int32)
        point = np.clip(c(quant_min) - np.rint(low / scale), c(quant_min), c(quant_max))
        point = np.where(np.isnan(point), c(quant_min), point)
    return scale, point.astype(np.int32)


class Dynamic(Affine):
    """What the contract says of one input and range when the scale comes from the input.

    Attributes: those of `Affine`, of which `scale` and `zero_point` are the chosen ones.
    """

    def __init__(
        self,
        x: Tensor,
        granularity: Granularity,
        quant_min: int = -128,
        quant_max: int = 127,
        symmetric: bool = True,
    ) -> None:
        compute = oracle.numpy_dtype(x.dtype)
        low, high = extremes(to_numpy(x).astype(compute), granularity)
        scale, point = qparams(low, high, (quant_min, quant_max), symmetric)
        tensors = torch.from_numpy(scale), torch.from_numpy(point)
        super().__init__(x, *tensors, granularity, quant_min, quant_max)
        self.symmetric = symmetric

    def dynamic_backward(self, grad: Tensor) -> np.ndarray:
        """Symmetric scales do not clip, so the gradient is the incoming one."""
        return to_numpy(grad) if self.symmetric else self.fake_quantize_backward(grad)


def known_range(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Whether these are the ends of a range, and not of nothing or of something poisoned."""
    return np.isfinite(low) & np.isfinite(high) & (low <= high)


def average(old: np.ndarray, new: np.ndarray, c: np.floating) -> np.ndarray:
    """A share of the way, by another sum where the way is too long for a number."""
    way = new - old
    return np.where(np.isfinite(way), old + c * way, (old.dtype.type(1) - c) * old + c * new)


class Observed(NamedTuple):
    """A running range, in C, and how many batches some channel of it took no part of."""

    low: np.ndarray
    high: np.ndarray
    skipped: int = 0

    @classmethod
    def nothing(cls, channels: int | None, compute: torch.dtype) -> Observed:
        shape, dtype = () if channels is None else (channels,), oracle.numpy_dtype(compute)
        return cls(np.full(shape, np.inf, dtype), np.full(shape, -np.inf, dtype))

    def after(self, x: Tensor, axis: int | None, averaging_constant: float | None) -> Observed:
        """The range once `x` was observed too."""
        if x.numel() == 0:
            return self
        granularity = cases.PER_TENSOR if axis is None else cases.per_channel(axis)
        low, high = signed_extremes(to_numpy(x).astype(self.low.dtype), granularity)
        taken, known = known_range(low, high), known_range(self.low, self.high)
        with np.errstate(all="ignore"):
            if averaging_constant is None:  # the running one where both are equal
                keep = ~(low < self.low), ~(high > self.high)
                found = np.where(keep[0], self.low, low), np.where(keep[1], self.high, high)
            elif (c := low.dtype.type(averaging_constant)) == 1:  # the last batch, exactly
                found = low, high
            else:
                found = average(self.low, low, c), average(self.high, high, c)
        ends = zip((self.low, self.high), (low, high), found, strict=True)
        chosen = (np.where(taken, np.where(known, to, new), old) for old, new, to in ends)
        skipped = self.skipped + int(not taken.all())
        return Observed(*(array.astype(low.dtype) for array in chosen), skipped)

    def qparams(self, ends: tuple[int, int], symmetric: bool, before: Pair) -> Pair:
        """Those that the data {low, high} would have; those from `before` where there is none."""
        known = known_range(self.low, self.high)
        chosen = qparams(self.low, self.high, ends, symmetric)
        pairs = zip(chosen, before, strict=True)
        scale, point = (np.where(known, new, old.reshape(known.shape)) for new, old in pairs)
        return scale.reshape(before[0].shape), point.reshape(before[1].shape)
