# SPDX-License-Identifier: BSD-3-Clause
"""Measures how each layer bears each configuration, and chooses one for each within a budget."""
