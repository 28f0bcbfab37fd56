# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family: exact sums of products of integers, rescaled."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from baraquant import ops

from . import affine, scaled
from . import range as ranges
from ._functions import Rule, like_the_op
from .granularity import segments
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


def _products_gradient(dy: Tensor, weight: Tensor, sw: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``dy @ w^`` in ``dtype``, where ``w^ = w * sw``."""
    return dy.to(dtype) @ round_to(weight.to(sw.dtype) * sw.unsqueeze(1), dtype)


def _bias_gradient(dy: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum over tokens."""
    assert bias is not None
    return rows_of(dy).sum(0, dtype=bias.dtype)


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
    z = _point_of_tokens(input_zero_point, input)

    def value() -> Tensor:
        acc = sums_of_products(input, z, weight)
        return rescaled(acc, _per_token(input_scale, input), weight_scale, bias, dtype)

    def gradient(dy: Tensor, needed: bool) -> tuple[Tensor]:
        return (_bias_gradient(dy, bias),)

    return Rule.apply(value, gradient, bias)


@like_the_op
def int8_product(
    input: Tensor,
    weight: Tensor,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
) -> Tensor:
    """Return the exact sums; ``weight_sum`` only saves a sum."""
    return sums_of_products(input, _point_of_tokens(input_zero_point, input), weight)


@like_the_op
def rescale_product(
    input: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the rescaled sums."""
    return rescaled(input, _per_token(input_scale, input), weight_scale, bias, dtype)


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
    backward: str = "float",
    rounding: str = "nearest",
    qweight: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Return :func:`quantized_linear` of the quantized weight; its gradient is straight through."""
    of_weight = (0, weight_quant_min, weight_quant_max)
    of_input: dict[str, Any] = {"quant_min": quant_min, "quant_max": quant_max}
    of_input["symmetric"] = symmetric

    def integers() -> tuple[Tensor, Tensor]:
        if qweight is not None and weight_scale is not None:
            return qweight, weight_scale
        w, sw, _ = ranges.dynamic_range_quantize_per_channel(weight.detach(), *of_weight)
        return w, sw

    def rounded_weight() -> Tensor:
        if qweight is None and weight.dtype == input.dtype:
            return ranges.dynamic_fake_quantize_per_channel(weight, *of_weight)
        w, sw = integers()
        rounded = round_to(w.to(sw.dtype) * sw[:, None], input.dtype)
        return Rule.apply(lambda: rounded, lambda dy, _: (dy.to(weight.dtype),), weight)

    def value() -> Tensor:
        w, sw = integers()
        return quantized_linear(input, w, sw, bias, **of_input)

    def input_gradient(dy: Tensor, random: Tensor | None) -> Tensor:
        if backward == "float":
            return dy @ rounded_weight()
        return integer_input_gradient(dy, *integers(), random)

    def weight_gradient(dy: Tensor, random: Tensor | None) -> Tensor:
        if backward != "int8":
            x = ranges.dynamic_fake_quantize_per_token(input, **of_input)
            return rows_of(dy).T @ rows_of(x)
        q, s, z = ranges.dynamic_range_quantize_per_token(input.detach(), **of_input)
        return integer_weight_gradient(dy, q, s, None if symmetric else z, random)

    def gradient(dy: Tensor, *needed: bool) -> tuple[Tensor | None, ...]:
        dx = dw = db = random = None
        if rounding == "stochastic" and (needed[0] or (needed[1] and backward == "int8")):
            random = scaled.draw_random(dy, 2)
        if needed[0]:
            scale, zero_point = ranges.choose_qparams_per_token(input, **of_input)
            of_token = segments(input.shape, "per_token", device=input.device)
            dx = affine.fake_quantize_backward(
                input_gradient(dy, random),
                *(input, scale, zero_point, of_token, quant_min, quant_max),
            )
        if needed[1]:
            dw = weight_gradient(dy, random)
        if needed[2]:
            assert bias is not None
            in_order = backward != "float"
            db = bias_gradient(dy, bias.dtype) if in_order else _bias_gradient(dy, bias)
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
