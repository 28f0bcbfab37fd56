# SPDX-License-Identifier: BSD-3-Clause
"""dynamic_fake_quantize: rounded to the grid that the data itself gives, and differentiable."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def dynamic_fake_quantize_per_tensor(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> Tensor:
    """Fake-quantize ``input`` with one scale, chosen from the range of the whole tensor.

    ``y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s`` with the ``s`` and ``z`` of
    :func:`choose_qparams_per_tensor`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x = torch.tensor([0.6, 3.5, -1.2])
        >>> baraquant.ops.dynamic_fake_quantize_per_tensor(x, -8, 7)
        tensor([ 0.5000,  3.5000, -1.0000])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_tensor.default(
        input, quant_min, quant_max, symmetric=symmetric
    )


@operator
def dynamic_fake_quantize_per_channel(
    input: Tensor,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
) -> Tensor:
    """Fake-quantize ``input`` with a scale for each index of ``axis``, from the channel's range.

    ``y = (clamp(rint(x / s[c]) + z[c], quant_min, quant_max) - z[c]) * s[c]`` with the ``s`` and
    ``z`` of :func:`choose_qparams_per_channel`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x = torch.tensor([[0.6, 3.5], [0.6, 7.0]])
        >>> baraquant.ops.dynamic_fake_quantize_per_channel(x, 0, -8, 7)
        tensor([[0.5000, 3.5000],
                [1.0000, 7.0000]])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_channel.default(
        input, axis, quant_min, quant_max, symmetric=symmetric
    )


@operator
def dynamic_fake_quantize_per_token(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> Tensor:
    """Fake-quantize each vector along the last dimension with a scale from its own range.

    ``y = (clamp(rint(x / s[t]) + z[t], quant_min, quant_max) - z[t]) * s[t]`` with the ``s`` and
    ``z`` of :func:`choose_qparams_per_token`

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x = torch.tensor([[0.6, 7.5], [0.6, 15.0]])
        >>> baraquant.ops.dynamic_fake_quantize_per_token(x, 0, 15, symmetric=False)
        tensor([[ 0.5000,  7.5000],
                [ 1.0000, 15.0000]])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_token.default(
        input, quant_min, quant_max, symmetric=symmetric
    )


@operator
def dynamic_fake_quantize_per_group(
    input: Tensor,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
) -> Tensor:
    """Fake-quantize each run of ``group_size`` elements along ``axis`` with a scale of its own.

    ``y = (clamp(rint(x / s[g]) + z[g], quant_min, quant_max) - z[g]) * s[g]`` with the ``s`` and
    ``z`` of :func:`choose_qparams_per_group`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x = torch.tensor([[0.6, 3.5, 0.6, 7.0]])
        >>> baraquant.ops.dynamic_fake_quantize_per_group(x, 2, -1, -8, 7)
        tensor([[0.5000, 3.5000, 1.0000, 7.0000]])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_group.default(
        input, group_size, axis, quant_min, quant_max, symmetric=symmetric
    )
