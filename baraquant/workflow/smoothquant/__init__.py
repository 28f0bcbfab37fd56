# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant: which outliers of which inputs move into which weights."""
