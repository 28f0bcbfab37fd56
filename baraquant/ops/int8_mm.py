# SPDX-License-Identifier: BSD-3-Clause
"""int8_linear: a linear layer of integers, with a scale for each token or one for all."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Multiply integers, sum exactly in int32, and scale the sums back to numbers.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]``

    Integers carry no gradient. If the layers before are trained, use :func:`quantized_linear` or
    :func:`static_quantized_linear`: they take the floating input and return a gradient for it.

    Args:
        input: The integers ``q``, ``[..., K]``, int8 or uint8. Any strides; what is not contiguous
            is copied first. K is at most 131071; 65536 where it is uint8 or has a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous.
        input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[...]`` or
            ``[..., 1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[N]``, of the dtype of ``input_scale``.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands
            for 0.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int8)
        >>> s, sw = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5, 2.0])
        >>> baraquant.ops.int8_linear(q, w, s, sw)
        tensor([[  1.0000,  63.5000, 129.0000],
                [ -1.0000,   0.0000,  -2.0000]])
    """
    return torch.ops.baraquant.int8_linear.default(
        input,
        weight,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
