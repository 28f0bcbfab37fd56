# SPDX-License-Identifier: BSD-3-Clause
"""The arithmetic of products of integers: exact sums, and their way back to numbers."""

import torch
from torch import Tensor

from .rules import round_to


def among_integers(zero_point: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero points as int32; one that int8 or uint8 does not hold counts as the nearest."""
    integers = torch.iinfo(dtype)
    z = zero_point.to(torch.float64).clamp(integers.min, integers.max)
    return z.to(torch.int32)


def sums_of_products(q: Tensor, z: Tensor | None, w: Tensor) -> Tensor:
    """Return ``sum_k (q[t, k] - z[t]) * w[n, k]``, int32 ``[..., N]``; ``z`` is ``[..., 1]``.

    The sum is exact: float64 holds every sum of products, and int32 every result.
    """
    products = (q.to(torch.float64) @ w.to(torch.float64).T).to(torch.int64)
    if z is not None:
        products = products - z.to(torch.int64) * w.sum(1, dtype=torch.int64)
    return products.to(torch.int32)


def exact_sum(a: Tensor | float, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded ``a + b`` and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add_rounding_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a + b`` in float64; if it is inexact, the neighbour whose last bit is 1."""
    total, rest = exact_sum(a, b)
    even = total.view(torch.int64).bitwise_and(1) == 0
    towards = torch.nextafter(total, torch.where(rest > 0, torch.inf, -torch.inf))
    return torch.where(total.isfinite() & (rest != 0) & even, towards, total)


def balanced(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two float64 of similar magnitude with the same product."""
    (a_part, a_power), (b_part, b_power) = torch.frexp(a), torch.frexp(b)
    power = (a_power + b_power).to(torch.float64)  # NB: ldexp computes 2^power in this dtype
    half = torch.floor(power / 2)
    return torch.ldexp(a_part, half), torch.ldexp(b_part, power - half)


def exact_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two float64 whose sum is ``a * b`` (Dekker 1971)."""

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        high = x * 134217729.0  # 2^27 + 1
        high = high - (high - x)
        return high, x - high

    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    product = a * b
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return ``a * b + c`` with one rounding, in the dtype of the arguments.

    float32: float64 holds the product, and a sum rounded to odd rounds as the exact one would.
    float64: Boldo and Melquiond 2008, "Emulation of FMA and Correctly Rounded Sums"; products
    below 2^-969 are rounded twice.
    """
    if a.dtype == torch.float32:
        product = a.to(torch.float64) * b.to(torch.float64)
        return add_rounding_to_odd(product, c.to(torch.float64)).to(torch.float32)

    product, rest = exact_product(*balanced(a, b))
    high, low = exact_sum(c, rest)
    total, error = exact_sum(product, high)
    result = total + add_rounding_to_odd(low, error)
    return torch.where(result.isfinite() & (result != 0), result, a * b + c)


def rescaled(acc: Tensor, s: Tensor, sw: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return ``fma(C(acc) * sw, s, bias)``, rounded once; all but ``acc`` have dtype ``C``."""
    scaled = acc.to(sw.dtype) * sw
    if bias is None:
        return round_to(scaled * s, dtype)
    scaled, s, bias = torch.broadcast_tensors(scaled, s, bias.to(sw.dtype))
    return round_to(fused_multiply_add(scaled, s, bias), dtype)
