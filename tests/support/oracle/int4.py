# SPDX-License-Identifier: BSD-3-Clause
"""Weights of four bits in NumPy, element by element, independent of the reference.

scale = max |w| / 112 of a row (1 for zeros, at least the smallest normal number)
f = ceil((max |w| / 7) / scale) of a group, or ceil((high / 15 - low / 15) / scale)
u = clamp(rint(w / (scale * f)) + z, 0, 15), where (u - z) * f fits into int8
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tests.support.bits import to_numpy


class Qparams(NamedTuple):
    scale: np.ndarray
    factor: np.ndarray
    zero_point: np.ndarray


def _numbers(weight: Tensor) -> np.ndarray:
    x = to_numpy(weight)
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _clamped(x: float, low: int, high: int) -> int:
    return low if math.isnan(x) or x < low else high if x > high else int(x)


def choose(weight: Tensor, group_size: int, symmetric: bool) -> Qparams:
    w = _numbers(weight)
    compute = w.dtype.type
    rows, columns = w.shape
    groups = math.ceil(columns / group_size)
    scale = np.ones(rows, w.dtype)
    factor = np.zeros((rows, groups), np.uint8)
    zero_point = np.zeros((rows, groups), np.uint8)
    with np.errstate(all="ignore"):
        for n in range(rows):
            amax = compute(np.abs(w[n]).max(initial=0))
            if amax != 0:
                scale[n] = np.maximum(amax / compute(112), np.finfo(w.dtype).tiny)
            for g in range(groups):
                part = w[n, g * group_size : (g + 1) * group_size]
                low, high = compute(part.min(initial=0)), compute(part.max(initial=0))
                if symmetric:
                    steps = compute(np.abs(part).max(initial=0)) / compute(7) / scale[n]
                else:
                    steps = (high / compute(15) - low / compute(15)) / scale[n]
                f = _clamped(float(np.ceil(steps)), 1, 16)
                z = 8
                if not symmetric:
                    z = _clamped(float(np.rint(-low / (scale[n] * compute(f)))), 0, 15)
                factor[n, g], zero_point[n, g] = f, z
    return Qparams(scale, factor, zero_point)


def quantize(weight: Tensor, q: Qparams, group_size: int) -> np.ndarray:
    """The numbers of four bits, not packed."""
    w = _numbers(weight)
    compute = w.dtype.type
    u = np.zeros(w.shape, np.uint8)
    with np.errstate(all="ignore"):
        for n, k in np.ndindex(*w.shape):
            f, z = int(q.factor[n, k // group_size]), int(q.zero_point[n, k // group_size])
            v = np.rint(w[n, k] / (q.scale[n] * compute(f))) + compute(z)
            fits = [i for i in range(16) if -128 <= (i - z) * f <= 127]
            u[n, k] = z if np.isnan(v) else int(min(max(v, fits[0]), fits[-1]))
    return u


def packed(u: np.ndarray) -> np.ndarray:
    rows, columns = u.shape
    result = np.zeros((rows, (columns + 1) // 2), np.uint8)
    for n, k in np.ndindex(*u.shape):
        result[n, k // 2] |= u[n, k] << 4 * (k % 2)
    return result


def expanded(u: np.ndarray, q: Qparams, group_size: int) -> np.ndarray:
    result = np.zeros(u.shape, np.int64)
    for n, k in np.ndindex(*u.shape):
        g = k // group_size
        result[n, k] = (int(u[n, k]) - int(q.zero_point[n, g])) * int(q.factor[n, g])
    return result
