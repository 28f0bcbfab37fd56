# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers; ``_docs/int8_conv.py`` has the other sections of its docstring."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._docs.int8_conv import INT8_CONV
from ._operator import operator


@operator(INT8_CONV)
def int8_conv(
    input: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Convolve integers with exact sums, and scale these back to numbers.

    ``y[n, o, p] = (sum_ck (q[n, c, p * stride - padding + k * dilation] - z) * w[o, c, k]) * sw[o]
    * s + bias[o]``

    It is ``torch.nn.functional.conv1d``, ``conv2d`` or ``conv3d`` of the numbers ``(q - z) * s``
    and ``w * sw``, with the same bits on every device.

    Example:
        >>> q = torch.tensor([[[2, 127, -4]]], dtype=torch.int8)
        >>> w = torch.tensor([[[1, 2]], [[0, 1]]], dtype=torch.int8)
        >>> baraquant.ops.int8_conv(q, w, torch.tensor(0.5), torch.tensor([1.0, 0.25]))
        tensor([[[128.0000,  59.5000],
                 [ 15.8750,  -0.5000]]])
    """
    return torch.ops.baraquant.int8_conv.default(
        input,
        weight,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dtype=dtype,
    )
