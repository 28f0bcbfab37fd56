# SPDX-License-Identifier: BSD-3-Clause
"""Modules around the ops of :mod:`baraquant.ops`, and switches for those of a model."""

from .embedding import QuantizedEmbedding
from .fake_quantize import FakeQuantize
from .linear import DequantizedLinear, QuantizedLinear, SmoothQuantLinear
from .switches import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer

__all__ = [
    "DequantizedLinear",
    "FakeQuantize",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "SmoothQuantLinear",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
]
