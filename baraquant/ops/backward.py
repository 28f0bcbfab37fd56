# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of fake_quantize as functions of their own."""

import torch
from torch import Tensor

from ._operator import operator


@operator
def fake_quantize_per_tensor_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`fake_quantize_per_tensor` in its input.

    ``dx = grad where quant_min <= rint(x / s) + z <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[]`` or ``[1]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_tensor_backward(grad, x, scale, None, -8, 4)
        tensor([1., 1., 0.])
    """
    return torch.ops.baraquant.fake_quantize_per_tensor_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator
def fake_quantize_per_channel_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`fake_quantize_per_channel` in its input.

    ``dx = grad where quant_min <= rint(x / s[c]) + z[c] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[input.shape[axis]]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_channel_backward(grad, x, scale, None, 0, -8, 4)
        tensor([[1., 1.],
                [1., 0.]])
    """
    return torch.ops.baraquant.fake_quantize_per_channel_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max
    )


@operator
def fake_quantize_per_token_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`fake_quantize_per_token` in its input.

    ``dx = grad where quant_min <= rint(x / s[t]) + z[t] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[..., 1]`` (or ``[...]``) for an input ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_token_backward(grad, x, scale, None, -8, 4)
        tensor([[1., 1.],
                [1., 0.]])
    """
    return torch.ops.baraquant.fake_quantize_per_token_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator
def fake_quantize_per_group_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`fake_quantize_per_group` in its input.

    ``dx = grad where quant_min <= rint(x / s[g]) + z[g] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32
            (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_group_backward(grad, x, scale, None, 2, -1, -8, 4)
        tensor([[1., 1., 1., 0.]])
    """
    return torch.ops.baraquant.fake_quantize_per_group_backward.default(
        grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
    )


@operator
def fake_quantize_per_tensor_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`fake_quantize_per_tensor` in input, scale and zero point, in one pass.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[]`` or ``[1]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, each shaped like its own;
        that of a ``zero_point`` which is not floating has the dtype of ``scale``.

    Example:
        >>> x, scale = torch.tensor([0.625, 1.5, -9.0]), torch.tensor(0.5)
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_tensor_backward_qparams(
        ...     grad, x, scale, None, -8, 4
        ... )[1]
        tensor(-8.2500)
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_tensor_backward_qparams.default(
            grad, input, scale, zero_point, quant_min, quant_max
        )
    )
    return gradients


@operator
def fake_quantize_per_channel_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`fake_quantize_per_channel` in input, scale and zero point, in one pass.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[input.shape[axis]]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        axis: The dimension that the channels are counted along; negative counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, each shaped like its own;
        that of a ``zero_point`` which is not floating has the dtype of ``scale``.

    Example:
        >>> x, scale = torch.tensor([[0.625, 1.5], [0.625, 1.5]]), torch.tensor([0.5, 0.25])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_channel_backward_qparams(
        ...     grad, x, scale, None, 0, -8, 4
        ... )[1]
        tensor([-0.2500,  3.5000])
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_channel_backward_qparams.default(
            grad, input, scale, zero_point, axis, quant_min, quant_max
        )
    )
    return gradients


@operator
def fake_quantize_per_token_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`fake_quantize_per_token` in input, scale and zero point, in one pass.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[..., 1]`` (or ``[...]``) for an input ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, each shaped like its own;
        that of a ``zero_point`` which is not floating has the dtype of ``scale``.

    Example:
        >>> x, scale = torch.tensor([[0.625, 1.5], [0.625, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_token_backward_qparams(
        ...     grad, x, scale, None, -8, 4
        ... )[1]
        tensor([[-0.2500],
                [ 3.5000]])
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_token_backward_qparams.default(
            grad, input, scale, zero_point, quant_min, quant_max
        )
    )
    return gradients


@operator
def fake_quantize_per_group_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_size: int,
    axis: int = -1,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`fake_quantize_per_group` in input, scale and zero point, in one pass.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``input.shape`` with ``ceil(n / group_size)`` for its ``n`` along ``axis``, float32
            (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        group_size: Neighbours that share a scale; the last group may be shorter.
        axis: The dimension that the groups lie along.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, each shaped like its own;
        that of a ``zero_point`` which is not floating has the dtype of ``scale``.

    Example:
        >>> x, scale = torch.tensor([[0.625, 1.5, 0.625, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> grad = torch.ones_like(x)
        >>> baraquant.ops.fake_quantize_per_group_backward_qparams(
        ...     grad, x, scale, None, 2, -1, -8, 4
        ... )[1]
        tensor([[-0.2500,  3.5000]])
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_group_backward_qparams.default(
            grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
        )
    )
    return gradients
