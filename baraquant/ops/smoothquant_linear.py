# SPDX-License-Identifier: BSD-3-Clause
"""smoothquant_linear: a linear layer of integers whose input has one static scale."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Multiply an input that is smoothed and quantized with one scale by quantized weights.

    ``y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]``

    SmoothQuant divides each channel of the activations by a factor and multiplies the weights by
    it. The division costs no extra step: ``quantize_per_channel(x, s * smooth, None, -1)`` gives
    the smoothed integers.

    Integers carry no gradient. If the layers before are trained, use
    :func:`static_quantized_linear`: it does both steps in one and returns a gradient for ``x``.

    Args:
        input: The integers ``q``, ``[..., K]``, int8 or uint8. Any strides; what is not contiguous
            is copied first. K is at most 131071; 65536 where it is uint8 or has a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 result).
        act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``; or a number > 0.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        act_zero_point: ``z``: ``[]``, ``[1]`` or one for each token, of any integer dtype; an int
            is allowed only with a number as the scale; None stands for 0.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8)
        >>> baraquant.ops.smoothquant_linear(q, w, torch.tensor([1.0, 0.5]), 0.5)
        tensor([[ 1.0000, 63.5000],
                [-2.0000,  0.0000]])
    """
    if isinstance(act_scale, (int, float)):
        return torch.ops.baraquant.smoothquant_linear.number(
            input,
            weight,
            weight_scale,
            act_scale,
            bias,
            act_zero_point=act_zero_point,
            weight_sum=weight_sum,
            dtype=dtype,
        )
    return torch.ops.baraquant.smoothquant_linear.default(
        input,
        weight,
        weight_scale,
        act_scale,
        bias,
        act_zero_point=act_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
