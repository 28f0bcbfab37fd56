# SPDX-License-Identifier: BSD-3-Clause
"""The two halves of ``int8_linear``: exact sums of products of integers, and their way to numbers.

Between the two the sums can be added to others, as those of several processes are. The other
sections of the docstrings are in ``_docs/int8_mm.py``.
"""

import torch
from torch import Tensor

from ._docs.int8_mm import INT8_PRODUCT, ONE_WEIGHT, RESCALE_PRODUCT
from ._operator import operator


@operator(INT8_PRODUCT, ONE_WEIGHT)
def int8_product(
    input: Tensor,
    weight: Tensor,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
) -> Tensor:
    """Multiply integers and return their exact sums.

    ``acc[t, n] = sum_k (q[t, k] - z[t]) * w[n, k]``

    These are the sums of :func:`int8_linear`, which are added and cut up without an error: those of
    a weight whose columns lie on several processes are the sum of theirs. :func:`rescale_product`
    makes numbers of them.

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int8)
        >>> baraquant.ops.int8_product(q, w)
        tensor([[  2, 254, 129],
                [ -4,   0,  -4]], dtype=torch.int32)
    """
    return torch.ops.baraquant.int8_product.default(
        input, weight, input_zero_point=input_zero_point, weight_sum=weight_sum
    )


@operator(RESCALE_PRODUCT, ONE_WEIGHT)
def rescale_product(
    input: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Scale the sums of a product of integers back to numbers: the last step of ``int8_linear``.

    ``y[t, n] = acc[t, n] * sw[n] * s[t] + bias[n]``

    ``rescale_product(int8_product(q, w), s, sw, bias)`` has the bits of
    ``int8_linear(q, w, s, sw, bias)``.

    Example:
        >>> acc = torch.tensor([[2, 254, 129], [-4, 0, -4]], dtype=torch.int32)
        >>> s, sw = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5, 2.0])
        >>> baraquant.ops.rescale_product(acc, s, sw)
        tensor([[  1.0000,  63.5000, 129.0000],
                [ -1.0000,   0.0000,  -2.0000]])
    """
    return torch.ops.baraquant.rescale_product.default(
        input, input_scale, weight_scale, bias, dtype=dtype
    )
