# SPDX-License-Identifier: BSD-3-Clause
"""AWQ scales the weights of large inputs up before they are rounded."""

from .layers import AWQPass as AWQPass
