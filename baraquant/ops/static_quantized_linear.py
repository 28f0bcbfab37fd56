# SPDX-License-Identifier: BSD-3-Clause
"""static_quantized_linear: a linear layer of integers that quantizes with a scale known before."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Quantize the input to int8 with one scale that is given, and multiply in integers.

    ``y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]`` with
    ``q = quantize_per_tensor(input, s, z, quant_min, quant_max)``; where ``smooth_scale`` is given,
    with ``q = quantize_per_channel(input, smooth_scale, z, -1, quant_min, quant_max)``

    This combines both steps of :func:`smoothquant_linear`, so that the input gets a gradient.

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 with a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous; as
            ``dynamic_range_quantize_per_channel(w, 0)`` gives them.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
        act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        act_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0.
        smooth_scale: ``s * smooth``, ``[K]``, of the dtype of ``weight_scale``: the input is
            divided by ``smooth``, and the weight was multiplied by it. None: no smoothing.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.
        quant_min: The smallest integer of the input, at least -128. Four bits take -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-2.0, 0.2]])
        >>> w, sw = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8), torch.tensor([1.0, 0.5])
        >>> baraquant.ops.static_quantized_linear(x, w, sw, torch.tensor(0.5))
        tensor([[ 1.0000, 63.5000],
                [-2.0000,  0.0000]])
    """
    return torch.ops.baraquant.static_quantized_linear.default(
        input,
        weight,
        weight_scale,
        act_scale,
        bias,
        act_zero_point=act_zero_point,
        smooth_scale=smooth_scale,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
