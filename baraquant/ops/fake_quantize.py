# SPDX-License-Identifier: BSD-3-Clause
"""fake_quantize: quantize and dequantize at once, with a straight-through gradient."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def fake_quantize_per_tensor(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    save_mask: bool | None = None,
) -> Tensor:
    """Fake-quantize ``input`` with one scale for the whole tensor.

    ``y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``[]`` or ``[1]``, float32 (float64 for a float64 input); or a number > 0.
        zero_point: Shaped like ``scale``, integer or floating; or an int in the range; None stands
            for 0. Where ``scale`` is a number: an int or None.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits. If the
            scale or the zero point is learned, the input is always kept.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([0.6, 1.5, -9.0]), torch.tensor(0.5)
        >>> baraquant.ops.fake_quantize_per_tensor(x, scale, None)
        tensor([ 0.5000,  1.5000, -9.0000])
    """
    if isinstance(scale, (int, float)):
        return torch.ops.baraquant.fake_quantize_per_tensor.number(
            input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
        )
    if isinstance(zero_point, int):
        return torch.ops.baraquant.fake_quantize_per_tensor.scale_tensor(
            input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
        )
    return torch.ops.baraquant.fake_quantize_per_tensor.default(
        input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
    )


@operator
def fake_quantize_per_channel(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    save_mask: bool | None = None,
) -> Tensor:
    """Fake-quantize ``input`` with a scale for each index of ``axis``.

    ``y = (clamp(rint(x / s[c]) + z[c], quant_min, quant_max) - z[c]) * s[c]``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``[input.shape[axis]]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits. If the
            scale or the zero point is learned, the input is always kept.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.6, 1.5], [0.6, 1.5]]), torch.tensor([0.5, 0.25])
        >>> baraquant.ops.fake_quantize_per_channel(x, scale, None, 0)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.fake_quantize_per_channel.default(
        input, scale, zero_point, axis, quant_min, quant_max, save_mask=save_mask
    )


@operator
def fake_quantize_per_token(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    save_mask: bool | None = None,
) -> Tensor:
    """Fake-quantize ``input`` with a scale for each vector along the last dimension.

    ``y = (clamp(rint(x / s[t]) + z[t], quant_min, quant_max) - z[t]) * s[t]``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``[..., 1]`` (or ``[...]``) for an input ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits. If the
            scale or the zero point is learned, the input is always kept.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.6, 1.5], [0.6, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.fake_quantize_per_token(x, scale, None)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.fake_quantize_per_token.default(
        input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
    )


@operator
def fake_quantize_per_group(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    save_mask: bool | None = None,
) -> Tensor:
    """Fake-quantize ``input`` with a scale for each run of ``group_size`` elements along ``axis``.

    ``y = (clamp(rint(x / s[g]) + z[g], quant_min, quant_max) - z[g]) * s[g]``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32
            (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits. If the
            scale or the zero point is learned, the input is always kept.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.6, 1.5, 0.6, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.fake_quantize_per_group(x, scale, None, 2)
        tensor([[0.5000, 1.5000, 0.5000, 1.5000]])
    """
    return torch.ops.baraquant.fake_quantize_per_group.default(
        input, scale, zero_point, group_size, axis, quant_min, quant_max, save_mask=save_mask
    )
