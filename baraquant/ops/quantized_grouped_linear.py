# SPDX-License-Identifier: BSD-3-Clause
"""quantized_grouped_linear: quantized_linear with a weight for each group of tokens."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Quantize each token to int8, and multiply it by the weight of its group in integers.

    ``y = int8_grouped_linear(q, weight, offsets, s, weight_scale, bias, input_zero_point=z)`` with
    ``q, s, z = dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)``

    Each group's rows are, bit for bit, those of :func:`quantized_linear` with its weight. A group
    may have no token at all. Tokens behind the last group give 0.

    Args:
        input: ``[T, K]``, the tokens of each group in adjacent rows; float32, float64, float16 or
            bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or
            65536 where ``symmetric`` is False.
        weight: The integers, ``[E, N, K]``, int8, contiguous.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T.
            On a GPU only the device reads them: an offset that does not ascend, or exceeds T, is
            replaced by the nearest valid one.
        weight_scale: ``[E, N]``, float32 (float64 for a float64 input).
        bias: ``[E, N]``, of the dtype of ``weight_scale`` or of ``input``; None adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``.
        weight_sum: ``weight.sum(2, dtype=torch.int32)``, ``[E, N]``, needed if ``symmetric`` is
            False. If it is None, each call computes it.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``. The dtype of ``bias`` follows it.

    Returns:
        ``[T, N]``, of ``dtype``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 127.0], [-2.0, 127.0]])
        >>> w = torch.tensor([[[1, 0]], [[3, 1]]], dtype=torch.int8)
        >>> ends = torch.tensor([1, 2], dtype=torch.int32)
        >>> baraquant.ops.quantized_grouped_linear(x, w, ends, torch.ones(2, 1))
        tensor([[  1.],
                [121.]])
    """
    return torch.ops.baraquant.quantized_grouped_linear.default(
        input,
        weight,
        offsets,
        weight_scale,
        bias,
        symmetric=symmetric,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
