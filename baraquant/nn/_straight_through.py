# SPDX-License-Identifier: BSD-3-Clause
"""The gradient of an integer product: integers themselves have no gradient."""

from torch import Tensor


def straight_through(output: Tensor, smooth: Tensor) -> Tensor:
    """Return ``output`` with the gradient of ``smooth``, the same formula in floating point.

    The function subtracts a 0 that carries the gradient. This 0 is +0.0, which keeps the sign of
    -0.0, and it stays 0 if the formula overflows.
    """
    return output - (smooth.detach() - smooth).nan_to_num(0.0).to(output.dtype)
