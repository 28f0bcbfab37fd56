# SPDX-License-Identifier: BSD-3-Clause
"""Weights of four bits, whose products are exact sums of integers.

The other sections of the docstrings are in ``_docs/int4.py``.
"""

import torch
from torch import Tensor

from ._docs.int4 import (
    CHOOSE_INT4_QPARAMS,
    EXPAND_INT4,
    INT4_LINEAR,
    PACK_INT4,
    QUANTIZE_INT4,
    QUANTIZED_INT4_LINEAR,
    STATIC_QUANTIZED_INT4_LINEAR,
)
from ._operator import operator


@operator(CHOOSE_INT4_QPARAMS)
def choose_int4_qparams(
    weight: Tensor, group_size: int, *, symmetric: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose a scale for each row of a weight, and a whole factor for each group of its columns.

    ``w8 = (u - z) * f`` is an int8 and stands for ``w8 * scale``; ``u`` has four bits

    Example:
        >>> w = torch.tensor([[0.7, -0.1, 11.2, 3.2], [0.0, 0.0, 0.0, 0.0]])
        >>> scale, factor, zero_point = baraquant.ops.choose_int4_qparams(w, 2)
        >>> scale, factor
        (tensor([0.1000, 1.0000]), tensor([[ 1, 16],
                [ 1,  1]], dtype=torch.uint8))
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.choose_int4_qparams.default(
        weight, group_size, symmetric=symmetric
    )
    return result


@operator(QUANTIZE_INT4)
def quantize_int4(
    weight: Tensor,
    scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    *,
    group_zero_point: Tensor | None = None,
) -> Tensor:
    """Quantize a weight to four bits with a factor for each group, and pack it.

    ``u = clamp(rint(w / (scale * f)) + z, 0, 15)``, two of them in a byte

    Example:
        >>> w = torch.tensor([[0.7, -0.1, 11.2, 3.2]])
        >>> scale, factor, zero_point = baraquant.ops.choose_int4_qparams(w, 2)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 2)
        >>> [hex(byte) for byte in packed[0].tolist()]  # 7 + 8 and -1 + 8; 7 + 8 and 2 + 8
        ['0x7f', '0xaf']
    """
    return torch.ops.baraquant.quantize_int4.default(
        weight, scale, group_factor, group_size, group_zero_point=group_zero_point
    )


@operator(EXPAND_INT4)
def expand_int4(
    packed: Tensor,
    group_factor: Tensor,
    group_size: int,
    in_features: int,
    *,
    group_zero_point: Tensor | None = None,
) -> Tensor:
    """Turn packed numbers of four bits into the int8 weight that they stand for.

    ``w8 = (u - z) * f``

    Example:
        >>> packed = torch.tensor([[0x7F, 0xAF]], dtype=torch.uint8)
        >>> factor = torch.tensor([[1, 16]], dtype=torch.uint8)
        >>> baraquant.ops.expand_int4(packed, factor, 2, in_features=4)
        tensor([[  7,  -1, 112,  32]], dtype=torch.int8)
    """
    return torch.ops.baraquant.expand_int4.default(
        packed, group_factor, group_size, in_features, group_zero_point=group_zero_point
    )


@operator(PACK_INT4)
def pack_int4(integers: Tensor) -> Tensor:
    """Pack integers of -8 to 7, two in a byte.

    ``byte = (q[2 i] + 8) | (q[2 i + 1] + 8) << 4``

    Example:
        >>> q = torch.tensor([[7, -1, 7, 2, -8]], dtype=torch.int8)
        >>> [hex(byte) for byte in baraquant.ops.pack_int4(q)[0].tolist()]
        ['0x7f', '0xaf', '0x0']
    """
    return torch.ops.baraquant.pack_int4.default(integers)


@operator(INT4_LINEAR)
def int4_linear(
    input: Tensor,
    packed: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Multiply integers by a weight of four bits: :func:`int8_linear` of the expanded weight.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w8[n, k]) * sw[n] * s[t] + bias[n]``

    Example:
        >>> w, x = torch.randn(32, 64), torch.randn(4, 64)
        >>> scale, factor, _ = baraquant.ops.choose_int4_qparams(w, 32)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 32)
        >>> q, s, _ = baraquant.ops.dynamic_range_quantize_per_token(x)
        >>> y = baraquant.ops.int4_linear(q, packed, s, scale, factor, 32)
        >>> w8 = baraquant.ops.expand_int4(packed, factor, 32, in_features=64)
        >>> torch.equal(y, baraquant.ops.int8_linear(q, w8, s, scale))
        True
    """
    return torch.ops.baraquant.int4_linear.default(
        input,
        packed,
        input_scale,
        weight_scale,
        group_factor,
        group_size,
        bias,
        group_zero_point=group_zero_point,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )


@operator(QUANTIZED_INT4_LINEAR)
def quantized_int4_linear(
    input: Tensor,
    packed: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize each token with the scale of its data, and multiply it by a weight of four bits.

    ``y = int4_linear(q, packed, s, sw, f, group_size, bias, input_zero_point=z)`` with
    ``q, s, z = dynamic_range_quantize_per_token(x)``

    Example:
        >>> w, x = torch.randn(32, 64), torch.randn(4, 64)
        >>> scale, factor, _ = baraquant.ops.choose_int4_qparams(w, 32)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 32)
        >>> y = baraquant.ops.quantized_int4_linear(x, packed, scale, factor, 32)
        >>> y.shape
        torch.Size([4, 32])
    """
    return torch.ops.baraquant.quantized_int4_linear.default(
        input,
        packed,
        weight_scale,
        group_factor,
        group_size,
        bias,
        group_zero_point=group_zero_point,
        symmetric=symmetric,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )


@operator(STATIC_QUANTIZED_INT4_LINEAR)
def static_quantized_int4_linear(
    input: Tensor,
    packed: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    act_scale: Tensor,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    act_zero_point: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize the input with one given scale, and multiply it by a weight of four bits.

    ``y = int4_linear(q, packed, s, sw, f, group_size, bias, input_zero_point=z)`` with
    ``q = quantize_per_tensor(x, s, z)``

    Example:
        >>> w, x = torch.randn(32, 64), torch.randn(4, 64)
        >>> scale, factor, _ = baraquant.ops.choose_int4_qparams(w, 32)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 32)
        >>> s, layer = torch.tensor(0.03), baraquant.ops.static_quantized_int4_linear
        >>> y = layer(x, packed, scale, factor, 32, s)
        >>> y.shape
        torch.Size([4, 32])
    """
    return torch.ops.baraquant.static_quantized_int4_linear.default(
        input,
        packed,
        weight_scale,
        group_factor,
        group_size,
        act_scale,
        bias,
        group_zero_point=group_zero_point,
        act_zero_point=act_zero_point,
        smooth_scale=smooth_scale,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
