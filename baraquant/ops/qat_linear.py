# SPDX-License-Identifier: BSD-3-Clause
"""qat_linear: the linear layer to train for quantized_linear, whose forward it computes."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
) -> Tensor:
    """Quantize weights and tokens to int8 and multiply them in integers, differentiably.

    ``y = quantized_linear(input, w, sw, bias, symmetric=symmetric, quant_min=quant_min,
    quant_max=quant_max)`` with ``w, sw, _ = dynamic_range_quantize_per_channel(weight, 0,
    weight_quant_min, weight_quant_max)``

    What is trained is, bit for bit, what is deployed. Under autocast the arguments are cast first,
    as those of :func:`torch.nn.functional.linear` are.

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 where ``symmetric`` is False.
        weight: ``[N, K]``, of the dtype of ``input``.
        bias: ``[N]``, of that dtype, or float32 (float64 for a float64 input); None adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``. The
            weight is always symmetric.
        weight_quant_min: The smallest integer of the weight: ``-weight_quant_max`` or one less, and
            at least -128. Four bits take -8 and 7.
        weight_quant_max: The largest integer of the weight, 1 to 127.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less.
        quant_max: The largest integer of the input, at most 127.

    Returns:
        ``[..., N]``, of the dtype of ``input``, contiguous.

    Example:
        >>> x, w = torch.tensor([[1.0, 63.5]]), torch.tensor([[127.0, 0.3], [0.9, 2.0]])
        >>> baraquant.ops.qat_linear(x, w)
        tensor([[127.0000, 127.8976]])
        >>> baraquant.ops.qat_linear(x, w, weight_quant_min=-2, weight_quant_max=1)  # two bits
        tensor([[127., 127.]])
    """
    return torch.ops.baraquant.qat_linear.default(
        input,
        weight,
        bias,
        symmetric=symmetric,
        weight_quant_min=weight_quant_min,
        weight_quant_max=weight_quant_max,
        quant_min=quant_min,
        quant_max=quant_max,
    )
