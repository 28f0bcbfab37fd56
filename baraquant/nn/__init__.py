# SPDX-License-Identifier: BSD-3-Clause
"""Modules around the ops of :mod:`baraquant.ops`, and switches for those of a model.

In training: ``FakeQuantize``, ``LearnedFakeQuantize``, ``FakeQuantizedLinear``,
``FakeQuantizedConv1d`` to ``3d``, ``FakeQuantizedConvTranspose1d`` to ``3d`` and
``FakeQuantizedEmbedding``. Of integers, to run: ``QuantizedLinear``, ``StaticQuantizedLinear``,
``WeightOnlyLinear``, ``QuantizedConv1d`` to ``3d``, ``QuantizedConvTranspose1d`` to ``3d`` and
``QuantizedEmbedding``. Of linear layers that can be swapped: ``MultiheadAttention``, ``LSTM``,
``GRU``, ``RNN`` and their cells.
"""

from .attention import MultiheadAttention
from .inference.conv import QuantizedConv1d, QuantizedConv2d, QuantizedConv3d
from .inference.conv_transpose import (
    QuantizedConvTranspose1d,
    QuantizedConvTranspose2d,
    QuantizedConvTranspose3d,
)
from .inference.embedding import QuantizedEmbedding
from .inference.linear import QuantizedLinear, StaticQuantizedLinear
from .inference.weight_only import WeightOnlyLinear
from .recurrent import GRU, LSTM, RNN
from .recurrent_cells import GRUCell, LSTMCell, RNNCell
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
from .training.fake_quantize import FakeQuantize
from .training.learned import LearnedFakeQuantize
from .training.linear import FakeQuantizedLinear

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "FakeQuantize",
    "FakeQuantizedConv1d",
    "FakeQuantizedConv2d",
    "FakeQuantizedConv3d",
    "FakeQuantizedConvTranspose1d",
    "FakeQuantizedConvTranspose2d",
    "FakeQuantizedConvTranspose3d",
    "FakeQuantizedEmbedding",
    "FakeQuantizedLinear",
    "GRUCell",
    "LSTMCell",
    "LearnedFakeQuantize",
    "MultiheadAttention",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedConv3d",
    "QuantizedConvTranspose1d",
    "QuantizedConvTranspose2d",
    "QuantizedConvTranspose3d",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "RNNCell",
    "StaticQuantizedLinear",
    "WeightOnlyLinear",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "sync_qparams",
]
