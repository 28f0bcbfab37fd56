# SPDX-License-Identifier: BSD-3-Clause
"""The ops of baraquant as typed, documented functions.

Each calls ``torch.ops.baraquant.<name>`` and nothing else, in eager mode, under
:func:`torch.compile` and in TorchScript alike. What they compute is said in plain PyTorch by
:mod:`baraquant.reference`.

========================================  =====================================================
``quantize_per_{G}``                      ``q = clamp(rint(x / s) + z, quant_min, quant_max)``
``dequantize_per_{G}``                    ``y = (q - z) * s``
``fake_quantize_per_{G}``                 both at once, differentiable
``..._backward``                          their gradients in the input
``fake_quantize_per_{G}_backward_qparams``  and in the scale and the zero point
========================================  =====================================================

``{G}`` is ``tensor``, ``channel``, ``token`` or ``group``: which elements share a scale.
"""

from .dequantize import (
    dequantize_per_channel,
    dequantize_per_channel_backward,
    dequantize_per_group,
    dequantize_per_group_backward,
    dequantize_per_tensor,
    dequantize_per_tensor_backward,
    dequantize_per_token,
    dequantize_per_token_backward,
)
from .fake_quantize import (
    fake_quantize_per_channel,
    fake_quantize_per_group,
    fake_quantize_per_tensor,
    fake_quantize_per_token,
)
from .fake_quantize_backward import (
    fake_quantize_per_channel_backward,
    fake_quantize_per_channel_backward_qparams,
    fake_quantize_per_group_backward,
    fake_quantize_per_group_backward_qparams,
    fake_quantize_per_tensor_backward,
    fake_quantize_per_tensor_backward_qparams,
    fake_quantize_per_token_backward,
    fake_quantize_per_token_backward_qparams,
)
from .quantize import (
    quantize_per_channel,
    quantize_per_channel_backward,
    quantize_per_group,
    quantize_per_group_backward,
    quantize_per_tensor,
    quantize_per_tensor_backward,
    quantize_per_token,
    quantize_per_token_backward,
)

__all__ = [
    "dequantize_per_channel",
    "dequantize_per_channel_backward",
    "dequantize_per_group",
    "dequantize_per_group_backward",
    "dequantize_per_tensor",
    "dequantize_per_tensor_backward",
    "dequantize_per_token",
    "dequantize_per_token_backward",
    "fake_quantize_per_channel",
    "fake_quantize_per_channel_backward",
    "fake_quantize_per_channel_backward_qparams",
    "fake_quantize_per_group",
    "fake_quantize_per_group_backward",
    "fake_quantize_per_group_backward_qparams",
    "fake_quantize_per_tensor",
    "fake_quantize_per_tensor_backward",
    "fake_quantize_per_tensor_backward_qparams",
    "fake_quantize_per_token",
    "fake_quantize_per_token_backward",
    "fake_quantize_per_token_backward_qparams",
    "quantize_per_channel",
    "quantize_per_channel_backward",
    "quantize_per_group",
    "quantize_per_group_backward",
    "quantize_per_tensor",
    "quantize_per_tensor_backward",
    "quantize_per_token",
    "quantize_per_token_backward",
]
