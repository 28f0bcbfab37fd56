# SPDX-License-Identifier: BSD-3-Clause
"""Quantized models as files: safetensors with a JSON of the configuration; no pickle anywhere."""

from .load import load_
from .save import save

__all__ = ["load_", "save"]
