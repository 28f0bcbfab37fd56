# SPDX-License-Identifier: BSD-3-Clause
"""The search for the factors of four-bit weights: tries all, and takes the least squared error."""

import torch
from torch import Tensor


def searched_factors(
    rows: Tensor, group_size: int, symmetric: bool, scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scale ``[N]``, and the factors and zero points ``[N, groups]``, that fit best.

    For each group all factors are tried, and the one with the minimum squared error is taken;
    ``csrc/search/weights.h`` has the formulas.

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
