# SPDX-License-Identifier: BSD-3-Clause
"""The gradient of a product of integers, which have none themselves."""

from torch import Tensor


def straight_through(output: Tensor, smooth: Tensor) -> Tensor:
    """Return ``output`` with the gradient of ``smooth``, a floating formula of the same numbers.

    What is subtracted is a 0 that has the gradient. It is +0.0, which keeps the sign of -0.0, and
    stays 0 where the formula overflows.
    """
    return output - (smooth.detach() - smooth).nan_to_num(0.0).to(output.dtype)
