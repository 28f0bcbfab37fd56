# SPDX-License-Identifier: BSD-3-Clause
"""The product of a floating input and a weight of integers.

The other sections of the docstring are in ``_docs/weight_only.py``.
"""

import torch
from torch import Tensor

from ._docs.weight_only import WEIGHT_ONLY_LINEAR
from ._operator import operator


@operator(WEIGHT_ONLY_LINEAR)
def weight_only_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    weight_zero_point: Tensor | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Multiply a floating input by a weight of integers, which stand for floating numbers.

    ``y = x @ w^.T + bias`` with ``w^ = (q - z) * s``

    Example:
        >>> q = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
        >>> s = torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.weight_only_linear(torch.ones(1, 4), q, s, group_size=2)
        tensor([[1.2500]])
    """
    return torch.ops.baraquant.weight_only_linear.default(
        input,
        weight,
        weight_scale,
        bias,
        weight_zero_point=weight_zero_point,
        group_size=group_size,
    )
