# SPDX-License-Identifier: BSD-3-Clause
"""Modules built on :mod:`baraquant.ops`, and functions that switch those of a model.

For training: ``FakeQuantize``, ``LearnedFakeQuantize``, ``FakeQuantizeInt4``,
``LearnedFakeQuantizeInt4``, ``FakeQuantizedLinear``,
``FakeQuantizedConv1d`` to ``3d``, ``FakeQuantizedConvTranspose1d`` to ``3d``,
``FakeQuantizedEmbedding``, ``FakeQuantizedExperts`` and ``FakeQuantizedConv1D``, which stands for
transformers' ``Conv1D``. For inference with integers: ``QuantizedLinear``,
``StaticQuantizedLinear``, ``QuantizedInt4Linear``, ``StaticQuantizedInt4Linear``,
``WeightOnlyLinear``, ``WeightOnlyInt4Linear``, ``QuantizedConv1d`` to ``3d``,
``QuantizedConvTranspose1d`` to ``3d``, ``QuantizedEmbedding`` and ``QuantizedExperts``. Modules
made of linear layers, each of which can be quantized: ``MultiheadAttention``, ``LSTM``, ``GRU``,
``RNN`` and their cells. Norms and activations whose bits are defined: ``RMSNorm``, ``LayerNorm``,
``GELU`` and ``GatedMLP``. Base classes for layers of your own: ``QuantizesWeight`` and
``HoldsIntegers``.
"""

from .attention import MultiheadAttention
from .fused import GELU, GatedMLP, LayerNorm, RMSNorm
from .inference.conv import (
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedConv3d,
    QuantizedConvTranspose1d,
    QuantizedConvTranspose2d,
    QuantizedConvTranspose3d,
)
from .inference.embedding import QuantizedEmbedding
from .inference.experts import QuantizedExperts
from .inference.inputs import QuantizedInput
from .inference.integers import HoldsIntegers
from .inference.linear import (
    QuantizedInt4Linear,
    QuantizedLinear,
    StaticQuantizedInt4Linear,
    StaticQuantizedLinear,
)
from .inference.weight_only import WeightOnlyInt4Linear, WeightOnlyLinear
from .recurrent import GRU, LSTM, RNN
from .recurrent_cells import GRUCell, LSTMCell, RNNCell
from .shared.fake_quantize import FakeQuantize
from .switches import (
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    sync_qparams,
)
from .training.conv import (
    FakeQuantizedConv1d,
    FakeQuantizedConv2d,
    FakeQuantizedConv3d,
    FakeQuantizedConvTranspose1d,
    FakeQuantizedConvTranspose2d,
    FakeQuantizedConvTranspose3d,
)
from .training.embedding import FakeQuantizedEmbedding
from .training.experts import FakeQuantizedExperts
from .training.int4 import FakeQuantizeInt4
from .training.learned import LearnedFakeQuantize
from .training.learned_int4 import LearnedFakeQuantizeInt4
from .training.linear import FakeQuantizedConv1D, FakeQuantizedLinear
from .training.quantizers import QuantizesWeight
from .training.ternary import FakeQuantizeTernary

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "FakeQuantize",
    "FakeQuantizeInt4",
    "FakeQuantizeTernary",
    "FakeQuantizedConv1D",
    "FakeQuantizedConv1d",
    "FakeQuantizedConv2d",
    "FakeQuantizedConv3d",
    "FakeQuantizedConvTranspose1d",
    "FakeQuantizedConvTranspose2d",
    "FakeQuantizedConvTranspose3d",
    "FakeQuantizedEmbedding",
    "FakeQuantizedExperts",
    "FakeQuantizedLinear",
    "GRUCell",
    "GatedMLP",
    "HoldsIntegers",
    "LSTMCell",
    "LayerNorm",
    "LearnedFakeQuantize",
    "LearnedFakeQuantizeInt4",
    "MultiheadAttention",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedConv3d",
    "QuantizedConvTranspose1d",
    "QuantizedConvTranspose2d",
    "QuantizedConvTranspose3d",
    "QuantizedEmbedding",
    "QuantizedExperts",
    "QuantizedInput",
    "QuantizedInt4Linear",
    "QuantizedLinear",
    "QuantizesWeight",
    "RMSNorm",
    "RNNCell",
    "StaticQuantizedInt4Linear",
    "StaticQuantizedLinear",
    "WeightOnlyInt4Linear",
    "WeightOnlyLinear",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "sync_qparams",
]
