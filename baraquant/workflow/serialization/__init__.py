# SPDX-License-Identifier: BSD-3-Clause
"""Quantized models as files: safetensors, with the configuration as JSON, and no pickle."""

from .load import load_
from .save import save

__all__ = ["load_", "save"]
