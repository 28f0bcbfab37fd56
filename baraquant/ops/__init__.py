# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""The ops of baraquant as typed, documented functions.

Each function only calls ``torch.ops.baraquant.<name>``: in eager mode, under :func:`torch.compile`
and in TorchScript. :mod:`baraquant.reference` computes the same in plain PyTorch.

=====================================  ======================================================
``quantize_per_{G}``                   ``q = clamp(rint(x / s) + z, quant_min, quant_max)``
``dequantize_per_{G}``                 ``y = (q - z) * s``
``fake_quantize_per_{G}``              both at once, differentiable
``choose_qparams_per_{G}``             ``s`` and ``z`` from the range of the data
``dynamic_range_quantize_per_{G}``     quantized with those, in one pass over the data
``dynamic_fake_quantize_per_{G}``      the same, back in numbers, differentiable
``observe_min_max_``                   a running range of the data, in place
``observe_fake_quantize``              fake-quantized with the scale of a running range
``int8_linear``                        a linear layer of integers, summed exactly
``int8_product``, ``rescale_product``  its two halves: the sums, and the way back to numbers
``smoothquant_linear``                 ``int8_linear`` with one static scale of the input
``quantized_linear``                   the same with an input that is quantized on the fly
``static_quantized_linear``            the same with one static scale
``qat_linear``                         the first of these two with the weights too
``int8_grouped_linear``                ``int8_linear`` with a weight for each group of tokens
``quantized_grouped_linear``           ``quantized_linear`` in the same way
``qat_grouped_linear``                 ``qat_linear`` in the same way
``int8_conv``                          a convolution of integers, summed exactly
``choose_int4_qparams``                scales and whole factors for weights of four bits
``quantize_int4``, ``pack_int4``       such a weight, packed
``expand_int4``                        a packed weight as int8
``int4_linear``                        ``int8_linear`` with a packed weight
``quantized_int4_linear``              ``quantized_linear`` with one
``static_quantized_int4_linear``       ``static_quantized_linear`` with one
``weight_only_linear``                 a floating input by a weight of integers
``scaled_quantize_per_token``          rows of ``x * f`` quantized, stochastically if wanted
``scaled_quantize_transposed``         columns of ``x * f`` quantized and transposed
``transpose_int8``                     the transpose of an int8 matrix
``draw_random``                        a state of PyTorch's generator for these
``rms_norm``, ``layer_norm``           norms of vectors, with the same bits on every device
``silu_mul``, ``gelu``                 activations, likewise
``hadamard``                           a rotation of blocks of a vector
``..._quantize_per_token``             each of these five, quantized as it is computed
=====================================  ======================================================

``{G}`` is ``tensor``, ``channel``, ``token`` or ``group``: which elements share a scale.
:mod:`baraquant.ops.backward` has the gradients, which autograd calls.
"""

from . import backward as backward
from .affine import (
    dequantize_per_channel,
    dequantize_per_group,
    dequantize_per_tensor,
    dequantize_per_token,
    fake_quantize_per_channel,
    fake_quantize_per_group,
    fake_quantize_per_tensor,
    fake_quantize_per_token,
    quantize_per_channel,
    quantize_per_group,
    quantize_per_tensor,
    quantize_per_token,
)
from .fused import (
    gelu,
    gelu_quantize_per_token,
    hadamard,
    hadamard_quantize_per_token,
    layer_norm,
    layer_norm_quantize_per_token,
    rms_norm,
    rms_norm_quantize_per_token,
    silu_mul,
    silu_mul_quantize_per_token,
)
from .int4 import (
    choose_int4_qparams,
    expand_int4,
    int4_linear,
    pack_int4,
    quantize_int4,
    quantized_int4_linear,
    static_quantized_int4_linear,
)
from .int8_conv import int8_conv
from .int8_mm import (
    int8_grouped_linear,
    int8_linear,
    int8_product,
    qat_grouped_linear,
    qat_linear,
    quantized_grouped_linear,
    quantized_linear,
    rescale_product,
    smoothquant_linear,
    static_quantized_linear,
)
from .range import (
    choose_qparams_per_channel,
    choose_qparams_per_group,
    choose_qparams_per_tensor,
    choose_qparams_per_token,
    dynamic_fake_quantize_per_channel,
    dynamic_fake_quantize_per_group,
    dynamic_fake_quantize_per_tensor,
    dynamic_fake_quantize_per_token,
    dynamic_range_quantize_per_channel,
    dynamic_range_quantize_per_group,
    dynamic_range_quantize_per_tensor,
    dynamic_range_quantize_per_token,
    observe_fake_quantize,
    observe_min_max_,
)
from .scaled import (
    draw_random,
    scaled_quantize_per_token,
    scaled_quantize_transposed,
    transpose_int8,
)
from .weight_only import weight_only_linear

__all__ = [
    "choose_int4_qparams",
    "choose_qparams_per_channel",
    "choose_qparams_per_group",
    "choose_qparams_per_tensor",
    "choose_qparams_per_token",
    "dequantize_per_channel",
    "dequantize_per_group",
    "dequantize_per_tensor",
    "dequantize_per_token",
    "draw_random",
    "dynamic_fake_quantize_per_channel",
    "dynamic_fake_quantize_per_group",
    "dynamic_fake_quantize_per_tensor",
    "dynamic_fake_quantize_per_token",
    "dynamic_range_quantize_per_channel",
    "dynamic_range_quantize_per_group",
    "dynamic_range_quantize_per_tensor",
    "dynamic_range_quantize_per_token",
    "expand_int4",
    "fake_quantize_per_channel",
    "fake_quantize_per_group",
    "fake_quantize_per_tensor",
    "fake_quantize_per_token",
    "gelu",
    "gelu_quantize_per_token",
    "hadamard",
    "hadamard_quantize_per_token",
    "int4_linear",
    "int8_conv",
    "int8_grouped_linear",
    "int8_linear",
    "int8_product",
    "layer_norm",
    "layer_norm_quantize_per_token",
    "observe_fake_quantize",
    "observe_min_max_",
    "pack_int4",
    "qat_grouped_linear",
    "qat_linear",
    "quantize_int4",
    "quantize_per_channel",
    "quantize_per_group",
    "quantize_per_tensor",
    "quantize_per_token",
    "quantized_grouped_linear",
    "quantized_int4_linear",
    "quantized_linear",
    "rescale_product",
    "rms_norm",
    "rms_norm_quantize_per_token",
    "scaled_quantize_per_token",
    "scaled_quantize_transposed",
    "silu_mul",
    "silu_mul_quantize_per_token",
    "smoothquant_linear",
    "static_quantized_int4_linear",
    "static_quantized_linear",
    "transpose_int8",
    "weight_only_linear",
]
