# SPDX-License-Identifier: BSD-3-Clause
"""Modules around the ops of :mod:`baraquant.ops`, and switches for those of a model.

In training: ``FakeQuantize``, ``LearnedFakeQuantize``, ``QATLinear``, ``FakeQuantizedConv1d``,
``FakeQuantizedConv2d`` and ``FakeQuantizedEmbedding``; ``MultiheadAttention`` is of linear layers
that can be swapped. Of integers, to run:
``QuantizedLinear``, ``SmoothQuantLinear``, ``DequantizedLinear``, ``QuantizedConv1d``,
``QuantizedConv2d`` and ``QuantizedEmbedding``.
"""

from .attention import MultiheadAttention
from .conv import QuantizedConv1d, QuantizedConv2d
from .dequantized import DequantizedLinear
from .embedding import QuantizedEmbedding
from .fake_quantize import FakeQuantize
from .fake_quantized import FakeQuantizedConv1d, FakeQuantizedConv2d, FakeQuantizedEmbedding
from .learned import LearnedFakeQuantize
from .linear import QuantizedLinear, SmoothQuantLinear
from .qat_linear import QATLinear
from .switches import (
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    sync_qparams,
)

__all__ = [
    "DequantizedLinear",
    "FakeQuantize",
    "FakeQuantizedConv1d",
    "FakeQuantizedConv2d",
    "FakeQuantizedEmbedding",
    "LearnedFakeQuantize",
    "MultiheadAttention",
    "QATLinear",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "SmoothQuantLinear",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "sync_qparams",
]
