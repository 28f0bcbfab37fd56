# SPDX-License-Identifier: BSD-3-Clause
"""Modules around the ops of :mod:`baraquant.ops`, and switches for those of a model.

In training: ``FakeQuantize``, ``LearnedFakeQuantize``, ``FakeQuantizedLinear``,
``FakeQuantizedConv1d``, ``FakeQuantizedConv2d``, ``FakeQuantizedEmbedding`` and
``FakeQuantizedExperts``; ``MultiheadAttention`` is of linear layers that can be swapped. Of
integers, to run: ``QuantizedLinear``, ``StaticQuantizedLinear``, ``WeightOnlyLinear``,
``QuantizedConv1d``, ``QuantizedConv2d``, ``QuantizedEmbedding`` and ``QuantizedExperts``.
"""

from .attention import MultiheadAttention
from .inference.conv import QuantizedConv1d, QuantizedConv2d
from .inference.embedding import QuantizedEmbedding
from .inference.experts import QuantizedExperts
from .inference.linear import QuantizedLinear, StaticQuantizedLinear
from .inference.weight_only import WeightOnlyLinear
from .switches import (
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    sync_qparams,
)
from .training.conv import FakeQuantizedConv1d, FakeQuantizedConv2d, FakeQuantizedEmbedding
from .training.experts import FakeQuantizedExperts
from .training.fake_quantize import FakeQuantize
from .training.learned import LearnedFakeQuantize
from .training.linear import FakeQuantizedLinear

__all__ = [
    "FakeQuantize",
    "FakeQuantizedConv1d",
    "FakeQuantizedConv2d",
    "FakeQuantizedEmbedding",
    "FakeQuantizedExperts",
    "FakeQuantizedLinear",
    "LearnedFakeQuantize",
    "MultiheadAttention",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedEmbedding",
    "QuantizedExperts",
    "QuantizedLinear",
    "StaticQuantizedLinear",
    "WeightOnlyLinear",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "sync_qparams",
]
