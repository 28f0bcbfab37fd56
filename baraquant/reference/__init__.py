# SPDX-License-Identifier: BSD-3-Clause
"""The ops of :mod:`baraquant.ops` in plain PyTorch: an executable specification.

The functions have the names, arguments and defaults of the ops, those of
:mod:`baraquant.ops.backward` included. They give the same bits, except that the gradient of a scale
sums in another order. They are written for reading: nothing is fused, every intermediate result has
its own tensor, and arguments are not checked (the ops check theirs).

With ``C`` the compute type (float32, or float64 where the input is float64), scale ``s``, zero
point ``z`` and ``rint`` rounding half to even::

    r = rint(C(x) / s)      v = r + C(z)      q = min(max(v, quant_min), quant_max)
    quantize       q as an integer                            NaN v: z, clamped to the range
    dequantize     (C(q) - C(z)) * s, rounded once
    fake_quantize  (q - C(z)) * s, rounded once               NaN v: NaN
    mask           quant_min <= v <= quant_max                NaN v: false

and where the scale comes from the data, with ``xmin = min(0, min x)``, ``xmax = max(0, max x)``::

    symmetric      z = (quant_min + quant_max + 1) // 2       s = max |x| / (quant_max - z)
    asymmetric     s = (xmax - xmin) / (quant_max - quant_min)
                   z = quant_min - rint(xmin / s), clamped    NaN: quant_min
    only zeros     s = 1; any other s is at least the smallest normal number

and in the matrix products, with ``sw`` the scale of the weight's row n, ``C`` that of the result::

    acc[t, n]      sum_k (q[t, k] - z[t]) * w[n, k]          exact
    y[t, n]        fma(C(acc[t, n]) * sw[n], s[t], bias[n]), rounded once

and for weights of four bits, with a whole factor ``f`` for each group of columns::

    scale          max |w| / 112 of a row
    f              ceil(max |w| / 7 / scale) of a group      u = clamp(rint(w / (scale * f)) + 8)
    w8             (u - 8) * f, an int8                      u in 0 .. 15

and where numbers are scaled and rounded stochastically, with ``k`` 16 bits of Philox4x32-10::

    v              C(x) * f                                  rounded once
    q              clamp(floor(v / s + u), -128, 127)        u = (k + 1/2) / 2^16; NaN: 0

The norms, the activations and the rotation are in ``baraquant.reference.fused``.
"""

from .affine import (
    dequantize_per_channel,
    dequantize_per_channel_backward,
    dequantize_per_group,
    dequantize_per_group_backward,
    dequantize_per_tensor,
    dequantize_per_tensor_backward,
    dequantize_per_token,
    dequantize_per_token_backward,
    fake_quantize_per_channel,
    fake_quantize_per_channel_backward,
    fake_quantize_per_channel_backward_qparams,
    fake_quantize_per_group,
    fake_quantize_per_group_backward,
    fake_quantize_per_group_backward_qparams,
    fake_quantize_per_tensor,
    fake_quantize_per_tensor_backward,
    fake_quantize_per_tensor_backward_qparams,
    fake_quantize_per_token,
    fake_quantize_per_token_backward,
    fake_quantize_per_token_backward_qparams,
    quantize_per_channel,
    quantize_per_channel_backward,
    quantize_per_group,
    quantize_per_group_backward,
    quantize_per_tensor,
    quantize_per_tensor_backward,
    quantize_per_token,
    quantize_per_token_backward,
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
from .granularity import Segments, expand_qparams, segments, sum_segments
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
from .products import fused_multiply_add, rescaled, sums_of_products
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
from .rules import compute_dtype, dequantized, grid_position, is_inside, round_to
from .scaled import (
    draw_random,
    philox,
    scaled_quantize_per_token,
    scaled_quantize_transposed,
    transpose_int8,
    uniform_numbers,
)
from .weight_only import weight_only_linear

__all__ = [
    "Segments",
    "choose_int4_qparams",
    "choose_qparams_per_channel",
    "choose_qparams_per_group",
    "choose_qparams_per_tensor",
    "choose_qparams_per_token",
    "compute_dtype",
    "dequantize_per_channel",
    "dequantize_per_channel_backward",
    "dequantize_per_group",
    "dequantize_per_group_backward",
    "dequantize_per_tensor",
    "dequantize_per_tensor_backward",
    "dequantize_per_token",
    "dequantize_per_token_backward",
    "dequantized",
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
    "expand_qparams",
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
    "fused_multiply_add",
    "gelu",
    "gelu_quantize_per_token",
    "grid_position",
    "hadamard",
    "hadamard_quantize_per_token",
    "int4_linear",
    "int8_conv",
    "int8_grouped_linear",
    "int8_linear",
    "int8_product",
    "is_inside",
    "layer_norm",
    "layer_norm_quantize_per_token",
    "observe_fake_quantize",
    "observe_min_max_",
    "pack_int4",
    "philox",
    "qat_grouped_linear",
    "qat_linear",
    "quantize_int4",
    "quantize_per_channel",
    "quantize_per_channel_backward",
    "quantize_per_group",
    "quantize_per_group_backward",
    "quantize_per_tensor",
    "quantize_per_tensor_backward",
    "quantize_per_token",
    "quantize_per_token_backward",
    "quantized_grouped_linear",
    "quantized_int4_linear",
    "quantized_linear",
    "rescale_product",
    "rescaled",
    "rms_norm",
    "rms_norm_quantize_per_token",
    "round_to",
    "scaled_quantize_per_token",
    "scaled_quantize_transposed",
    "segments",
    "silu_mul",
    "silu_mul_quantize_per_token",
    "smoothquant_linear",
    "static_quantized_int4_linear",
    "static_quantized_linear",
    "sum_segments",
    "sums_of_products",
    "transpose_int8",
    "uniform_numbers",
    "weight_only_linear",
]
