# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of a product of integers: those of the numbers that the integers stand for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..ops import backward


class Operands(NamedTuple):
    """What a product has multiplied.

    Attributes:
        qinput: The integers ``[..., K]``; None if the weight needs no gradient.
        scale: Of each token ``[..., 1]``, or one for all.
        zero_point: Likewise, or None.
        qweight: The integers ``[N, K]``.
        weight_scale: Of each output channel ``[N]``.
        inside: A bool for each number of the input: whether it gets a gradient; None: all do.
    """

    qinput: Tensor | None
    scale: Tensor
    zero_point: Tensor | None
    qweight: Tensor
    weight_scale: Tensor
    inside: Tensor | None


class Gradients(NamedTuple):
    """Of the input, the weight and the bias; None if it is not needed."""

    input: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def straight_through(
    grad: Tensor,
    operands: Operands,
    needs: tuple[bool, ...],
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None,
    *,
    per_token: bool = True,
    factor: Tensor | None = None,
) -> Gradients:
    """Return the gradients that the straight-through estimator defines, as ``qat_linear`` does.

    Args:
        grad: Of the output ``[..., N]``.
        operands: What was multiplied.
        needs: Whether the input, the weight and the bias need a gradient.
        dtype: Of the input, and of the products of the gradients.
        bias_dtype: Of the bias, if there is one.
        per_token: Whether ``operands.scale`` has a number for each token.
        factor: Multiplies the gradient of the input; None: nothing does.
    """
    needs_input, needs_weight, needs_bias = needs
    dx = dw = db = None
    with torch.autocast(grad.device.type, enabled=False):
        rows = grad.to(dtype)
        if needs_input:
            rounded = ops.dequantize_per_channel(
                operands.qweight, operands.weight_scale, None, 0, dtype=dtype
            )
            dx = torch.matmul(rows, rounded)
            if factor is not None:
                dx = (dx * factor).to(dtype)
            if operands.inside is not None:
                dx = torch.where(operands.inside, dx, 0)
        flat = rows.reshape(-1, rows.shape[-1])
        if needs_weight:
            dequantize = ops.dequantize_per_token if per_token else ops.dequantize_per_tensor
            x = dequantize(operands.qinput, operands.scale, operands.zero_point, dtype=dtype)
            dw = flat.t().mm(x.reshape(flat.shape[0], -1))
        if needs_bias:
            db = flat.sum(0, dtype=bias_dtype)
    return Gradients(dx, dw, db)


def inside_of_tokens(
    input: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int
) -> Tensor:
    """Return a bool for each number: whether it lies in the range of its token."""
    ones = torch.ones_like(input)
    kept = backward.fake_quantize_per_token_backward(
        ones, input, scale, zero_point, quant_min, quant_max
    )
    return kept != 0
