# SPDX-License-Identifier: BSD-3-Clause
"""int8_grouped_linear: int8_linear with a weight for each group of tokens (mixture of experts)."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Multiply the integers of each group of tokens by the weight of the group.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[e, n, k]) * sw[e, n] * s[t] + bias[e, n]`` with the
    group ``e`` of token ``t``

    Each group's rows are, bit for bit, those of :func:`int8_linear` with its weight. A group may
    have no token at all. Tokens behind the last group give 0.

    Args:
        input: The integers ``q``, ``[T, K]``, int8 or uint8, the tokens of each group in adjacent
            rows. Any strides; what is not contiguous is copied first. K is at most 131071; 65536
            where it is uint8 or has a zero point.
        weight: The integers ``w``, ``[E, N, K]``, int8, contiguous.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T.
            On a GPU only the device reads them: an offset that does not ascend, or exceeds T, is
            replaced by the nearest valid one.
        input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[T]`` or
            ``[T, 1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[E, N]``, of the dtype of ``input_scale``.
        bias: ``[E, N]``, of that dtype or of the result's; None adds no bias.
        input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands
            for 0.
        weight_sum: ``weight.sum(2, dtype=torch.int32)``, ``[E, N]``; needed with a zero point. If
            it is None, each call computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[T, N]``, of ``dtype``, contiguous.

    Example:
        >>> q = torch.tensor([[2, 1], [-4, 0], [5, 5]], dtype=torch.int8)
        >>> w = torch.tensor([[[1, 0], [0, 2]], [[3, 0], [1, 1]]], dtype=torch.int8)
        >>> ends = torch.tensor([1, 3], dtype=torch.int32)
        >>> s, sw = torch.tensor(0.5), torch.ones(2, 2)
        >>> baraquant.ops.int8_grouped_linear(q, w, ends, s, sw)
        tensor([[ 1.0000,  1.0000],
                [-6.0000, -2.0000],
                [ 7.5000,  5.0000]])
    """
    return torch.ops.baraquant.int8_grouped_linear.default(
        input,
        weight,
        offsets,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
