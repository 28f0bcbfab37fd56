# SPDX-License-Identifier: BSD-3-Clause
"""quantize: a tensor of numbers becomes a tensor of integers."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def quantize_per_tensor(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    dtype: torch.dtype = torch.int8,
    save_mask: bool | None = None,
) -> Tensor:
    """Quantize ``input`` with one scale for the whole tensor.

    ``q = clamp(rint(x / s) + z, quant_min, quant_max)``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``[]`` or ``[1]``, float32 (float64 for a float64 input); or a number > 0.
        zero_point: Shaped like ``scale``, any integer dtype; or an int in the range; None stands
            for 0. Where ``scale`` is a number: an int or None.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8, uint8, or a floating dtype (the differentiable form).
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits.

    Returns:
        The integers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> baraquant.ops.quantize_per_tensor(x, scale, None)
        tensor([  1,   3, -18], dtype=torch.int8)
    """
    if isinstance(scale, (int, float)):
        return torch.ops.baraquant.quantize_per_tensor.number(
            input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
        )
    if isinstance(zero_point, int):
        return torch.ops.baraquant.quantize_per_tensor.scale_tensor(
            input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
        )
    return torch.ops.baraquant.quantize_per_tensor.default(
        input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )


@operator
def quantize_per_channel(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    dtype: torch.dtype = torch.int8,
    save_mask: bool | None = None,
) -> Tensor:
    """Quantize ``input`` with a scale for each index of ``axis``.

    ``q = clamp(rint(x / s[c]) + z[c], quant_min, quant_max)``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``[input.shape[axis]]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8, uint8, or a floating dtype (the differentiable form).
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits.

    Returns:
        The integers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> baraquant.ops.quantize_per_channel(x, scale, None, 0)
        tensor([[1, 3],
                [2, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.quantize_per_channel.default(
        input, scale, zero_point, axis, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )


@operator
def quantize_per_token(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    dtype: torch.dtype = torch.int8,
    save_mask: bool | None = None,
) -> Tensor:
    """Quantize ``input`` with a scale for each vector along the last dimension.

    ``q = clamp(rint(x / s[t]) + z[t], quant_min, quant_max)``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``[..., 1]`` (or ``[...]``) for an input ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8, uint8, or a floating dtype (the differentiable form).
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits.

    Returns:
        The integers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.quantize_per_token(x, scale, None)
        tensor([[1, 3],
                [2, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.quantize_per_token.default(
        input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )


@operator
def quantize_per_group(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    dtype: torch.dtype = torch.int8,
    save_mask: bool | None = None,
) -> Tensor:
    """Quantize ``input`` with a scale for each run of ``group_size`` elements along ``axis``.

    ``q = clamp(rint(x / s[g]) + z[g], quant_min, quant_max)``

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        scale: ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32
            (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8, uint8, or a floating dtype (the differentiable form).
        save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
            None: the input if it is a leaf (a parameter) or a view of one, else the bits.

    Returns:
        The integers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.quantize_per_group(x, scale, None, 2)
        tensor([[1, 3, 2, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.quantize_per_group.default(
        input,
        scale,
        zero_point,
        group_size,
        axis,
        quant_min,
        quant_max,
        dtype=dtype,
        save_mask=save_mask,
    )


@operator
def quantize_per_tensor_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`quantize_per_tensor` in its input.

    ``dx = grad / s where quant_min <= rint(x / s) + z <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: What was quantized.
        scale: ``[]`` or ``[1]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.quantize_per_tensor_backward(grad, x, scale, None, -8, 4)
        tensor([2., 2., 0.])
    """
    return torch.ops.baraquant.quantize_per_tensor_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator
def quantize_per_channel_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`quantize_per_channel` in its input.

    ``dx = grad / s[c] where quant_min <= rint(x / s[c]) + z[c] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: What was quantized.
        scale: ``[input.shape[axis]]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.quantize_per_channel_backward(grad, x, scale, None, 0, -8, 4)
        tensor([[2., 2.],
                [4., 0.]])
    """
    return torch.ops.baraquant.quantize_per_channel_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max
    )


@operator
def quantize_per_token_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`quantize_per_token` in its input.

    ``dx = grad / s[t] where quant_min <= rint(x / s[t]) + z[t] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: What was quantized.
        scale: ``[..., 1]`` (or ``[...]``) for an input ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.quantize_per_token_backward(grad, x, scale, None, -8, 4)
        tensor([[2., 2.],
                [4., 0.]])
    """
    return torch.ops.baraquant.quantize_per_token_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator
def quantize_per_group_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`quantize_per_group` in its input.

    ``dx = grad / s[g] where quant_min <= rint(x / s[g]) + z[g] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: What was quantized.
        scale: ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32
            (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.quantize_per_group_backward(grad, x, scale, None, 2, -1, -8, 4)
        tensor([[2., 2., 4., 0.]])
    """
    return torch.ops.baraquant.quantize_per_group_backward.default(
        grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
    )
