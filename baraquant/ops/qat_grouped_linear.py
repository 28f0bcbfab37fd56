# SPDX-License-Identifier: BSD-3-Clause
"""qat_grouped_linear: the layer to train for quantized_grouped_linear."""

import torch
from torch import Tensor

from ._operator import operator


@operator
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
    """Quantize weights and tokens to int8 and multiply them in groups, differentiably.

    ``y = quantized_grouped_linear(input, w, offsets, sw, bias, symmetric=symmetric,
    quant_min=quant_min, quant_max=quant_max)`` where ``w[e], sw[e], _ =
    dynamic_range_quantize_per_channel(weight[e], 0, weight_quant_min, weight_quant_max)``

    What is trained is, bit for bit, what is deployed, and each group's rows are those of
    :func:`qat_linear` with its weight. Under autocast the arguments are cast first, as those of
    :func:`torch.nn.functional.linear` are.

    Args:
        input: ``[T, K]``, the tokens of each group in adjacent rows; float32, float64, float16 or
            bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or
            65536 where ``symmetric`` is False.
        weight: ``[E, N, K]``, of the dtype of ``input``.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T.
            On a GPU only the device reads them: an offset that does not ascend, or exceeds T, is
            replaced by the nearest valid one.
        bias: ``[E, N]``, of that dtype, or float32 (float64 for a float64 input); None adds no
            bias.
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
        ``[T, N]``, of the dtype of ``input``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 127.0], [1.0, 127.0]])
        >>> w = torch.tensor([[[127.0, 0.3]], [[0.0, 127.0]]])
        >>> ends = torch.tensor([1, 2], dtype=torch.int32)
        >>> baraquant.ops.qat_grouped_linear(x, w, ends)
        tensor([[  127.],
                [16129.]])
    """
    return torch.ops.baraquant.qat_grouped_linear.default(
        input,
        weight,
        offsets,
        bias,
        symmetric=symmetric,
        weight_quant_min=weight_quant_min,
        weight_quant_max=weight_quant_max,
        quant_min=quant_min,
        quant_max=quant_max,
    )
