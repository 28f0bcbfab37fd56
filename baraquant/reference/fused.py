# SPDX-License-Identifier: BSD-3-Clause
"""The fused family: norms, activations and a rotation of vectors, and the same quantized.

``C`` is the compute type of the input.
"""

import math
from typing import Any

import torch
from torch import Tensor

from . import activations
from ._functions import Rule, like_the_op
from .granularity import tokens
from .range import dynamic_range_quantize
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
    """Return the mean, rounded to ``C`` once it is divided: a sum may leave the range of ``C``."""
    return (sums / torch.tensor(length, dtype=sums.dtype, device=sums.device)).to(dtype)


def _square_root(x: Tensor) -> Tensor:
    """Return the root, rounded once. On a CPU torch.sqrt may be MKL's, whose last bit varies."""
    if x.dtype == torch.float32:
        return x.to(torch.float64).sqrt().to(torch.float32)
    roots = [math.sqrt(value) for value in x.flatten().tolist()]
    return torch.tensor(roots, dtype=x.dtype, device=x.device).reshape(x.shape)


def _normalized(x: Tensor, eps: float, centered: bool) -> tuple[Tensor, Tensor]:
    """Return ``(x - m) * r`` and ``r``, all in ``C``; m is 0 if not centered."""
    c, length = x.dtype, x.shape[-1]
    m = _mean(sum_of_rows(x), length, c) if centered else torch.zeros_like(x[..., :1])
    d = (x - m).to(torch.float64)
    variance = _mean(sum_of_rows(d * d), length, c)
    r = torch.ones_like(variance) / _square_root(variance + torch.tensor(eps, dtype=c))
    # Of numbers so large that r is 0, some may be infinitely far from the mean; 0 * inf is NaN.
    return (x - torch.where(r == 0, torch.zeros_like(m), m)) * r, r


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
        rows = (math.prod(x.shape[:-1]), x.shape[-1])
        dw = None if weight is None else (dy * n).reshape(rows).sum(0).to(weight.dtype)
        db = None if bias is None else dy.reshape(rows).sum(0).to(bias.dtype)
        return round_to(r * dx, dtype), dw, db

    result: Tensor = Rule.apply(value, gradient, x, weight, bias)
    return result


def _quantized(a: Any, y: Tensor) -> tuple[Tensor, ...]:
    """Return what an op's further arguments make of its rows."""
    ends = a.quant_min, a.quant_max
    return dynamic_range_quantize(y.detach(), tokens(y), *ends, a.symmetric, a.dtype)


def _norm_op(a: Any, *, centered: bool, quantizes: bool = False) -> Any:
    """Return the norm of the input, or of its sum with the residual, and then that sum too."""
    x = a.input if a.residual is None else a.input + a.residual
    y = _norm(x, a.weight, a.bias if centered else None, a.eps, centered)
    results = _quantized(a, y) if quantizes else (y,)
    results = results if a.residual is None else (*results, x)
    return results if len(results) > 1 else y


@like_the_op
def rms_norm(a: Any) -> Any:
    """Return ``x * r * weight``, and the sum with the residual."""
    return _norm_op(a, centered=False)


@like_the_op
def layer_norm(a: Any) -> Any:
    """Return ``(x - m) * r * weight + bias``, and the sum with the residual."""
    return _norm_op(a, centered=True)


@like_the_op
def rms_norm_quantize_per_token(a: Any) -> Any:
    """Quantize ``rms_norm``."""
    return _norm_op(a, centered=False, quantizes=True)


@like_the_op
def layer_norm_quantize_per_token(a: Any) -> Any:
    """Quantize ``layer_norm``."""
    return _norm_op(a, centered=True, quantizes=True)


# ---- Activations --------------------------------------------------------------------------------


@like_the_op
def silu_mul(a: Any) -> Tensor:
    """Return ``silu(gate) * up``."""

    def value() -> Tensor:
        y = activations.silu(a.gate.detach().float(), a.gate.dtype)
        return (y * a.up.detach().float()).to(a.gate.dtype)

    def gradient(dy: Tensor, *needed: bool) -> Any:
        dy, g, u = dy.float(), a.gate.detach().float(), a.up.detach().float()
        s = torch.sigmoid(g)
        return (dy * u * s * (1 + g * (1 - s))).to(a.gate.dtype), (dy * g * s).to(a.up.dtype)

    result: Tensor = Rule.apply(value, gradient, a.gate, a.up)
    return result


@like_the_op
def gelu(a: Any) -> Tensor:
    """Return ``x * Phi(x)``, or its approximation by tanh."""
    rule = activations.gelu if a.approximate == "none" else activations.gelu_tanh
    dtype = a.input.dtype

    def value() -> Tensor:
        return rule(a.input.detach().float(), dtype).to(dtype)

    def gradient(dy: Tensor, *needed: bool) -> Any:
        x = a.input.detach().float()
        if a.approximate == "none":
            slope = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
            slope = slope + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        else:
            u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            t = torch.tanh(u)
            slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (
                1 + 3 * 0.044715 * x * x
            )
        return ((dy.float() * slope).to(dtype),)

    result: Tensor = Rule.apply(value, gradient, a.input)
    return result


@like_the_op
def silu_mul_quantize_per_token(a: Any) -> tuple[Tensor, ...]:
    """Quantize ``silu_mul``."""
    return _quantized(a, silu_mul(a.gate, a.up))


@like_the_op
def gelu_quantize_per_token(a: Any) -> tuple[Tensor, ...]:
    """Quantize ``gelu``."""
    return _quantized(a, gelu(a.input, approximate=a.approximate))


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
def hadamard(a: Any) -> Tensor:
    """Return the rotated blocks."""
    result: Tensor = Rule.apply(
        lambda: _rotated(a.input.detach(), a.block),
        lambda dy, *_: (_rotated(dy, a.block),),
        a.input,
    )
    return result


@like_the_op
def hadamard_quantize_per_token(a: Any) -> tuple[Tensor, ...]:
    """Quantize ``hadamard``."""
    return _quantized(a, hadamard(a.input, a.block))
