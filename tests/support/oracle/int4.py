# SPDX-License-Identifier: BSD-3-Clause
"""Weights of four bits in NumPy, independent of the reference.

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


def _of_elements(groups: np.ndarray, columns: int, group_size: int) -> np.ndarray:
    """That of each element's group, as whole numbers."""
    return groups.astype(np.int64)[:, np.arange(columns) // group_size]


def quantize(weight: Tensor, q: Qparams, group_size: int) -> np.ndarray:
    """The numbers of four bits, not packed."""
    w = _numbers(weight)
    f, z = (_of_elements(t, w.shape[1], group_size) for t in (q.factor, q.zero_point))
    with np.errstate(all="ignore"):
        v = np.rint(w / (q.scale[:, None] * f.astype(w.dtype))) + z.astype(w.dtype)
        products = (np.arange(16)[:, None, None] - z) * f
        fits = (products >= -128) & (products <= 127)
        first, last = fits.argmax(0), 15 - fits[::-1].argmax(0)
        return np.where(np.isnan(v), z, np.clip(v, first, last)).astype(np.uint8)


def packed(u: np.ndarray) -> np.ndarray:
    even = np.pad(u, ((0, 0), (0, u.shape[1] % 2)))
    return even[:, ::2] | even[:, 1::2] << 4


def expanded(u: np.ndarray, q: Qparams, group_size: int) -> np.ndarray:
    f, z = (_of_elements(t, u.shape[1], group_size) for t in (q.factor, q.zero_point))
    return (u.astype(np.int64) - z) * f
