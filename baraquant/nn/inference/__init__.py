# SPDX-License-Identifier: BSD-3-Clause
"""Quantized modules for inference; public as :mod:`baraquant.nn`."""
