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
        input: ``[T, K]``, the tokens of a group side by side; float32, float64, float16 or
            bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or
            65536 where ``symmetric`` is False.
        weight: The integers, ``[E, N, K]``, int8, contiguous.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, up to T at most.
            On a GPU they are read by the device alone: what does not ascend, or lies beyond T,
            counts as the nearest that does not.
        weight_scale: ``[E, N]``, float32 (float64 for a float64 input).
        bias: ``[E, N]``, of the dtype of ``weight_scale`` or of ``input``; None stands for none.
        symmetric: Whether 0 is the middle of the input's range; else the range of each token, with
            0, fills ``quant_min`` to ``quant_max``.
        weight_sum: ``weight.sum(2, dtype=torch.int32)``, ``[E, N]``, which an input that is not
            symmetric needs; None: summed up in each call.
        quant_min: The least integer of the input, at least -128; where ``symmetric`` is True,
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The greatest, at most 127.
        dtype: That of the result: float32, float16 or bfloat16 (float64 for a float64 input); None
            stands for that of ``input``. The dtype of ``bias`` follows it.

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
