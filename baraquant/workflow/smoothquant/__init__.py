# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant moves outliers of activations into the weights."""

from .smoothing import SmoothQuantPass as SmoothQuantPass
