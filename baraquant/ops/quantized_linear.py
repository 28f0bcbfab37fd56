# SPDX-License-Identifier: BSD-3-Clause
"""quantized_linear: a linear layer with quantized weights that quantizes its input on the fly."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Quantize each token to int8 with the scale of its own data, and multiply in integers.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]`` with
    ``q, s, z = dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)``

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 where ``symmetric`` is False.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous; as
            ``dynamic_range_quantize_per_channel(w, 0)`` gives them.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
        bias: ``[N]``, of the dtype of ``weight_scale`` or of ``input``; None adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``, needed if ``symmetric`` is False.
            If it is None, each call computes it.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``. The dtype of ``bias`` follows it.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-2.0, 127.0]])
        >>> w, sw = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8), torch.tensor([1.0, 0.5])
        >>> baraquant.ops.quantized_linear(x, w, sw)
        tensor([[  1.0000,  63.5000],
                [ -2.0000, 127.0000]])
    """
    return torch.ops.baraquant.quantized_linear.default(
        input,
        weight,
        weight_scale,
        bias,
        symmetric=symmetric,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
