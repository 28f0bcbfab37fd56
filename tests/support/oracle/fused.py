# SPDX-License-Identifier: BSD-3-Clause
"""The contract's norms and rotation in NumPy, written along the text of the contract.

The activations have no oracle here: their exact values are known, and tests/fused/test_accuracy.py
compares with those.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import to_numpy

MAX_LANES = 4096


def sum_of_rows(values: np.ndarray) -> np.ndarray:
    """The sums along the last axis of float64 numbers: lane by lane, then neighbours in pairs."""
    *rows, length = values.shape
    lanes = min(1 << max(length - 1, 0).bit_length(), MAX_LANES)
    padded = np.pad(values, [*[(0, 0)] * len(rows), (0, -length % lanes)])
    sums = np.zeros((*rows, lanes))
    for part in np.moveaxis(padded.reshape(*rows, padded.shape[-1] // lanes, lanes), -2, 0):
        sums = sums + part
    while sums.shape[-1] > 1:
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums


def compute(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor in its compute type."""
    dtype = np.float64 if tensor.dtype == torch.float64 else np.float32
    return to_numpy(tensor).astype(dtype)


def rounded(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    """One rounding to the dtype."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def added(input: Tensor, residual: Tensor | None) -> Tensor:
    if residual is None:
        return input
    with np.errstate(all="ignore"):
        return rounded(compute(input) + compute(residual), input.dtype)


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centered: bool
) -> Tensor:
    """rms_norm, or layer_norm if centered."""
    values = compute(x)
    c = values.dtype.type
    length = np.float64(x.shape[-1])
    with np.errstate(all="ignore"):
        mean = np.zeros_like(values[..., :1])
        if centered:
            mean = (sum_of_rows(values.astype(np.float64)) / length).astype(c)
        squares = (values - mean).astype(np.float64) ** 2
        variance = (sum_of_rows(squares) / length).astype(c)
        reciprocal = c(1) / np.sqrt(variance + c(eps))
        y = (values - np.where(reciprocal == 0, c(0), mean)) * reciprocal
        if weight is not None:
            y = y * compute(weight).astype(c)
        if bias is not None:
            y = y + compute(bias).astype(c)
    assert y.dtype == values.dtype
    return rounded(y, x.dtype)


def _rotate(values: np.ndarray) -> np.ndarray:
    """The unscaled rotation along the last axis: that of the halves first."""
    size = values.shape[-1]
    if size == 1:
        return values
    a, b = _rotate(values[..., : size // 2]), _rotate(values[..., size // 2 :])
    return np.concatenate([a + b, a - b], axis=-1)


def hadamard(x: Tensor, block: int) -> Tensor:
    """The rotation of each `block` neighbours."""
    values = compute(x)
    c = values.dtype.type
    with np.errstate(all="ignore"):
        blocks = _rotate(values.reshape(*x.shape[:-1], -1, block))
        return rounded((blocks * c(1 / math.sqrt(block))).reshape(x.shape), x.dtype)


def weight_dtypes(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Those that a weight for rows of `dtype` may have."""
    return tuple(dict.fromkeys((dtype, cases.compute_dtype(dtype))))
