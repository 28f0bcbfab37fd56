# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family: exact sums of products of integers, rescaled."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from baraquant import ops

from . import affine
from . import range as ranges
from ._functions import Rule, like_the_op
from .granularity import INT32_MAX, INT32_MIN, segments
from .rules import round_to

# ---- Arithmetic ---------------------------------------------------------------------------------


def sums_of_products(q: Tensor, z: Tensor | None, w: Tensor) -> Tensor:
    """Return ``sum_k (q[t, k] - z[t]) * w[n, k]``, int32 ``[..., N]``; ``z`` is ``[..., 1]``.

    The sum is exact: float64 holds every sum of products. (A zero point outside the range of the
    integers may make a sum exceed int32, which wraps.)
    """
    products = (q.to(torch.float64) @ w.to(torch.float64).T).to(torch.int64)
    if z is not None:
        products = products - z.to(torch.int64) * w.sum(1, dtype=torch.int64)
    return products.to(torch.int32)


def add_rounding_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a + b`` in float64; if it is inexact, the neighbour whose last bit is 1."""
    total = a + b
    part = total - a
    rest = (a - (total - part)) + (b - part)  # Knuth: the exact error of the sum
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

    def exact_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        total = x + y
        part = total - x
        return total, (x - (total - part)) + (y - part)

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


def _per_token(qparams: Tensor, input: Tensor) -> Tensor:
    """Return ``[..., 1]``, one value for each token, from one for all or one for each."""
    tokens = input.shape[:-1]
    if qparams.shape in ((), (1,)):
        return qparams.reshape(()).expand(*tokens, 1)
    return qparams.reshape(*tokens, 1)


# ---- Gradients ----------------------------------------------------------------------------------


def _rows(grad: Tensor) -> Tensor:
    """Return ``[tokens, N]`` of ``[..., N]``."""
    return grad.reshape(grad.shape[:-1].numel(), grad.shape[-1])


def _products_gradient(dy: Tensor, weight: Tensor, sw: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``dy @ w^`` in ``dtype``, where ``w^ = w * sw``."""
    return dy.to(dtype) @ round_to(weight.to(sw.dtype) * sw.unsqueeze(1), dtype)


def _bias_gradient(dy: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum over tokens."""
    assert bias is not None
    return _rows(dy).sum(0, dtype=bias.dtype)


# ---- The ops ------------------------------------------------------------------------------------


@like_the_op
def int8_linear(
    input: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the rescaled integer product; ``weight_sum`` only saves a sum."""
    z = None
    if input_zero_point is not None:
        z = input_zero_point.to(torch.float64).clamp(INT32_MIN, INT32_MAX).to(torch.int32)
        z = _per_token(z, input)

    def value() -> Tensor:
        acc = sums_of_products(input, z, weight)
        return rescaled(acc, _per_token(input_scale, input), weight_scale, bias, dtype)

    def gradient(dy: Tensor, needed: bool) -> tuple[Tensor]:
        return (_bias_gradient(dy, bias),)

    return Rule.apply(value, gradient, bias)


@like_the_op
def smoothquant_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    act_scale: Tensor | float,
    bias: Tensor | None = None,
    *,
    act_zero_point: Tensor | int | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return :func:`int8_linear` with one scale for all tokens."""
    if not isinstance(act_scale, Tensor):
        act_scale = weight_scale.new_tensor(act_scale)
    if isinstance(act_zero_point, int):
        act_zero_point = torch.tensor(act_zero_point, device=input.device)
    return int8_linear(
        input,
        weight,
        act_scale,
        weight_scale,
        bias,
        input_zero_point=act_zero_point,
        dtype=dtype,
    )


@like_the_op
def quantized_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return :func:`int8_linear` of the input, quantized with a scale for each token.

    Its gradient is straight through: ``dy @ w^`` where the input lay inside the range.
    """
    of_input: dict[str, Any] = {"quant_min": quant_min, "quant_max": quant_max}
    of_input["symmetric"] = symmetric

    def value() -> Tensor:
        q, s, z = ranges.dynamic_range_quantize_per_token(input.detach(), **of_input)
        to = dtype or input.dtype
        return int8_linear(q, weight, s, weight_scale, bias, input_zero_point=z, dtype=to)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        dx = None
        if needed[0]:
            scale, zero_point = ranges.choose_qparams_per_token(input, **of_input)
            of_token = segments(input.shape, "per_token", device=input.device)
            dx = affine.fake_quantize_backward(
                _products_gradient(dy, weight, weight_scale, input.dtype),
                *(input, scale, zero_point, of_token, quant_min, quant_max),
            )
        return dx, _bias_gradient(dy, bias) if needed[1] else None

    return Rule.apply(value, gradient, input, bias)


@like_the_op
def static_quantized_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    act_scale: Tensor,
    bias: Tensor | None = None,
    *,
    act_zero_point: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return :func:`smoothquant_linear` of the input, quantized with the given scale.

    Its gradient is straight through: ``dy @ w^`` where the input lay inside the range, multiplied
    by ``act_scale / smooth_scale``, because the input was divided by ``smooth_scale / act_scale``.
    """
    granularity = "per_tensor" if smooth_scale is None else "per_channel"
    parts = segments(input.shape, granularity, device=input.device)
    scale, z = act_scale.reshape(()), act_zero_point
    if z is not None:
        z = z.reshape(())
    if smooth_scale is not None:
        scale, z = smooth_scale, None if z is None else z.expand_as(smooth_scale)

    def value() -> Tensor:
        x = input.detach()
        q = affine.quantize(x, scale, z, parts, quant_min, quant_max, torch.int8)
        to = dtype or input.dtype
        return smoothquant_linear(
            q, weight, weight_scale, act_scale, bias, act_zero_point=act_zero_point, dtype=to
        )

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        dx = None
        if needed[0]:
            dx = _products_gradient(dy, weight, weight_scale, input.dtype)
            if smooth_scale is not None:
                dx = round_to(dx.to(scale.dtype) * (act_scale / smooth_scale), input.dtype)
            dx = affine.fake_quantize_backward(dx, input, scale, z, parts, quant_min, quant_max)
        return dx, _bias_gradient(dy, bias) if needed[1] else None

    return Rule.apply(value, gradient, input, bias)


@like_the_op
def qat_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_quant_min: int = -128,
    weight_quant_max: int = 127,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Return :func:`quantized_linear` of the quantized weight; its gradient is straight through."""
    of_weight = (0, weight_quant_min, weight_quant_max)
    of_input: dict[str, Any] = {"quant_min": quant_min, "quant_max": quant_max}
    of_input["symmetric"] = symmetric

    def value() -> Tensor:
        w, sw, _ = ranges.dynamic_range_quantize_per_channel(weight.detach(), *of_weight)
        return quantized_linear(input, w, sw, bias, **of_input)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        rounded_input = ranges.dynamic_fake_quantize_per_token(input, **of_input)
        rounded_weight = ranges.dynamic_fake_quantize_per_channel(weight, *of_weight)
        rows = _rows(dy)
        dx = dw = db = None
        if needed[0]:
            scale, zero_point = ranges.choose_qparams_per_token(input, **of_input)
            of_token = segments(input.shape, "per_token", device=input.device)
            dx = affine.fake_quantize_backward(
                dy @ rounded_weight, input, scale, zero_point, of_token, quant_min, quant_max
            )
        if needed[1]:
            dw = rows.T @ rounded_input.reshape(rows.shape[0], weight.shape[1])
        if needed[2]:
            db = _bias_gradient(dy, bias)
        return dx, dw, db

    return Rule.apply(value, gradient, input, weight, bias)


# ---- The grouped ops: each group is a call of the op for one weight -----------------------------


def _grouped(name: str, of_one_weight: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the grouped op ``name``: the rows of each group, followed by zeros.

    Ends that do not ascend, or exceed the input, are replaced by the nearest valid ones.
    """
    op = getattr(ops, name)
    signature = inspect.signature(op)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        input, offsets = arguments["input"], arguments.pop("offsets")
        results, begin = [], 0
        for group, end in enumerate(offsets.tolist()):
            end = max(begin, min(end, input.shape[0]))
            results.append(of_one_weight(**_of_group(arguments, group, slice(begin, end))))
            begin = end
        dtype = arguments.get("dtype") or input.dtype
        shape = (input.shape[0] - begin, arguments["weight"].shape[1])
        return torch.cat([*results, torch.zeros(shape, dtype=dtype, device=input.device)])

    call.__module__ = "baraquant.reference"
    return call


def _of_group(arguments: dict[str, Any], group: int, rows: slice) -> dict[str, Any]:
    """Return the arguments of the op for one weight: those of one group."""
    own = dict(arguments)
    for name in ("input", "input_scale", "input_zero_point"):
        tensor = own.get(name)
        if tensor is not None and tensor.shape not in ((), (1,)):  # one value holds for all tokens
            own[name] = tensor[rows]
    for name in ("weight", "weight_scale", "weight_sum", "bias"):
        if own.get(name) is not None:
            own[name] = own[name][group]
    return own


int8_grouped_linear = _grouped("int8_grouped_linear", int8_linear)
quantized_grouped_linear = _grouped("quantized_grouped_linear", quantized_linear)
qat_grouped_linear = _grouped("qat_grouped_linear", qat_linear)
