# SPDX-License-Identifier: BSD-3-Clause
"""Products of rows that are sorted by expert, as loops over the experts.

``offsets`` is int32 ``[E]``: the rows of expert ``e`` end before ``offsets[e]``. Rows behind the
last offset belong to no expert and give 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import ops


def int8_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return :func:`baraquant.ops.int8_linear` of each row with its expert's weight.

    Args:
        input: int8 ``[T, K]``.
        weight: int8 ``[E, N, K]``.
        offsets: int32 ``[E]``.
        input_scale: ``[T]``, or ``[]``.
        weight_scale: ``[E, N]``.
        bias: ``[E, N]``.
        input_zero_point: Shaped like ``input_scale``.
        weight_sum: int32 ``[E, N]``.
        dtype: Of the result, ``[T, N]``.
    """
    per_row = input_scale.dim() > 0

    def product(rows: slice, expert: int) -> Tensor:
        zero_point = input_zero_point
        if per_row and zero_point is not None:
            zero_point = zero_point[rows]
        return ops.int8_linear(
            input[rows],
            weight[expert],
            input_scale[rows] if per_row else input_scale,
            weight_scale[expert],
            None if bias is None else bias[expert],
            input_zero_point=zero_point,
            weight_sum=None if weight_sum is None else weight_sum[expert],
            dtype=dtype,
        )

    return _of_experts(product, input.shape[0], weight.shape[1], offsets, dtype)


def quantized_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return :func:`baraquant.ops.quantized_linear` of each row with its expert's weight.

    Args:
        input: Floating ``[T, K]``; gets a gradient.
        weight: int8 ``[E, N, K]``.
        offsets: int32 ``[E]``.
        weight_scale: ``[E, N]``.
        bias: ``[E, N]``.
        symmetric: As for ``quantized_linear``.
        weight_sum: int32 ``[E, N]``.
        quant_min: As for ``quantized_linear``.
        quant_max: As for ``quantized_linear``.
        dtype: Of the result, ``[T, N]``.
    """

    def product(rows: slice, expert: int) -> Tensor:
        return ops.quantized_linear(
            input[rows],
            weight[expert],
            weight_scale[expert],
            None if bias is None else bias[expert],
            symmetric=symmetric,
            weight_sum=None if weight_sum is None else weight_sum[expert],
            quant_min=quant_min,
            quant_max=quant_max,
            dtype=dtype,
        )

    dtype = input.dtype if dtype is None else dtype
    return _of_experts(product, input.shape[0], weight.shape[1], offsets, dtype)


def qat_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_quant_min: int = -128,
    weight_quant_max: int = 127,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Return :func:`baraquant.ops.qat_linear` of each row with its expert's weight.

    Args:
        input: Floating ``[T, K]``.
        weight: Floating ``[E, N, K]``.
        offsets: int32 ``[E]``.
        bias: ``[E, N]``.
        symmetric: As for ``qat_linear``.
        weight_quant_min: As for ``qat_linear``.
        weight_quant_max: As for ``qat_linear``.
        quant_min: As for ``qat_linear``.
        quant_max: As for ``qat_linear``.
    """
    # One node for all experts: those without a row get a gradient of 0.
    weights, biases = weight.unbind(0), None if bias is None else bias.unbind(0)

    def product(rows: slice, expert: int) -> Tensor:
        return ops.qat_linear(
            input[rows],
            weights[expert],
            None if biases is None else biases[expert],
            symmetric=symmetric,
            weight_quant_min=weight_quant_min,
            weight_quant_max=weight_quant_max,
            quant_min=quant_min,
            quant_max=quant_max,
        )

    return _of_experts(product, input.shape[0], weight.shape[1], offsets, input.dtype)


def float_grouped_linear(
    input: Tensor,
    weight_of: Callable[[int], Tensor],
    offsets: Tensor,
    out_features: int,
    bias: Tensor | None = None,
) -> Tensor:
    """Return ``torch.nn.functional.linear`` of each row with its expert's weight.

    Args:
        input: Floating ``[T, K]``.
        weight_of: Gives an expert's weight, floating ``[N, K]``; asked for those that have rows.
        offsets: int32 ``[E]``.
        out_features: N.
        bias: ``[E, N]``.
    """
    biases = None if bias is None else bias.unbind(0)

    def product(rows: slice, expert: int) -> Tensor:
        return F.linear(input[rows], weight_of(expert), None if biases is None else biases[expert])

    return _of_experts(product, input.shape[0], out_features, offsets, input.dtype)


def _of_experts(
    product: Callable[[slice, int], Tensor],
    rows: int,
    features: int,
    offsets: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return the products of all experts, one below the other, ``[rows, features]``."""
    if offsets.is_meta:
        return torch.empty(rows, features, dtype=dtype, device="meta")
    parts = []
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        if end > start:
            parts.append(product(slice(start, end), expert))
        start = end
    if not parts:  # the result has to hang on the parameters all the same
        parts.append(product(slice(0, 0), 0))
    if start < rows:
        parts.append(parts[0].new_zeros(rows - start, features))
    return torch.cat(parts)
