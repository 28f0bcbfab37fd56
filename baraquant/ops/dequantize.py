# SPDX-License-Identifier: BSD-3-Clause
"""dequantize: a tensor of integers becomes a tensor of numbers."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def dequantize_per_tensor(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize ``input`` with one scale for the whole tensor.

    ``y = (q - z) * s``

    Args:
        input: Any shape; int8, uint8, or floating (the differentiable form).
        scale: ``[]`` or ``[1]``, float32 or float64, the dtype that is computed in; or a number >
            0.
        zero_point: Shaped like ``scale``, any integer dtype; or an int of 32 bits; None stands for
            0. Where ``scale`` is a number: an int or None.
        dtype: A floating dtype; None stands for the dtype that is computed in.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([1, 3, -18], dtype=torch.int8)
        >>> scale = torch.tensor(0.5)
        >>> baraquant.ops.dequantize_per_tensor(q, scale, None)
        tensor([ 0.5000,  1.5000, -9.0000])
    """
    if isinstance(scale, (int, float)):
        return torch.ops.baraquant.dequantize_per_tensor.number(
            input, scale, zero_point, dtype=dtype
        )
    if isinstance(zero_point, int):
        return torch.ops.baraquant.dequantize_per_tensor.scale_tensor(
            input, scale, zero_point, dtype=dtype
        )
    return torch.ops.baraquant.dequantize_per_tensor.default(input, scale, zero_point, dtype=dtype)


@operator
def dequantize_per_channel(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize ``input`` with a scale for each index of ``axis``.

    ``y = (q - z[c]) * s[c]``

    Args:
        input: Any shape; int8, uint8, or floating (the differentiable form).
        scale: ``[input.shape[axis]]``, float32 or float64, the dtype that is computed in.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        axis: The dimension that the channels are counted along; negative counts from the end.
        dtype: A floating dtype; None stands for the dtype that is computed in.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([[1, 3], [2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([0.5, 0.25])
        >>> baraquant.ops.dequantize_per_channel(q, scale, None, 0)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.dequantize_per_channel.default(
        input, scale, zero_point, axis, dtype=dtype
    )


@operator
def dequantize_per_token(
    input: Tensor, scale: Tensor, zero_point: Tensor | None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Dequantize ``input`` with a scale for each vector along the last dimension.

    ``y = (q - z[t]) * s[t]``

    Args:
        input: Any shape; int8, uint8, or floating (the differentiable form).
        scale: ``[..., 1]`` (or ``[...]``) for an input ``[..., D]``, float32 or float64, the dtype
            that is computed in.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        dtype: A floating dtype; None stands for the dtype that is computed in.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([[1, 3], [2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.dequantize_per_token(q, scale, None)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.dequantize_per_token.default(input, scale, zero_point, dtype=dtype)


@operator
def dequantize_per_group(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int,
    axis: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize ``input`` with a scale for each run of ``group_size`` elements along ``axis``.

    ``y = (q - z[g]) * s[g]``

    Args:
        input: Any shape; int8, uint8, or floating (the differentiable form).
        scale: ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32
            or float64, the dtype that is computed in.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        dtype: A floating dtype; None stands for the dtype that is computed in.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([[1, 3, 2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.dequantize_per_group(q, scale, None, 2)
        tensor([[0.5000, 1.5000, 0.5000, 1.5000]])
    """
    return torch.ops.baraquant.dequantize_per_group.default(
        input, scale, zero_point, group_size, axis, dtype=dtype
    )


@operator
def dequantize_per_tensor_backward(
    grad: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`dequantize_per_tensor` in its input.

    ``dq = grad * s``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[]`` or ``[1]``, float32 or float64, the dtype that is computed in.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> grad, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> baraquant.ops.dequantize_per_tensor_backward(grad, scale)
        tensor([ 0.2500,  0.7500, -4.5000])
    """
    return torch.ops.baraquant.dequantize_per_tensor_backward.default(grad, scale, dtype=dtype)


@operator
def dequantize_per_channel_backward(
    grad: Tensor, scale: Tensor, axis: int, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`dequantize_per_channel` in its input.

    ``dq = grad * s[c]``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[grad.shape[axis]]``, float32 or float64, the dtype that is computed in.
        axis: The dimension that the channels are counted along; negative counts from the end.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> grad, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> baraquant.ops.dequantize_per_channel_backward(grad, scale, 0)
        tensor([[0.2500, 0.7500],
                [0.1250, 0.3750]])
    """
    return torch.ops.baraquant.dequantize_per_channel_backward.default(
        grad, scale, axis, dtype=dtype
    )


@operator
def dequantize_per_token_backward(
    grad: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`dequantize_per_token` in its input.

    ``dq = grad * s[t]``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[..., 1]`` (or ``[...]``) for a grad ``[..., D]``, float32 or float64, the dtype
            that is computed in.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> grad, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.dequantize_per_token_backward(grad, scale)
        tensor([[0.2500, 0.7500],
                [0.1250, 0.3750]])
    """
    return torch.ops.baraquant.dequantize_per_token_backward.default(grad, scale, dtype=dtype)


@operator
def dequantize_per_group_backward(
    grad: Tensor,
    scale: Tensor,
    group_size: int,
    axis: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Gradient of :func:`dequantize_per_group` in its input.

    ``dq = grad * s[g]``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``grad.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32 or
            float64, the dtype that is computed in.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> grad, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.dequantize_per_group_backward(grad, scale, 2)
        tensor([[0.2500, 0.7500, 0.1250, 0.3750]])
    """
    return torch.ops.baraquant.dequantize_per_group_backward.default(
        grad, scale, group_size, axis, dtype=dtype
    )
