# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family: exact sums of products of integers, rescaled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import affine, scaled
from . import range as ranges
from ._functions import Rule, like_the_op
from .granularity import Grid, Segments, segments, tokens
from .integer_backward import (
    bias_gradient,
    integer_input_gradient,
    integer_weight_gradient,
    rows_of,
)
from .products import among_integers, rescaled, sums_of_products
from .rules import round_to


def _per_token(qparams: Tensor, input: Tensor) -> Tensor:
    """Return ``[..., 1]``, one value for each token, from one for all or one for each."""
    tokens = input.shape[:-1]
    if qparams.shape in ((), (1,)):
        return qparams.reshape(()).expand(*tokens, 1)
    return qparams.reshape(*tokens, 1)


def _point_of_tokens(zero_point: Tensor | None, input: Tensor) -> Tensor | None:
    if zero_point is None:
        return None
    return _per_token(among_integers(zero_point, input.dtype), input)


# ---- Gradients ----------------------------------------------------------------------------------


def _bias_gradient(dy: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum over tokens."""
    assert bias is not None
    return rows_of(dy).sum(0, dtype=bias.dtype)


# ---- The ops ------------------------------------------------------------------------------------


@like_the_op
def int8_linear(a: Any) -> Tensor:
    """Return the rescaled integer product; ``weight_sum`` only saves a sum."""
    z = _point_of_tokens(a.input_zero_point, a.input)

    def value() -> Tensor:
        acc = sums_of_products(a.input, z, a.weight)
        return rescaled(acc, _per_token(a.input_scale, a.input), a.weight_scale, a.bias, a.dtype)

    def gradient(dy: Tensor, needed: bool) -> tuple[Tensor]:
        return (_bias_gradient(dy, a.bias),)

    return Rule.apply(value, gradient, a.bias)


@like_the_op
def int8_product(a: Any) -> Tensor:
    """Return the exact sums; ``weight_sum`` only saves a sum."""
    return sums_of_products(a.input, _point_of_tokens(a.input_zero_point, a.input), a.weight)


@like_the_op
def rescale_product(a: Any) -> Tensor:
    """Return the rescaled sums."""
    scale = _per_token(a.input_scale, a.input)
    return rescaled(a.input, scale, a.weight_scale, a.bias, a.dtype)


@like_the_op
def smoothquant_linear(a: Any) -> Tensor:
    """Return :func:`int8_linear` with one scale for all tokens."""
    scale, z = a.act_scale, a.act_zero_point
    if not isinstance(scale, Tensor):
        scale = a.weight_scale.new_tensor(scale)
    if isinstance(z, int):
        z = torch.tensor(z, device=a.input.device)
    of_input: dict[str, Any] = {"input_zero_point": z, "dtype": a.dtype}
    return int8_linear(a.input, a.weight, scale, a.weight_scale, a.bias, **of_input)


def _of_tokens(a: Any) -> tuple[Segments, int, int, bool]:
    """Return how an op rounds its input, with a scale for each token."""
    return tokens(a.input), a.quant_min, a.quant_max, a.symmetric


def _masked(a: Any, dx: Tensor) -> Tensor:
    """Return the gradient of an input with a scale for each token: 0 where it was clamped."""
    parts, *ends, _ = _of_tokens(a)
    qparams = ranges.choose_qparams(a.input, *_of_tokens(a))
    return affine.fake_quantize_backward(dx, a.input, Grid(parts, *qparams, *ends))


def _served(a: Any, value: Callable[[], Tensor], through: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a value whose gradient is ``dy @ w^``, brought through the input's rounding."""

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        dx = None
        if needed[0]:
            w = a.weight.to(a.weight_scale.dtype) * a.weight_scale.unsqueeze(1)
            dx = through(dy.to(a.input.dtype) @ round_to(w, a.input.dtype))
        return dx, _bias_gradient(dy, a.bias) if needed[1] else None

    result: Tensor = Rule.apply(value, gradient, a.input, a.bias)
    return result


@like_the_op
def quantized_linear(a: Any) -> Tensor:
    """Return :func:`int8_linear` of the input, quantized with a scale for each token.

    Its gradient is straight through: ``dy @ w^`` where the input lay inside the range.
    """

    def value() -> Tensor:
        q, s, z = ranges.dynamic_range_quantize(a.input.detach(), *_of_tokens(a))
        of_input: dict[str, Any] = {"input_zero_point": z, "dtype": a.dtype or a.input.dtype}
        return int8_linear(q, a.weight, s, a.weight_scale, a.bias, **of_input)

    return _served(a, value, lambda dx: _masked(a, dx))


@like_the_op
def static_quantized_linear(a: Any) -> Tensor:
    """Return :func:`smoothquant_linear` of the input, quantized with the given scale.

    Its gradient is straight through: ``dy @ w^`` where the input lay inside the range, multiplied
    by ``act_scale / smooth_scale``, because the input was divided by ``smooth_scale / act_scale``.
    """
    input, smooth_scale = a.input, a.smooth_scale
    granularity = "per_tensor" if smooth_scale is None else "per_channel"
    parts = segments(input.shape, granularity, device=input.device)
    scale, z = a.act_scale.reshape(()), a.act_zero_point
    if z is not None:
        z = z.reshape(())
    if smooth_scale is not None:
        scale, z = smooth_scale, None if z is None else z.expand_as(smooth_scale)
    grid = Grid(parts, scale, z, a.quant_min, a.quant_max)

    def value() -> Tensor:
        q = affine.quantize(input.detach(), grid)
        of_input = {"act_zero_point": a.act_zero_point, "dtype": a.dtype or input.dtype}
        return smoothquant_linear(q, a.weight, a.weight_scale, a.act_scale, a.bias, **of_input)

    def through(dx: Tensor) -> Tensor:
        if smooth_scale is not None:
            dx = round_to(dx.to(scale.dtype) * (a.act_scale / smooth_scale), input.dtype)
        return affine.fake_quantize_backward(dx, input, grid)

    return _served(a, value, through)


@like_the_op
def qat_linear(a: Any) -> Tensor:
    """Return :func:`quantized_linear` of the quantized weight; its gradient is straight through."""
    input, weight, bias = a.input, a.weight, a.bias
    of_weight = (
        segments(weight.shape, "per_channel", 0, device=weight.device),
        a.weight_quant_min,
        a.weight_quant_max,
        True,
    )

    def integers() -> tuple[Tensor, Tensor]:
        if a.qweight is not None and a.weight_scale is not None:
            return a.qweight, a.weight_scale
        w, sw, _ = ranges.dynamic_range_quantize(weight.detach(), *of_weight)
        return w, sw

    def rounded_weight() -> Tensor:
        if a.qweight is None and weight.dtype == input.dtype:
            return ranges.dynamic_fake_quantize(weight, *of_weight)
        w, sw = integers()
        rounded = round_to(w.to(sw.dtype) * sw[:, None], input.dtype)
        return Rule.apply(lambda: rounded, lambda dy, _: (dy.to(weight.dtype),), weight)

    def value() -> Tensor:
        of_input = {name: getattr(a, name) for name in ("symmetric", "quant_min", "quant_max")}
        return quantized_linear(input, *integers(), bias, **of_input)

    def input_gradient(dy: Tensor, random: Tensor | None) -> Tensor:
        if a.backward == "float":
            return dy @ rounded_weight()
        return integer_input_gradient(dy, *integers(), random)

    def weight_gradient(dy: Tensor, random: Tensor | None) -> Tensor:
        if a.backward != "int8":
            return rows_of(dy).T @ rows_of(ranges.dynamic_fake_quantize(input, *_of_tokens(a)))
        q, s, z = ranges.dynamic_range_quantize(input.detach(), *_of_tokens(a))
        return integer_weight_gradient(dy, q, s, None if a.symmetric else z, random)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        dx = dw = db = random = None
        if a.rounding == "stochastic" and (needed[0] or (needed[1] and a.backward == "int8")):
            random = scaled.draw_random(dy, 2)
        if needed[0]:
            dx = _masked(a, input_gradient(dy, random))
        if needed[1]:
            dw = weight_gradient(dy, random)
        if needed[2]:
            in_order = a.backward != "float"
            db = bias_gradient(dy, bias.dtype) if in_order else _bias_gradient(dy, bias)
        return dx, dw, db

    return Rule.apply(value, gradient, input, weight, bias)


# ---- The grouped ops: each group is a call of the op for one weight -----------------------------


def _of_groups(a: Any, of_one_weight: Callable[..., Tensor]) -> Tensor:
    """Return the rows of each group, followed by zeros.

    Ends that do not ascend, or exceed the input, are replaced by the nearest valid ones.
    """
    arguments = dict(vars(a))
    input, offsets = a.input, arguments.pop("offsets")
    results, begin = [], 0
    for group, end in enumerate(offsets.tolist()):
        end = max(begin, min(end, input.shape[0]))
        results.append(of_one_weight(**_of_group(arguments, group, slice(begin, end))))
        begin = end
    dtype = arguments.get("dtype") or input.dtype
    shape = (input.shape[0] - begin, a.weight.shape[1])
    return torch.cat([*results, torch.zeros(shape, dtype=dtype, device=input.device)])


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


@like_the_op
def int8_grouped_linear(a: Any) -> Tensor:
    """Return :func:`int8_linear` of each group."""
    return _of_groups(a, int8_linear)


@like_the_op
def quantized_grouped_linear(a: Any) -> Tensor:
    """Return :func:`quantized_linear` of each group."""
    return _of_groups(a, quantized_linear)


@like_the_op
def qat_grouped_linear(a: Any) -> Tensor:
    """Return :func:`qat_linear` of each group."""
    return _of_groups(a, qat_linear)
