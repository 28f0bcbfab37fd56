# SPDX-License-Identifier: BSD-3-Clause
"""The floating product of rows that are sorted by expert, as a loop over the experts.

``offsets`` is int32 ``[E]``: the rows of expert ``e`` end before ``offsets[e]``. Rows after the
last offset belong to no expert and give 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def float_grouped_linear(
    input: Tensor,
    weight_of: Callable[[int], Tensor],
    offsets: Tensor,
    out_features: int,
    bias: Tensor | None = None,
) -> Tensor:
    """Return ``torch.nn.functional.linear`` of each row with its expert's weight.

    Args:
        input: Floating ``[T, K]``.
        weight_of: Returns the weight of an expert, floating ``[N, K]``. It is called only for
            experts that have rows.
        offsets: int32 ``[E]``.
        out_features: N.
        bias: ``[E, N]``.
    """
    biases = None if bias is None else bias.unbind(0)

    def product(rows: slice, expert: int) -> Tensor:
        return F.linear(input[rows], weight_of(expert), None if biases is None else biases[expert])

    return _of_experts(product, input.shape[0], out_features, offsets, input.dtype)


def _of_experts(
    product: Callable[[slice, int], Tensor],
    rows: int,
    features: int,
    offsets: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return the concatenated products of all experts, ``[rows, features]``."""
    if offsets.is_meta:
        return torch.empty(rows, features, dtype=dtype, device="meta")
    parts = []
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        if end > start:
            parts.append(product(slice(start, end), expert))
        start = end
    if not parts:  # the result has to hang on the parameters all the same
        parts.append(product(slice(0, 0), 0))
    if start < rows:
        parts.append(parts[0].new_zeros(rows - start, features))
    return torch.cat(parts)
