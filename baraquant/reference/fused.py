# SPDX-License-Identifier: BSD-3-Clause
"""The fused family: norms, activations and a rotation of vectors, and the same quantized.

``C`` is the compute type of the input. The coefficients of the activations are those of
``csrc/fused/elementary.h``, which says where they come from.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ._functions import Rule, like_the_op
from .products import fused_multiply_add
from .range import dynamic_range_quantize_per_token
from .rules import compute_dtype, round_to

MAX_LANES = 4096


def sum_of_rows(x: Tensor) -> Tensor:
    """Return ``[..., 1]`` in float64, summed in the order of the contract.

    Of ``lanes`` lanes, number l adds the elements l, l + lanes, ... in turn; then neighbours are
    added in pairs until one is left.
    """
    length = x.shape[-1]
    lanes = min(1 << max(length - 1, 0).bit_length(), MAX_LANES)
    padded = torch.nn.functional.pad(x.to(torch.float64), (0, -length % lanes))
    sums = torch.zeros_like(padded[..., :lanes])
    for first in range(0, padded.shape[-1], lanes):
        sums = sums + padded[..., first : first + lanes]
    while sums.shape[-1] > 1:
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums


def _mean(sums: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    return sums.to(dtype) / torch.tensor(length, dtype=dtype, device=sums.device)


def _square_root(x: Tensor) -> Tensor:
    """Return the root, rounded once. On a CPU torch.sqrt may be MKL's, whose last bit varies."""
    if x.dtype == torch.float32:
        return x.to(torch.float64).sqrt().to(torch.float32)
    roots = [math.sqrt(value) for value in x.flatten().tolist()]
    return torch.tensor(roots, dtype=x.dtype, device=x.device).reshape(x.shape)


def _normalized(x: Tensor, eps: float, centered: bool) -> tuple[Tensor, Tensor]:
    """Return ``(x - m) * r`` and ``r``, all in ``C``; m is 0 if not centered."""
    c, length = x.dtype, x.shape[-1]
    d = x - _mean(sum_of_rows(x), length, c) if centered else x
    squares = sum_of_rows(d.to(torch.float64) * d.to(torch.float64))
    variance = _mean(squares, length, c)
    r = torch.ones_like(variance) / _square_root(variance + torch.tensor(eps, dtype=c))
    return d * r, r


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centered: bool
) -> Tensor:
    dtype, c = x.dtype, compute_dtype(x.dtype)

    def value() -> Tensor:
        y, _ = _normalized(x.detach().to(c), eps, centered)
        if weight is not None:
            y = y * weight.detach().to(c)
        if bias is not None:
            y = y + bias.detach().to(c)
        return round_to(y, dtype)

    def gradient(dy: Tensor, *needed: bool) -> Any:
        dy = dy.to(c)
        n, r = _normalized(x.detach().to(c), eps, centered)
        g = dy if weight is None else dy * weight.detach().to(c)
        dx = g - n * (g * n).mean(-1, keepdim=True)
        if centered:
            dx = dx - g.mean(-1, keepdim=True)
        rows = (-1, x.shape[-1])
        dw = None if weight is None else (dy * n).reshape(rows).sum(0).to(weight.dtype)
        db = None if bias is None else dy.reshape(rows).sum(0).to(bias.dtype)
        return round_to(r * dx, dtype), dw, db

    result: Tensor = Rule.apply(value, gradient, x, weight, bias)
    return result


def _quantized(y: Tensor, **scheme: Any) -> tuple[Tensor, Tensor, Tensor]:
    symmetric, dtype = scheme.pop("symmetric", True), scheme.pop("dtype", torch.int8)
    ends = scheme.pop("quant_min", -128), scheme.pop("quant_max", 127)
    return dynamic_range_quantize_per_token(y.detach(), *ends, symmetric=symmetric, dtype=dtype)  # type: ignore[no-any-return]


@like_the_op
def rms_norm(
    input: Tensor, weight: Tensor | None, eps: float, *, residual: Tensor | None = None
) -> Any:
    """Return ``x * r * weight``, and the sum with the residual."""
    x = input if residual is None else input + residual
    y = _norm(x, weight, None, eps, centered=False)
    return y if residual is None else (y, x)


@like_the_op
def layer_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> Any:
    """Return ``(x - m) * r * weight + bias``, and the sum with the residual."""
    x = input if residual is None else input + residual
    y = _norm(x, weight, bias, eps, centered=True)
    return y if residual is None else (y, x)


@like_the_op
def rms_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    **scheme: Any,
) -> tuple[Tensor, ...]:
    """Quantize ``rms_norm``."""
    x = input if residual is None else input + residual
    quantized = _quantized(_norm(x, weight, None, eps, centered=False), **scheme)
    return quantized if residual is None else (*quantized, x)


@like_the_op
def layer_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    **scheme: Any,
) -> tuple[Tensor, ...]:
    """Quantize ``layer_norm``."""
    x = input if residual is None else input + residual
    quantized = _quantized(_norm(x, weight, bias, eps, centered=True), **scheme)
    return quantized if residual is None else (*quantized, x)


# ---- Activations --------------------------------------------------------------------------------

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
    p = _fma(r, "0x1.6a233cp-10", "0x1.123a78p-7")
    for c in ("0x1.5558f6p-5", "0x1.555490p-3", "0x1.fffffcp-2"):
        p = _fma(r, p, c)
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
    numerator = _product(x.clamp(min=-FAR), significand)
    one = torch.ones_like(x)
    quotient = _divide(
        (
            torch.where(negative, numerator[0], one),
            torch.where(negative, numerator[1], torch.zeros_like(x)),
        ),
        denominator,
    )
    return torch.where(negative, quotient * half * other, x * quotient)


def silu(x: Tensor) -> Tensor:
    """Return ``x * sigmoid(x)`` of a float32 tensor."""
    return _times_sigmoid(x, x, torch.zeros_like(x))


def _gelu_tanh(x: Tensor) -> Tensor:
    x_near = x.clamp(-16, 16)
    a, b_factor = _constant("0x1.988454p+0", x), _constant("0x1.2444f2p-4", x)
    s = x_near * x_near
    s_rest = _fma(x_near, x_near, -s)
    b = b_factor * s
    b_rest = _fma(s, b_factor, -b)
    q = a + b
    part = q - a
    sum_rest = (a - (q - part)) + (b - part)
    q_rest = (
        sum_rest + _fma(s_rest, b_factor, b_rest) + _fma(s, "0x1.49b16ap-29", "-0x1.857936p-25")
    )
    w, rest = _product(x_near, (q, q_rest))
    return _times_sigmoid(x, w, rest)


def _product_plus(x: Tensor, y: Tensor, z: float) -> Sum:
    product = x * y
    main = z + product
    part = main - z
    rest = (z - (main - part)) + (product - part)
    return main, rest + _fma(x, y, -product)


def _gelu(x: Tensor) -> Tensor:
    a = x.clamp(-14.5, 14.5).abs()
    s = a * a
    significand, half, other = _exp(-0.5 * s, -0.5 * _fma(a, a, -s))
    p = _fma(a, "0x1.0dc640p-8", "0x1.4cdfb2p-5")
    for c in ("0x1.77452ap-3", "0x1.c0d128p-2"):
        p = _fma(a, p, c)
    q = _fma(a, "0x1.521bb0p-7", "0x1.a138ccp-4")
    for c in ("0x1.e0be78p-2", "0x1.33d7d8p+0", "0x1.acaac4p+0"):
        q = _fma(a, q, c)
    numerator = _product_plus(a, p, 0.5)
    power = _product(a, significand)
    tail = _product(power[0], numerator)
    tail = tail[0], _fma(power[1], numerator[0], tail[1])
    scaled = _divide(tail, _product_plus(a, q, 1.0)) * half * other
    return torch.where(x < 0, -scaled, x - scaled)


@like_the_op
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``."""

    def value() -> Tensor:
        return (silu(gate.detach().float()) * up.detach().float()).to(gate.dtype)

    def gradient(dy: Tensor, *needed: bool) -> Any:
        dy, g, u = dy.float(), gate.detach().float(), up.detach().float()
        s = torch.sigmoid(g)
        return (dy * u * s * (1 + g * (1 - s))).to(gate.dtype), (dy * g * s).to(up.dtype)

    result: Tensor = Rule.apply(value, gradient, gate, up)
    return result


@like_the_op
def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """Return ``x * Phi(x)``, or its approximation by tanh."""
    rule = _gelu if approximate == "none" else _gelu_tanh

    def value() -> Tensor:
        return rule(input.detach().float()).to(input.dtype)

    def gradient(dy: Tensor, *needed: bool) -> Any:
        x = input.detach().float()
        if approximate == "none":
            slope = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
            slope = slope + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        else:
            u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            t = torch.tanh(u)
            slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (
                1 + 3 * 0.044715 * x * x
            )
        return ((dy.float() * slope).to(input.dtype),)

    result: Tensor = Rule.apply(value, gradient, input)
    return result


@like_the_op
def silu_mul_quantize_per_token(gate: Tensor, up: Tensor, **scheme: Any) -> tuple[Tensor, ...]:
    """Quantize ``silu_mul``."""
    return _quantized(silu_mul(gate, up), **scheme)


@like_the_op
def gelu_quantize_per_token(
    input: Tensor, *, approximate: str = "none", **scheme: Any
) -> tuple[Tensor, ...]:
    """Quantize ``gelu``."""
    return _quantized(gelu(input, approximate=approximate), **scheme)


# ---- The rotation -------------------------------------------------------------------------------


def _rotated(x: Tensor, block: int) -> Tensor:
    c = compute_dtype(x.dtype)
    y = x.to(c).unflatten(-1, (-1, block)) if x.numel() else x.to(c)
    h = 1
    while h < block and x.numel():
        pairs = y.unflatten(-1, (-1, 2, h))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack([a + b, a - b], -2).flatten(-3)
        h *= 2
    factor = torch.tensor(1 / math.sqrt(block), dtype=c, device=x.device)
    return round_to((y * factor).reshape(x.shape), x.dtype)


@like_the_op
def hadamard(input: Tensor, block: int) -> Tensor:
    """Return the rotated blocks."""
    result: Tensor = Rule.apply(
        lambda: _rotated(input.detach(), block), lambda dy, *_: (_rotated(dy, block),), input
    )
    return result


@like_the_op
def hadamard_quantize_per_token(input: Tensor, block: int, **scheme: Any) -> tuple[Tensor, ...]:
    """Quantize ``hadamard``."""
    return _quantized(hadamard(input, block), **scheme)
