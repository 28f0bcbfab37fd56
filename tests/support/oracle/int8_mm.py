# SPDX-License-Identifier: BSD-3-Clause
"""The contract's integer matrix product in NumPy, independent of `baraquant.reference`.

The functions take what the ops take (CPU tensors) and give arrays, bfloat16 as float32:

    acc = int32(sum_k a w - za sum_k w)         exact, modulo 2^32
    y = round(fma(C(acc) * sw, sa, bias))       one rounding each: product, fma, output dtype

Sums are made in float64, where every partial sum is an integer below 2^53 and so exact. NumPy has
no fma: `fma` is exact rounding put together from IEEE operations. The kernels use that of the
machine, so that every comparison of a product with a bias tests it too.
"""

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import to_numpy
from tests.support.cases import PER_TOKEN, per_channel
from tests.support.oracle import affine as oracle
from tests.support.oracle.range import Dynamic

Array = np.ndarray
Maybe = Tensor | None  # an argument that may be left out
DEEPEST = 2**53 // (255 * 128)  # beyond it the float64 sums would not be exact

# --- fma -----------------------------------------------------------------------------------------


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and, exactly, what was rounded off (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product and, exactly, what was rounded off (Dekker, with Veltkamp's split)."""

    def split(x: Array) -> tuple[Array, Array]:
        scaled = x * (2.0**27 + 1)
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """The sum, rounded where it is inexact to the neighbour whose last bit is 1.

    Rounding that once more, to a narrower format, is as rounding the exact sum.
    """
    total, rest = _two_sum(a, b)
    even = (np.ascontiguousarray(total).view(np.uint64) & np.uint64(1)) == 0
    other = np.nextafter(total, np.where(rest > 0, np.inf, -np.inf))
    return np.where(np.isfinite(total) & (rest != 0) & even, other, total)


def _fma_of_float32(a: Array, b: Array, c: Array) -> Array:
    """The product of two float32 is a float64; the sum is rounded to odd, and then once."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return _sum_to_odd(product, c.astype(np.float64)).astype(np.float32)


def _exponent_within(x: Array, limit: int) -> Array:
    return np.isfinite(x) & (x != 0) & (np.abs(np.frexp(x)[1]) < limit)


def _fma_of_float64(a: Array, b: Array, c: Array) -> Array:
    """Boldo and Melquiond's sum of three where nothing over- or underflows, else a fraction."""
    # Right where the product is exactly zero, or not finite for another reason than overflow.
    plain = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c)
    usual = _exponent_within(a, 400) & _exponent_within(b, 400)
    usual &= (c == 0) | _exponent_within(c, 800)
    high, low = _two_product(a, b)
    rest_high, rest_low = _two_sum(c, low)
    total, total_low = _two_sum(high, rest_high)
    result = np.where(usual, total + _sum_to_odd(rest_low, total_low), plain)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for at in np.argwhere(finite & (a != 0) & (b != 0) & ~usual):
        index = tuple(at)
        exact = Fraction(float(a[index])) * Fraction(float(b[index])) + Fraction(float(c[index]))
        result[index] = _nearest_float64(exact)
    return result


def _nearest_float64(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator  # Python divides integers with one rounding
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` with one rounding, for arrays of float32 or of float64."""
    a, b, c = np.broadcast_arrays(a, b, c)
    assert a.dtype == b.dtype == c.dtype
    with np.errstate(all="ignore"):
        return (_fma_of_float32 if a.dtype == np.float32 else _fma_of_float64)(a, b, c)


# --- the product ---------------------------------------------------------------------------------


def sums(input: Array, weight: Array) -> Array:
    """`sum_k a[m, k] * w[n, k]` in int64."""
    assert input.dtype.itemsize == 1 and weight.dtype == np.int8
    assert input.shape[-1] < DEEPEST
    return (input.astype(np.float64) @ weight.astype(np.float64).T).astype(np.int64)


def wrapped(values: Array) -> Array:
    """int64 modulo 2^32, read as int32."""
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def accumulators(
    input: Tensor, weight: Tensor, zero_point: Tensor | int | None, weight_sum: Maybe
) -> Array:
    """The int32 sums `[M, N]` that are rescaled."""
    a, w = to_numpy(input), to_numpy(weight)
    rows = int(np.prod(a.shape[:-1]))
    found = sums(a.reshape(rows, a.shape[-1]), w)
    if zero_point is None:
        return wrapped(found)
    of_weight = w.astype(np.int64).sum(1) if weight_sum is None else to_numpy(weight_sum)
    values = np.asarray(zero_point) if isinstance(zero_point, int) else to_numpy(zero_point)
    integers = np.iinfo(a.dtype)  # a zero point that these do not hold counts as the nearest
    point = np.clip(values, integers.min, integers.max).astype(np.int64)
    return wrapped(found - _of_rows(point, rows) * of_weight.astype(np.int64))


def _of_rows(values: Array, rows: int) -> Array:
    """One for all, or one for each row, as `[M, 1]`."""
    return np.broadcast_to(values.reshape(-1, 1), (rows, 1))


def rescale(acc: Array, weight_scale: Array, input_scale: Array, bias: Array | None) -> Array:
    """`fma(C(acc) * sw, sa, bias)` in C, the scales' dtype; no bias is a bias of -0."""
    c = weight_scale.dtype
    with np.errstate(all="ignore"):
        product = acc.astype(c) * weight_scale
    return fma(product, input_scale, np.full((), -0.0, c) if bias is None else bias.astype(c))


def _rescaled(
    acc: Array, input_scale: Tensor | float, weight_scale: Tensor, bias: Maybe, dtype: torch.dtype
) -> Array:
    """The result `[M, N]` for int32 sums."""
    compute = oracle.numpy_dtype(dtype)
    if isinstance(input_scale, Tensor):
        scale = to_numpy(input_scale)
    else:
        with np.errstate(all="ignore"):
            scale = np.asarray(input_scale).astype(compute)
    of_weight = to_numpy(weight_scale)
    assert scale.dtype == of_weight.dtype == compute
    offset = None if bias is None else to_numpy(bias)
    return oracle.round_to(rescale(acc, of_weight, _of_rows(scale, len(acc)), offset), dtype)


def int8_linear(
    input: Tensor,
    weight: Tensor,
    input_scale: Tensor | float,
    weight_scale: Tensor,
    bias: Maybe = None,
    *,
    input_zero_point: Tensor | int | None = None,
    weight_sum: Maybe = None,
    dtype: torch.dtype = torch.float32,
) -> Array:
    acc = accumulators(input, weight, input_zero_point, weight_sum)
    y = _rescaled(acc, input_scale, weight_scale, bias, dtype)
    return y.reshape(*input.shape[:-1], weight.shape[0])


def int8_product(
    input: Tensor, weight: Tensor, *, input_zero_point: Maybe = None, weight_sum: Maybe = None
) -> Array:
    acc = accumulators(input, weight, input_zero_point, weight_sum)
    return acc.reshape(*input.shape[:-1], weight.shape[0])


def rescale_product(
    input: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Maybe = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Array:
    acc = to_numpy(input).reshape(int(np.prod(input.shape[:-1])), input.shape[-1])
    return _rescaled(acc, input_scale, weight_scale, bias, dtype).reshape(input.shape)


def smoothquant_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    act_scale: Tensor | float,
    bias: Maybe = None,
    *,
    act_zero_point: Tensor | int | None = None,
    **options: Any,
) -> Array:
    """`int8_linear` with one scale, and the arguments in another order."""
    args = (input, weight, act_scale, weight_scale, bias)
    return int8_linear(*args, input_zero_point=act_zero_point, **options)


def quantized_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Maybe = None,
    *,
    symmetric: bool = True,
    weight_sum: Maybe = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Array:
    """Each row quantized with a scale of its own, and multiplied."""
    rule = Dynamic(input, PER_TOKEN, quant_min, quant_max, symmetric)
    assert not symmetric or not rule.zero_point.any()
    q = torch.from_numpy(rule.quantize())
    point = None if symmetric else rule.zero_point
    options = {"input_zero_point": point, "weight_sum": weight_sum, "dtype": dtype or input.dtype}
    return int8_linear(q, weight, rule.scale, weight_scale, bias, **options)


def static_quantized_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    act_scale: Tensor,
    bias: Maybe = None,
    *,
    act_zero_point: Maybe = None,
    smooth_scale: Maybe = None,
    weight_sum: Maybe = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Array:
    """The input quantized with a scale that is given, for all or for each channel; multiplied."""
    if smooth_scale is None:
        args = act_scale.reshape(()), act_zero_point, cases.PER_TENSOR
    else:
        point = None if act_zero_point is None else act_zero_point.expand(len(smooth_scale))
        args = smooth_scale, point, per_channel(-1)
    rule = oracle.Affine(input, *args, quant_min, quant_max)
    q = torch.from_numpy(rule.quantize(torch.int8))
    options = {"act_zero_point": act_zero_point, "weight_sum": weight_sum}
    options["dtype"] = dtype or input.dtype
    return smoothquant_linear(q, weight, weight_scale, act_scale, bias, **options)


def qat_linear(
    input: Tensor,
    weight: Tensor,
    bias: Maybe = None,
    *,
    weight_quant_min: int = -128,
    weight_quant_max: int = 127,
    qweight: Maybe = None,
    weight_scale: Maybe = None,
    **of_input: Any,
) -> Array:
    """The same with a weight that is quantized per channel, or whose integers are given."""
    if qweight is not None and weight_scale is not None:
        return quantized_linear(input, qweight, weight_scale, bias, **of_input)
    rule = Dynamic(weight, per_channel(0), weight_quant_min, weight_quant_max)
    assert not rule.zero_point.any()
    q = torch.from_numpy(rule.quantize())
    return quantized_linear(input, q, rule.scale, bias, **of_input)
