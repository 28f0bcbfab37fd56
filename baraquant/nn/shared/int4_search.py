# SPDX-License-Identifier: BSD-3-Clause
"""The search for the factors of four-bit weights: tries all, and takes the least squared error."""

import torch
from torch import Tensor


def searched_factors(
    rows: Tensor, group_size: int, symmetric: bool, scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scale ``[N]``, and the factors and zero points ``[N, groups]``, that fit best.

    The scale of a row is that of :func:`baraquant.ops.choose_int4_qparams`. For each group all
    factors are tried, from 16 down to 1, and the one with the minimum squared error is taken, of
    two equal ones the larger. A group with a zero point tries, for each factor ``f``, two: with
    ``step = scale * f`` and the least value ``low = min(0, min w)`` and the largest
    ``high = max(0, max w)`` of the group, ``rint(-low / step)`` and then
    ``rint(7.5 - (low + high) / (2 * step))``, both clamped to [0, 15]. The numbers are those of
    :func:`baraquant.ops.quantize_int4`, and the errors are
    ``sum((w8 * (scale * p) - w * p) ** 2)``, where the power of two ``p`` takes the scale of the
    row into [1, 2). All is computed in the dtype of the scale.

    Args:
        rows: The weight, ``[N, K]``; groups divide K.
        group_size: The number of adjacent columns that share a factor.
        symmetric: True for the zero point 8 in every group.
        scale: That of each row. None: from the rows.
    """
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant._search_int4_factors(
        rows, group_size, symmetric, scale
    )
    return found
