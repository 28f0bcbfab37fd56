# SPDX-License-Identifier: BSD-3-Clause
"""The activations of the fused family, of float32 tensors.

The formulas and coefficients are those of ``csrc/fused/elementary.h``, which says where they come
from. ``dtype`` is that of the rows, which decides between two forms.
"""

import torch
from torch import Tensor

from .products import exact_sum, fused_multiply_add

FAR = 112.0
Sum = tuple[Tensor, Tensor]  # a number and a small rest


def _constant(text: str, like: Tensor) -> Tensor:
    return torch.full_like(like, float.fromhex(text))


def _fma(a: Tensor, b: Tensor | str, c: Tensor | str) -> Tensor:
    b = _constant(b, a) if isinstance(b, str) else b
    c = _constant(c, a) if isinstance(c, str) else c
    return fused_multiply_add(a, b, c)


def _divide(numerator: Sum, denominator: Sum) -> Tensor:
    reciprocal = torch.ones_like(denominator[0]) / denominator[0]
    q = numerator[0] * reciprocal
    left = _fma(-q, denominator[0], numerator[0]) + _fma(-q, denominator[1], numerator[1])
    return _fma(left, reciprocal, q)


def _product(x: Tensor, y: Sum) -> Sum:
    main = x * y[0]
    return main, _fma(x, y[1], _fma(x, y[0], -main))


def _exp(t: Tensor, rest: Tensor) -> tuple[Sum, Tensor, Tensor]:
    """Return ``exp(t + rest)`` as a significand and two powers of two."""
    rounder = torch.full_like(t, 12582912.0)
    k = _fma(t, "0x1.715476p+0", rounder) - rounder
    r = _fma(k, "-0x1.62e430p-1", t)
    r = _fma(k, "0x1.05c610p-29", r) + rest
    small = "0x1.5558f6p-5", "0x1.123a78p-7", "0x1.6a233cp-10"
    p = _polynomial(r, "0x1.fffffcp-2", "0x1.555490p-3", *small)
    p = _fma(r * r, p, r)
    one = 1.0 + p
    number = k.nan_to_num(0.0)
    half = torch.floor(number / 2)
    return (one, p - (one - 1.0)), torch.exp2(half), torch.exp2(number - half)


def _times_sigmoid(x: Tensor, w: Tensor, rest: Tensor) -> Tensor:
    negative = w < 0
    t = torch.where(negative, w, -w).clamp(min=-FAR)
    significand, half, other = _exp(t, torch.where(negative, rest, -rest))
    power = significand[0] * half * other
    more = 1.0 + power
    denominator = more, (power - (more - 1.0)) + significand[1] * half * other
    main, rest = _product(x.clamp(min=-FAR), significand)
    numerator = torch.where(negative, main, 1.0), torch.where(negative, rest, 0.0)
    quotient = _divide(numerator, denominator)
    return torch.where(negative, quotient * half * other, x * quotient)


def _gelu_tanh(x: Tensor) -> Tensor:
    x_near = x.clamp(-16, 16)
    a, b_factor = _constant("0x1.988454p+0", x), _constant("0x1.2444f2p-4", x)
    s = x_near * x_near
    s_rest = _fma(x_near, x_near, -s)
    b = b_factor * s
    b_rest = _fma(s, b_factor, -b)
    q, sum_rest = exact_sum(a, b)
    q_rest = (
        sum_rest + _fma(s_rest, b_factor, b_rest) + _fma(s, "0x1.49b16ap-29", "-0x1.857936p-25")
    )
    w, rest = _product(x_near, (q, q_rest))
    return _times_sigmoid(x, w, rest)


def _product_plus(x: Tensor, y: Tensor, z: float) -> Sum:
    product = x * y
    main, rest = exact_sum(z, product)
    return main, rest + _fma(x, y, -product)


def _gelu(x: Tensor) -> Tensor:
    a = x.clamp(-14.5, 14.5).abs()
    s = a * a
    significand, half, other = _exp(-0.5 * s, -0.5 * _fma(a, a, -s))
    p = _polynomial(a, "0x1.c0d128p-2", "0x1.77452ap-3", "0x1.4cdfb2p-5", "0x1.0dc640p-8")
    small = "0x1.e0be78p-2", "0x1.a138ccp-4", "0x1.521bb0p-7"
    q = _polynomial(a, "0x1.acaac4p+0", "0x1.33d7d8p+0", *small)
    numerator = _product_plus(a, p, 0.5)
    power = _product(a, significand)
    tail = _product(power[0], numerator)
    tail = tail[0], _fma(power[1], numerator[0], tail[1])
    scaled = _divide(tail, _product_plus(a, q, 1.0)) * half * other
    return torch.where(x < 0, -scaled, x - scaled)


# Of rows of 16-bit numbers: Note [Activations of 16-bit numbers] of elementary.h.


def _polynomial(x: Tensor, *constants: str) -> Tensor:
    result = _constant(constants[-1], x)
    for constant in reversed(constants[:-1]):
        result = _fma(x, result, constant)
    return result


def _limited(x: Tensor, most: float) -> Tensor:
    return x.abs().nan_to_num(most).clamp(max=most)


def _finished(x: Tensor, tail: Tensor, unit: str) -> Tensor:
    return _fma(tail, unit, torch.where(x < 0, torch.full_like(x, -0.0), x))


def _brief_power(a: Tensor, h: Tensor) -> Tensor:
    """Return ``2 ** (a * h + 64)``."""
    rounder = torch.full_like(a, 12582912.0 + 64.0)
    k = _fma(a, h, rounder) - rounder
    p = _polynomial(
        _fma(a, h, -k), "1", "0x1.62e12cp-1", "0x1.ec0378p-3", "0x1.c9fc46p-5", "0x1.3a02ccp-7"
    )
    return torch.ldexp(p.double(), k + 64).to(p.dtype)


def _brief_times_sigmoid(x: Tensor, a: Tensor, h: Tensor) -> Tensor:
    e = _brief_power(a, h)
    d = _fma(e, "0x1p-64", "1")
    y = _polynomial(d, "0x1.0acp+1", "-0x1.664p+0", "0x1.37p-2")
    left = _fma(-d, y, "1")
    tail = a * e * y
    return _finished(x, _fma(tail, _fma(left, left, left), tail), "-0x1p-64")


_GELU_EXPONENT = {
    torch.float16: (
        *("-0x1.26b5e8p+0", "-0x1.d58d78p-2", "-0x1.b96776p-5", "0x1.159638p-7"),
        *("-0x1.e31560p-11", "0x1.fb1ea8p-15", "-0x1.dd334ep-20"),
    ),
    torch.bfloat16: (
        *("-0x1.26bf32p+0", "-0x1.d4ee70p-2", "-0x1.c0704cp-5", "0x1.284b48p-7"),
        *("-0x1.26f888p-10", "0x1.a955dcp-14", "-0x1.a9b1d4p-18", "0x1.16161cp-22"),
        *("-0x1.a7b522p-28", "0x1.1bd63cp-34"),
    ),
}


def _brief_gelu(x: Tensor, dtype: torch.dtype) -> Tensor:
    a = _limited(x, 5.75 if dtype == torch.float16 else 13.6)
    power = _brief_power(a, _polynomial(a, *_GELU_EXPONENT[dtype]))
    return _finished(x, a * power, "-0x1p-65")


def silu(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x * sigmoid(x)``."""
    if dtype == torch.float32:
        return _times_sigmoid(x, x, torch.zeros_like(x))
    return _brief_times_sigmoid(x, _limited(x, FAR), _constant("-0x1.715476p+0", x))


def gelu(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x * Phi(x)``."""
    return _gelu(x) if dtype == torch.float32 else _brief_gelu(x, dtype)


def gelu_tanh(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the approximation of ``gelu`` by tanh."""
    if dtype == torch.float32:
        return _gelu_tanh(x)
    a = _limited(x, 10.6)
    return _brief_times_sigmoid(x, a, _polynomial(a * a, "-0x1.26aec2p+1", "-0x1.a5a7d0p-4"))
