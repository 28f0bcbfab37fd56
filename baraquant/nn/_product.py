# SPDX-License-Identifier: BSD-3-Clause
"""The floating product of layers that do not multiply integers."""

from torch import Tensor
from torch.nn import functional as F


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``F.linear``, by one algorithm whether or not the weight asks for a gradient.

    PyTorch folds the first dimensions of a strided input into one where the weight asks for one,
    and multiplies in batches where it does not; the last bits differ. Folded by hand, a prepared
    layer and the converted one take the same way.
    """
    if input.dim() <= 2:
        return F.linear(input, weight, bias)
    rows = F.linear(input.flatten(0, -2), weight, bias)
    return rows.reshape(input.shape[:-1] + rows.shape[-1:])
