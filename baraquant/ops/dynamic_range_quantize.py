# SPDX-License-Identifier: BSD-3-Clause
"""dynamic_range_quantize: integers with the scale that the data itself gives, in one pass."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def dynamic_range_quantize_per_tensor(
    input: Tensor,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize ``input`` with one scale, chosen from the range of the whole tensor.

    ``q = clamp(rint(x / s) + z, quant_min, quant_max)`` with the ``s`` and ``z`` of
    :func:`choose_qparams_per_tensor`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, of the shape of ``input`` and of ``dtype``; the scale ``[]``, float32 (float64
        for a float64 input); the zero point ``[]``, int32.

    Example:
        >>> x = torch.tensor([1.0, 63.5, -20.0])
        >>> baraquant.ops.dynamic_range_quantize_per_tensor(x)
        (tensor([  2, 127, -40], dtype=torch.int8),
         tensor(0.5000),
         tensor(0, dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_tensor.default(
            input, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator
def dynamic_range_quantize_per_channel(
    input: Tensor,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize ``input`` with a scale for each index of ``axis``, chosen from the channel's range.

    ``q = clamp(rint(x / s[c]) + z[c], quant_min, quant_max)`` with the ``s`` and ``z`` of
    :func:`choose_qparams_per_channel`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, of the shape of ``input`` and of ``dtype``; the scale
        ``[input.shape[axis]]``, float32 (float64 for a float64 input); the zero point of that
        shape, int32.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-127.0, 0.0]])
        >>> baraquant.ops.dynamic_range_quantize_per_channel(x, 0)
        (tensor([[   2,  127],
                [-127,    0]], dtype=torch.int8),
         tensor([0.5000, 1.0000]),
         tensor([0, 0], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_channel.default(
            input, axis, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator
def dynamic_range_quantize_per_token(
    input: Tensor,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize each vector along the last dimension with a scale chosen from its own range.

    ``q = clamp(rint(x / s[t]) + z[t], quant_min, quant_max)`` with the ``s`` and ``z`` of
    :func:`choose_qparams_per_token`

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, of the shape of ``input`` and of ``dtype``; the scale ``[..., 1]``, float32
        (float64 for a float64 input); the zero point of that shape, int32.

    Example:
        >>> x = torch.tensor([[-51.0, 204.0], [2.0, 127.5]])
        >>> baraquant.ops.dynamic_range_quantize_per_token(
        ...     x, 0, 255, symmetric=False, dtype=torch.uint8
        ... )
        (tensor([[  0, 255],
                [  4, 255]], dtype=torch.uint8),
         tensor([[1.0000],
                [0.5000]]),
         tensor([[51],
                [ 0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_token.default(
            input, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator
def dynamic_range_quantize_per_group(
    input: Tensor,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize each run of ``group_size`` elements along ``axis`` with a scale from its own range.

    ``q = clamp(rint(x / s[g]) + z[g], quant_min, quant_max)`` with the ``s`` and ``z`` of
    :func:`choose_qparams_per_group`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, of the shape of ``input`` and of ``dtype``; the scale, ``input.shape`` with
        ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32 (float64 for a float64
        input); the zero point of that shape, int32.

    Example:
        >>> x = torch.tensor([[1.0, 63.5, -127.0, 0.0]])
        >>> baraquant.ops.dynamic_range_quantize_per_group(x, 2)
        (tensor([[   2,  127, -127,    0]], dtype=torch.int8),
         tensor([[0.5000, 1.0000]]),
         tensor([[0, 0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_group.default(
            input, group_size, axis, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result
