# SPDX-License-Identifier: BSD-3-Clause
"""What every op of :mod:`baraquant.ops` computes, in plain PyTorch: the specification one can run.

The functions carry the names, arguments and defaults of the ops and give the same bits (a sum, the
gradient of a scale, up to its order). They are written to be read: nothing is fused, every
intermediate has its own tensor, and valid arguments are taken for granted (the ops check theirs).

With ``C`` the compute type (float32, or float64 where the input is float64), scale ``s``, zero
point ``z`` and ``rint`` rounding half to even::

    r = rint(C(x) / s)      v = r + C(z)      q = min(max(v, quant_min), quant_max)
    quantize       q as an integer                            NaN v: z, clamped to the range
    dequantize     (C(q) - C(z)) * s, rounded once
    fake_quantize  (q - C(z)) * s, rounded once               NaN v: NaN
    mask           quant_min <= v <= quant_max                NaN v: false
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import ops

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


# ---- The rules, one function for each -----------------------------------------------------------


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return ``C``: the dtype that values of ``dtype`` are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert ``x`` to ``dtype`` with one rounding, half to even.

    ``Tensor.to`` takes float64 to the 16-bit types through float32, which rounds twice. Rounding
    that first step to odd keeps the sticky bit, so that the second step decides correctly.
    """
    if x.dtype != torch.float64 or dtype not in (torch.float16, torch.bfloat16):
        return x.to(dtype)
    nearest = x.to(torch.float32)
    inexact = nearest.to(torch.float64).ne(x) & ~x.isnan()
    away = nearest.to(torch.float64).abs() > x.abs()
    truncated = torch.where(away, nearest.nextafter(torch.zeros_like(nearest)), nearest)
    odd = truncated.view(torch.int32).bitwise_or(1).view(torch.float32)
    return torch.where(inexact, odd, nearest).to(dtype)


def grid_position(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """Return ``v = rint(x / s) + z``, not yet clamped; all of dtype ``C``."""
    return torch.round(x / s) + z


def dequantized(q: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """Return ``(q - z) * s``; all of dtype ``C``."""
    return (q - z) * s


def is_inside(v: Tensor, quant_min: int, quant_max: int) -> Tensor:
    """Return the mask of the straight-through estimator: inclusive, false for NaN."""
    return (v >= quant_min) & (v <= quant_max)


# ---- Granularity: which segment, and so which scale, an element belongs to ----------------------


def segments(
    shape: torch.Size, granularity: str, axis: int = -1, group_size: int = 1, device: Any = None
) -> Tensor:
    """Return, for each element of a tensor of ``shape``, the number of its segment."""
    if granularity == "per_tensor":
        return torch.zeros(shape, dtype=torch.int64, device=device)
    axis %= len(shape)
    sizes = list(shape)
    if granularity == "per_channel":
        sizes = [n if d == axis else 1 for d, n in enumerate(shape)]
    elif granularity == "per_token":
        sizes[-1] = 1
    else:
        sizes[axis] = -(-sizes[axis] // group_size)  # rounded up
    numbers = torch.arange(torch.Size(sizes).numel(), device=device).reshape(sizes)
    if granularity == "per_group":
        numbers = numbers.index_select(axis, torch.arange(shape[axis], device=device) // group_size)
    return numbers.expand(shape)


def expand_qparams(
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    index: Tensor,
    dtype: torch.dtype,
    quant_range: tuple[int, int] = (INT32_MIN, INT32_MAX),
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of each element in ``dtype``.

    An integer zero point saturates to int32; a floating one (a learned one) stands for the nearest
    integer of ``quant_range``.
    """
    if not isinstance(scale, Tensor):
        scale = torch.tensor(scale, dtype=torch.float64, device=index.device)
    if not isinstance(zero_point, Tensor):
        z = torch.full_like(scale, zero_point or 0, dtype=dtype)
    elif zero_point.is_floating_point():
        z = zero_point.round().to(dtype).clamp(*quant_range)
    else:
        z = zero_point.to(torch.float64).clamp(INT32_MIN, INT32_MAX).to(dtype)
    return scale.to(dtype).reshape(-1)[index], z.reshape(-1)[index]


def sum_segments(terms: Tensor, index: Tensor, shape: torch.Size) -> Tensor:
    """Sum ``terms`` over each segment in float64, rounded to their dtype; one for each scale."""
    total = torch.zeros(shape.numel(), dtype=torch.float64, device=terms.device)
    total.index_add_(0, index.reshape(-1), terms.to(torch.float64).reshape(-1))
    return total.to(terms.dtype).reshape(shape)


class _Rule(torch.autograd.Function):  # type: ignore[misc]
    """Attaches a written-out gradient to a written-out value."""

    @staticmethod
    def forward(
        ctx: Any, value: Callable[[], Tensor], gradient: Callable[..., Any], *inputs: Any
    ) -> Tensor:
        ctx.gradient = gradient
        return value()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None, *ctx.gradient(*grads, *ctx.needs_input_grad[2:])


# ---- The ops, each for a given numbering of the segments ----------------------------------------


def _quantize(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    index: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    s, z = expand_qparams(scale, zero_point, index, compute_dtype(input.dtype))

    def value() -> Tensor:
        v = grid_position(input.to(s.dtype), s, z)
        return torch.where(v.isnan(), z, v).clamp(quant_min, quant_max).to(dtype)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (_quantize_backward(dy, input, scale, zero_point, index, quant_min, quant_max),)

    return _Rule.apply(value, gradient, input) if dtype.is_floating_point else value()


def _dequantize(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    index: Tensor,
    dtype: torch.dtype | None,
) -> Tensor:
    if isinstance(scale, Tensor):
        c = scale.dtype
    else:
        c = torch.float64 if torch.float64 in (input.dtype, dtype) else torch.float32
    s, z = expand_qparams(scale, zero_point, index, c)

    def value() -> Tensor:
        return round_to(dequantized(input.to(c), s, z), dtype or c)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor]:
        return (round_to(dy.to(c) * s, input.dtype),)

    return _Rule.apply(value, gradient, input)


def _fake_quantize(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    index: Tensor,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    arguments = (input, scale, zero_point, index, quant_min, quant_max)
    c = compute_dtype(input.dtype)
    s, z = expand_qparams(scale, zero_point, index, c, (quant_min, quant_max))

    def value() -> Tensor:
        q = grid_position(input.to(c), s, z).clamp(quant_min, quant_max)
        return dequantized(q, s, z).to(input.dtype)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        if not any(needed[1:]):
            return _fake_quantize_backward(dy, *arguments), None, None
        gradients = _fake_quantize_backward_qparams(dy, *arguments)
        return tuple(g if n else None for g, n in zip(gradients, needed, strict=True))

    return _Rule.apply(value, gradient, input, scale, zero_point)


def _quantize_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    index: Tensor,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    s, z = expand_qparams(scale, zero_point, index, compute_dtype(input.dtype))
    inside = is_inside(grid_position(input.to(s.dtype), s, z), quant_min, quant_max)
    return torch.where(inside, grad.to(s.dtype) / s, 0.0).to(input.dtype)


def _fake_quantize_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    index: Tensor,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    c = compute_dtype(input.dtype)
    s, z = expand_qparams(scale, zero_point, index, c, (quant_min, quant_max))
    inside = is_inside(grid_position(input.to(c), s, z), quant_min, quant_max)
    return torch.where(inside, grad, 0.0)  # a select: 0 * inf would be NaN


def _fake_quantize_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    index: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor, Tensor]:
    c = compute_dtype(input.dtype)
    s, z = expand_qparams(scale, zero_point, index, c, (quant_min, quant_max))
    x, dy = input.to(c), grad.to(c)
    v = grid_position(x, s, z)
    inside = is_inside(v, quant_min, quant_max)
    slope = torch.where(inside, torch.round(x / s) - x / s, v.clamp(quant_min, quant_max) - z)
    grad_scale = sum_segments(torch.where(v.isnan(), 0.0, dy * slope), index, scale.shape)
    shape = scale.shape if zero_point is None else zero_point.shape
    grad_zero_point = sum_segments(torch.where(inside, 0.0, -s * dy), index, shape)
    if zero_point is not None and zero_point.is_floating_point():
        grad_zero_point = grad_zero_point.to(zero_point.dtype)
    return torch.where(inside, grad, 0.0), grad_scale, grad_zero_point


def _dequantize_backward(
    grad: Tensor, scale: Tensor, index: Tensor, dtype: torch.dtype | None
) -> Tensor:
    s, _ = expand_qparams(scale, None, index, scale.dtype)
    return round_to(grad.to(s.dtype) * s, dtype or grad.dtype)


# ---- The public functions: the signature of the op, the segments of its granularity -------------


def _granularities(name: str, rule: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield ``rule`` for tensor, channel, token and group, called like the op of that ``name``."""
    for granularity in ("per_tensor", "per_channel", "per_token", "per_group"):
        op = getattr(ops, name.format(granularity))
        yield _with_segments(op, granularity, rule)


def _with_segments(
    op: Callable[..., Any], granularity: str, rule: Callable[..., Any]
) -> Callable[..., Any]:
    signature = inspect.signature(op)

    @functools.wraps(op)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        arguments.pop("save_mask", None)  # how much memory backward holds, never what it computes
        geometry = {k: arguments.pop(k) for k in ("axis", "group_size") if k in arguments}
        like = arguments["input"] if "input" in arguments else arguments["grad"]
        index = segments(like.shape, granularity, **geometry, device=like.device)
        return rule(index=index, **arguments)

    function.__module__ = __name__
    return function


(
    quantize_per_tensor,
    quantize_per_channel,
    quantize_per_token,
    quantize_per_group,
) = _granularities("quantize_{}", _quantize)
(
    dequantize_per_tensor,
    dequantize_per_channel,
    dequantize_per_token,
    dequantize_per_group,
) = _granularities("dequantize_{}", _dequantize)
(
    fake_quantize_per_tensor,
    fake_quantize_per_channel,
    fake_quantize_per_token,
    fake_quantize_per_group,
) = _granularities("fake_quantize_{}", _fake_quantize)
(
    quantize_per_tensor_backward,
    quantize_per_channel_backward,
    quantize_per_token_backward,
    quantize_per_group_backward,
) = _granularities("quantize_{}_backward", _quantize_backward)
(
    fake_quantize_per_tensor_backward,
    fake_quantize_per_channel_backward,
    fake_quantize_per_token_backward,
    fake_quantize_per_group_backward,
) = _granularities("fake_quantize_{}_backward", _fake_quantize_backward)
(
    fake_quantize_per_tensor_backward_qparams,
    fake_quantize_per_channel_backward_qparams,
    fake_quantize_per_token_backward_qparams,
    fake_quantize_per_group_backward_qparams,
) = _granularities("fake_quantize_{}_backward_qparams", _fake_quantize_backward_qparams)
(
    dequantize_per_tensor_backward,
    dequantize_per_channel_backward,
    dequantize_per_token_backward,
    dequantize_per_group_backward,
) = _granularities("dequantize_{}_backward", _dequantize_backward)
