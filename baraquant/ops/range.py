# SPDX-License-Identifier: BSD-3-Clause
"""choose_qparams: the scale and the zero point that fit the data."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def choose_qparams_per_tensor(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose one scale and zero point from the range of the whole tensor.

    ``s = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
    ``s = (xmax - xmin) / (quant_max - quant_min)`` and ``z = quant_min - rint(xmin / s)``,
    where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale ``[]``, float32 (float64 for a float64 input), and the zero point ``[]``, int32.

    Example:
        >>> x = torch.tensor([1.0, 63.5, -20.0])
        >>> baraquant.ops.choose_qparams_per_tensor(x)
        (tensor(0.5000), tensor(0, dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_tensor.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def choose_qparams_per_channel(
    input: Tensor,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
) -> tuple[Tensor, Tensor]:
    """Choose a scale and zero point for each index of ``axis``.

    ``s[c] = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
    ``s[c] = (xmax - xmin) / (quant_max - quant_min)`` and ``z[c] = quant_min - rint(xmin / s[c])``,
    where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the channel

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale ``[input.shape[axis]]``, float32 (float64 for a float64 input), and the zero
        point of that shape, int32.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-127.0, 0.0]])
        >>> baraquant.ops.choose_qparams_per_channel(x, 0)
        (tensor([0.5000, 1.0000]), tensor([0, 0], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_channel.default(
        input, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def choose_qparams_per_token(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose a scale and zero point for each vector along the last dimension.

    ``s[t] = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
    ``s[t] = (xmax - xmin) / (quant_max - quant_min)`` and ``z[t] = quant_min - rint(xmin / s[t])``,
    where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the vector

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale ``[..., 1]``, float32 (float64 for a float64 input), and the zero point of that
        shape, int32.

    Example:
        >>> x = torch.tensor([[-1.0, 0.5], [2.0, 255.0]])
        >>> baraquant.ops.choose_qparams_per_token(x, 0, 255, symmetric=False)
        (tensor([[0.0059],
                [1.0000]]), tensor([[170],
                [  0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_token.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def choose_qparams_per_group(
    input: Tensor,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
) -> tuple[Tensor, Tensor]:
    """Choose a scale and zero point for each run of ``group_size`` elements along ``axis``.

    ``s[g] = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
    ``s[g] = (xmax - xmin) / (quant_max - quant_min)`` and ``z[g] = quant_min - rint(xmin / s[g])``,
    where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the group

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale, ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``,
        float32 (float64 for a float64 input), and the zero point of that shape, int32.

    Example:
        >>> x = torch.tensor([[1.0, 63.5, -127.0, 0.0]])
        >>> baraquant.ops.choose_qparams_per_group(x, 2)
        (tensor([[0.5000, 1.0000]]), tensor([[0, 0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_group.default(
        input, group_size, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result
