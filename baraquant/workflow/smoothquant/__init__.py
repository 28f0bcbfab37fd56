# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant moves outliers of activations into the weights."""

from .layers import SmoothQuantPass as SmoothQuantPass
