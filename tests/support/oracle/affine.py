# SPDX-License-Identifier: BSD-3-Clause
"""The numerics contract of the affine family in NumPy, independent of `baraquant.reference`.

One step of the contract is one NumPy call in the compute type C (float32 or float64), so every
rounding is IEEE's. NumPy has no bfloat16: such arrays are float32 arrays whose values are bfloat16
numbers. Sums are exact (`math.fsum`).
"""

import math

import numpy as np
import torch
from torch import Tensor

from tests.support.bits import same_bits, to_numpy
from tests.support.cases import INT32_MAX, INT32_MIN, Granularity

# --- the one final rounding ----------------------------------------------------------------------


def _round_to_bfloat16(value: np.ndarray) -> np.ndarray:
    """Half-to-even rounding of float32 or float64 to bfloat16, in one step, kept as float32."""
    if value.dtype == np.float32:
        bits = np.ascontiguousarray(value).view(np.uint32).reshape(value.shape)
        up = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = (up & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isnan(value), np.float32(np.nan), rounded)
    # Eight significand bits: the last has weight 2^(exponent - 8), never below the subnormal step.
    exponent = np.frexp(value)[1]
    last_bit = np.maximum(exponent - 8, -133)
    steps = np.rint(np.ldexp(value, -last_bit))
    rounded = np.where(np.isfinite(value), np.ldexp(steps, last_bit), value)
    return rounded.astype(np.float32)  # exact, or beyond 2^128 and so infinite


def round_to(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """One rounding from C to a dtype (integers arrive integer-valued and in range)."""
    with np.errstate(all="ignore"):
        if dtype == torch.bfloat16:
            return _round_to_bfloat16(value)
        return value.astype(str(dtype).removeprefix("torch."))


# --- arguments -----------------------------------------------------------------------------------


def numpy_dtype(compute: torch.dtype) -> np.dtype:
    return np.dtype(np.float64 if compute == torch.float64 else np.float32)


def expand(param: np.ndarray, granularity: Granularity, shape: tuple[int, ...]) -> np.ndarray:
    """One entry of a scale or zero point for each element, by the table of granularities."""
    if granularity.kind == "per_tensor":
        return np.broadcast_to(param.reshape(()), shape)
    axis = granularity.axis % len(shape)
    if granularity.kind == "per_channel":
        return np.broadcast_to(param.reshape([-1] + [1] * (len(shape) - axis - 1)), shape)
    if granularity.kind == "per_token":
        return np.broadcast_to(param.reshape(*shape[:-1], 1), shape)
    return np.take(param, np.arange(shape[axis]) // granularity.group_size, axis=axis)


def _zero_point(
    zero_point: Tensor | None, quant_range: tuple[int, int] | None, compute: np.dtype
) -> np.ndarray:
    """C(z): integers saturated to int32; a floating z rounded and clamped to the range."""
    if zero_point is None:
        return np.zeros((), compute)
    values = to_numpy(zero_point)
    if np.issubdtype(values.dtype, np.floating):
        assert quant_range is not None
        return np.clip(np.rint(values).astype(np.float64), *quant_range).astype(compute)
    return np.clip(values.astype(np.int64), INT32_MIN, INT32_MAX).astype(compute)


class Affine:
    """All that the contract says about one input, scale, zero point and range.

    Attributes: `x`, `s`, `z` (one entry per element, in C), `r`, `v`, `q`, `mask` as the contract
    names them, `ratio` for x / s, and `nan` where `v` is NaN.
    """

    def __init__(
        self,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor | None,
        granularity: Granularity,
        quant_min: int = -128,
        quant_max: int = 127,
    ) -> None:
        self.dtype, self.granularity, self.scale = x.dtype, granularity, scale
        self.zero_point = zero_point
        compute = numpy_dtype(x.dtype)
        self.x = to_numpy(x).astype(compute)
        shape = self.x.shape
        s, z = to_numpy(scale), _zero_point(zero_point, (quant_min, quant_max), compute)
        assert s.dtype == compute
        self.s = expand(s, granularity, shape)
        self.z = np.broadcast_to(z, shape) if zero_point is None else expand(z, granularity, shape)
        with np.errstate(all="ignore"):
            self.ratio = self.x / self.s
            self.r = np.rint(self.ratio)
            self.v = self.r + self.z
            self.nan = np.isnan(self.v)
            self.q = np.minimum(
                np.maximum(self.v, compute.type(quant_min)), compute.type(quant_max)
            )
            self.mask = (self.v >= quant_min) & (self.v <= quant_max)
            self.clamped_z = np.clip(self.z, quant_min, quant_max)

    def quantize(self, dtype: torch.dtype = torch.int8) -> np.ndarray:
        return round_to(np.where(self.nan, self.clamped_z, self.q), dtype)

    def fake_quantize(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            return round_to((self.q - self.z) * self.s, self.dtype)

    def fake_quantize_backward(self, grad: Tensor) -> np.ndarray:
        dy = to_numpy(grad)
        return np.where(self.mask, dy, np.zeros((), dy.dtype))

    def quantize_backward(self, grad: Tensor) -> np.ndarray:
        with np.errstate(all="ignore"):
            dx = to_numpy(grad).astype(self.x.dtype) / self.s
            return round_to(np.where(self.mask, dx, np.zeros((), dx.dtype)), self.dtype)

    def scale_terms(self, grad: Tensor) -> np.ndarray:
        """What each element adds to the gradient of its scale."""
        with np.errstate(all="ignore"):
            factor = np.where(self.mask, self.r - self.ratio, self.q - self.z)
            term = to_numpy(grad).astype(self.x.dtype) * factor
        return np.where(self.nan, np.zeros((), term.dtype), term)

    def zero_point_terms(self, grad: Tensor) -> np.ndarray:
        """What each element adds to the gradient of its floating zero point."""
        with np.errstate(all="ignore"):
            term = -self.s * to_numpy(grad).astype(self.x.dtype)
        return np.where(self.mask, np.zeros((), term.dtype), term)

    def segment_sums(self, terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The exact sum of each segment (rounded to float64 once) and an error bound for any order.

        A float64 sum of n terms in any order is off by at most (n - 1) u sum|t| (1 + O(n u)).
        """
        shape, count = tuple(self.scale.shape), self.scale.numel()
        ids = np.arange(count).reshape(shape)
        segment = expand(ids, self.granularity, terms.shape).reshape(-1)
        wide = terms.astype(np.float64).reshape(-1)
        ordered = wide[np.argsort(segment, kind="stable")].tolist()
        lengths = np.bincount(segment, minlength=count)
        ends = np.cumsum(lengths).tolist()
        starts = [0, *ends[:-1]]
        sums = [_exact_sum(ordered[start:end]) for start, end in zip(starts, ends, strict=False)]
        magnitude = np.bincount(segment, weights=np.abs(wide), minlength=count)
        bound = 1.01 * lengths * 2.0**-53 * magnitude
        return np.array(sums, dtype=np.float64).reshape(shape), bound.reshape(shape)


def _exact_sum(terms: list[float]) -> float:
    """The sum rounded once; infinities and NaN as IEEE adds them."""
    special = [term for term in terms if not math.isfinite(term)]
    if special:
        return math.nan if len(set(special)) > 1 else special[0]
    return math.fsum(terms)


def assert_sum_close(actual: Tensor, sums: np.ndarray, bound: np.ndarray) -> None:
    """`actual` is the sum within the float64 error of any order and one ulp of its own dtype."""
    got = to_numpy(actual)
    assert got.shape == sums.shape
    with np.errstate(all="ignore"):
        expected = round_to(sums, actual.dtype)
        info = torch.finfo(actual.dtype)
        ulp = np.maximum(np.abs(sums), info.smallest_normal) * info.eps
        error = np.abs(got.astype(np.float64) - sums)
    special = ~np.isfinite(expected)
    good = np.where(special, same_bits(actual, expected), error <= bound + ulp)
    at = np.argwhere(~good)
    assert good.all(), f"off by {error[~good][0]} at {at[0]}, may be {bound[~good][0]}"


def dequantize(
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    granularity: Granularity,
    dtype: torch.dtype | None = None,
) -> np.ndarray:
    """`(C(q) - C(z)) * s`, where C is the scale's dtype."""
    s = to_numpy(scale)
    z = _zero_point(zero_point, None, s.dtype)
    shape = tuple(q.shape)
    z = np.broadcast_to(z, shape) if zero_point is None else expand(z, granularity, shape)
    with np.errstate(all="ignore"):
        y = (to_numpy(q).astype(s.dtype) - z) * expand(s, granularity, shape)
    return round_to(y, dtype or scale.dtype)


def dequantize_backward(
    grad: Tensor, scale: Tensor, granularity: Granularity, dtype: torch.dtype | None = None
) -> np.ndarray:
    """`C(dy) * s`, rounded to the dtype of what was dequantized."""
    s = to_numpy(scale)
    with np.errstate(all="ignore"):
        dq = to_numpy(grad).astype(s.dtype) * expand(s, granularity, tuple(grad.shape))
    return round_to(dq, dtype or grad.dtype)
