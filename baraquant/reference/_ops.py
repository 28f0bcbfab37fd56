# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""The ops of the reference."""

from . import affine, range
from ._functions import per_granularity
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
from .range import observe_fake_quantize, observe_min_max_
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
    "dequantize_per_channel_backward",
    "dequantize_per_group",
    "dequantize_per_group_backward",
    "dequantize_per_tensor",
    "dequantize_per_tensor_backward",
    "dequantize_per_token",
    "dequantize_per_token_backward",
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

quantize_per_tensor = per_granularity("quantize_per_tensor", affine.quantize)
quantize_per_channel = per_granularity("quantize_per_channel", affine.quantize)
quantize_per_token = per_granularity("quantize_per_token", affine.quantize)
quantize_per_group = per_granularity("quantize_per_group", affine.quantize)
dequantize_per_tensor = per_granularity("dequantize_per_tensor", affine.dequantize)
dequantize_per_channel = per_granularity("dequantize_per_channel", affine.dequantize)
dequantize_per_token = per_granularity("dequantize_per_token", affine.dequantize)
dequantize_per_group = per_granularity("dequantize_per_group", affine.dequantize)
fake_quantize_per_tensor = per_granularity("fake_quantize_per_tensor", affine.fake_quantize)
fake_quantize_per_channel = per_granularity("fake_quantize_per_channel", affine.fake_quantize)
fake_quantize_per_token = per_granularity("fake_quantize_per_token", affine.fake_quantize)
fake_quantize_per_group = per_granularity("fake_quantize_per_group", affine.fake_quantize)
choose_qparams_per_tensor = per_granularity("choose_qparams_per_tensor", range.choose_qparams)
choose_qparams_per_channel = per_granularity("choose_qparams_per_channel", range.choose_qparams)
choose_qparams_per_token = per_granularity("choose_qparams_per_token", range.choose_qparams)
choose_qparams_per_group = per_granularity("choose_qparams_per_group", range.choose_qparams)
dynamic_range_quantize_per_tensor = per_granularity(
    "dynamic_range_quantize_per_tensor", range.dynamic_range_quantize
)
dynamic_range_quantize_per_channel = per_granularity(
    "dynamic_range_quantize_per_channel", range.dynamic_range_quantize
)
dynamic_range_quantize_per_token = per_granularity(
    "dynamic_range_quantize_per_token", range.dynamic_range_quantize
)
dynamic_range_quantize_per_group = per_granularity(
    "dynamic_range_quantize_per_group", range.dynamic_range_quantize
)
dynamic_fake_quantize_per_tensor = per_granularity(
    "dynamic_fake_quantize_per_tensor", range.dynamic_fake_quantize
)
dynamic_fake_quantize_per_channel = per_granularity(
    "dynamic_fake_quantize_per_channel", range.dynamic_fake_quantize
)
dynamic_fake_quantize_per_token = per_granularity(
    "dynamic_fake_quantize_per_token", range.dynamic_fake_quantize
)
dynamic_fake_quantize_per_group = per_granularity(
    "dynamic_fake_quantize_per_group", range.dynamic_fake_quantize
)
quantize_per_tensor_backward = per_granularity(
    "quantize_per_tensor_backward", affine.quantize_backward
)
quantize_per_channel_backward = per_granularity(
    "quantize_per_channel_backward", affine.quantize_backward
)
quantize_per_token_backward = per_granularity(
    "quantize_per_token_backward", affine.quantize_backward
)
quantize_per_group_backward = per_granularity(
    "quantize_per_group_backward", affine.quantize_backward
)
dequantize_per_tensor_backward = per_granularity(
    "dequantize_per_tensor_backward", affine.dequantize_backward
)
dequantize_per_channel_backward = per_granularity(
    "dequantize_per_channel_backward", affine.dequantize_backward
)
dequantize_per_token_backward = per_granularity(
    "dequantize_per_token_backward", affine.dequantize_backward
)
dequantize_per_group_backward = per_granularity(
    "dequantize_per_group_backward", affine.dequantize_backward
)
fake_quantize_per_tensor_backward = per_granularity(
    "fake_quantize_per_tensor_backward", affine.fake_quantize_backward
)
fake_quantize_per_channel_backward = per_granularity(
    "fake_quantize_per_channel_backward", affine.fake_quantize_backward
)
fake_quantize_per_token_backward = per_granularity(
    "fake_quantize_per_token_backward", affine.fake_quantize_backward
)
fake_quantize_per_group_backward = per_granularity(
    "fake_quantize_per_group_backward", affine.fake_quantize_backward
)
fake_quantize_per_tensor_backward_qparams = per_granularity(
    "fake_quantize_per_tensor_backward_qparams", affine.fake_quantize_backward_qparams
)
fake_quantize_per_channel_backward_qparams = per_granularity(
    "fake_quantize_per_channel_backward_qparams", affine.fake_quantize_backward_qparams
)
fake_quantize_per_token_backward_qparams = per_granularity(
    "fake_quantize_per_token_backward_qparams", affine.fake_quantize_backward_qparams
)
fake_quantize_per_group_backward_qparams = per_granularity(
    "fake_quantize_per_group_backward_qparams", affine.fake_quantize_backward_qparams
)
