# SPDX-License-Identifier: BSD-3-Clause
"""Modules of quantization-aware training; public as :mod:`baraquant.nn`."""
