# SPDX-License-Identifier: BSD-3-Clause
"""Weights of 2 to 4 bits in NumPy, independent of the reference.

scale = max |w| / 112 of a row (1 for zeros, at least the smallest normal number)
f = ceil((max |w| / 7) / scale) of a group, or ceil((high / 15 - low / 15) / scale)
u = clamp(rint(w / (scale * f)) + z, 0, 15), where (u - z) * f fits into int8

That is for four bits; ENDS has the least and the largest u for each width.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from tests.support.bits import to_numpy
from tests.support.cases import per_group
from tests.support.oracle.range import extremes

ENDS = {2: (6, 9), 3: (4, 11), 4: (0, 15)}


class Qparams(NamedTuple):
    scale: np.ndarray
    factor: np.ndarray
    zero_point: np.ndarray


def _numbers(weight: Tensor) -> np.ndarray:
    x = to_numpy(weight)
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _clamped(x: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.where(np.isnan(x), low, x), low, high).astype(np.uint8)


def choose(weight: Tensor, group_size: int, symmetric: bool, bits: int = 4) -> Qparams:
    w = _numbers(weight)
    c = w.dtype.type
    (first, last), most = ENDS[bits], ENDS[bits][1] - 8
    low, high = extremes(w, per_group(group_size, 1))
    with np.errstate(all="ignore"):
        low, high = np.minimum(low, c(0)), np.maximum(high, c(0))
        amax = np.abs(w).max(1, initial=0)
        scale = np.where(amax == 0, c(1), np.maximum(amax / c(16 * most), np.finfo(w.dtype).tiny))
        of_row = scale[:, None]
        span = c(last - first)
        steps = np.maximum(-low, high) / c(most) if symmetric else high / span - low / span
        factor = _clamped(np.ceil(steps / of_row), 1, 16)
        zero_point = np.rint(-low / (of_row * factor.astype(w.dtype))) + first
        zero_point = _clamped(zero_point, first, last)
    return Qparams(scale, factor, np.full_like(factor, 8) if symmetric else zero_point)


def _of_elements(groups: np.ndarray, columns: int, group_size: int) -> np.ndarray:
    """That of each element's group, as whole numbers."""
    return groups.astype(np.int64)[:, np.arange(columns) // group_size]


def quantize(weight: Tensor, q: Qparams, group_size: int, bits: int = 4) -> np.ndarray:
    """The numbers of four bits, not packed."""
    w = _numbers(weight)
    f, z = (_of_elements(t, w.shape[1], group_size) for t in (q.factor, q.zero_point))
    with np.errstate(all="ignore"):
        v = np.rint(w / (q.scale[:, None] * f.astype(w.dtype))) + z.astype(w.dtype)
        numbers = np.arange(16)[:, None, None]
        products = (numbers - z) * f
        fits = (products >= -128) & (products <= 127)
        fits &= (numbers >= ENDS[bits][0]) & (numbers <= ENDS[bits][1])
        first, last = fits.argmax(0), 15 - fits[::-1].argmax(0)
        return np.clip(np.where(np.isnan(v), z, v), first, last).astype(np.uint8)


def has_numbers(q: Qparams, bits: int) -> bool:
    """Whether each group has a number of this width that fits into int8."""
    numbers = np.arange(ENDS[bits][0], ENDS[bits][1] + 1)[:, None, None]
    products = (numbers - q.zero_point.astype(np.int64)) * q.factor.astype(np.int64)
    return bool(((products >= -128) & (products <= 127)).any(0).all())


def packed(u: np.ndarray) -> np.ndarray:
    even = np.pad(u, ((0, 0), (0, u.shape[1] % 2)))
    return even[:, ::2] | even[:, 1::2] << 4


def expanded(u: np.ndarray, q: Qparams, group_size: int) -> np.ndarray:
    f, z = (_of_elements(t, u.shape[1], group_size) for t in (q.factor, q.zero_point))
    return (u.astype(np.int64) - z) * f
