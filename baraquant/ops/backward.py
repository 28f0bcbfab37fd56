# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of the affine family as functions of their own.

Autograd calls these ops. Call one yourself only for a gradient that you assemble by hand.
"""

import torch
from torch import Tensor

from ._docs.affine import (
    DEQUANTIZE_BACKWARD,
    FAKE_QUANTIZE_BACKWARD,
    FAKE_QUANTIZE_BACKWARD_QPARAMS,
    PER_CHANNEL,
    PER_GROUP,
    PER_TENSOR,
    PER_TOKEN,
    QUANTIZE_BACKWARD,
)
from ._operator import operator

__all__ = [
    "dequantize_per_channel_backward",
    "dequantize_per_group_backward",
    "dequantize_per_tensor_backward",
    "dequantize_per_token_backward",
    "fake_quantize_per_channel_backward",
    "fake_quantize_per_channel_backward_qparams",
    "fake_quantize_per_group_backward",
    "fake_quantize_per_group_backward_qparams",
    "fake_quantize_per_tensor_backward",
    "fake_quantize_per_tensor_backward_qparams",
    "fake_quantize_per_token_backward",
    "fake_quantize_per_token_backward_qparams",
    "quantize_per_channel_backward",
    "quantize_per_group_backward",
    "quantize_per_tensor_backward",
    "quantize_per_token_backward",
]


@operator(QUANTIZE_BACKWARD, PER_TENSOR)
def quantize_per_tensor_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.quantize_per_tensor` in its input.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_tensor_backward
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([2., 2., 0.])
    """
    return torch.ops.baraquant.quantize_per_tensor_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator(QUANTIZE_BACKWARD, PER_CHANNEL)
def quantize_per_channel_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.quantize_per_channel` in its input.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_channel_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(torch.ones_like(x), x, scale, None, 0, -8, 4)
        tensor([[2., 2.],
                [4., 0.]])
    """
    return torch.ops.baraquant.quantize_per_channel_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max
    )


@operator(QUANTIZE_BACKWARD, PER_TOKEN)
def quantize_per_token_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.quantize_per_token` in its input.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_token_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([[2., 2.],
                [4., 0.]])
    """
    return torch.ops.baraquant.quantize_per_token_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator(QUANTIZE_BACKWARD, PER_GROUP)
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
    """Gradient of :func:`baraquant.ops.quantize_per_group` in its input.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_group_backward
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(torch.ones_like(x), x, scale, None, 2, -1, -8, 4)
        tensor([[2., 2., 4., 0.]])
    """
    return torch.ops.baraquant.quantize_per_group_backward.default(
        grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
    )


@operator(DEQUANTIZE_BACKWARD, PER_TENSOR)
def dequantize_per_tensor_backward(
    grad: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_tensor` in its input.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_tensor_backward
        >>> grad, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(grad, scale)
        tensor([ 0.2500,  0.7500, -4.5000])
    """
    return torch.ops.baraquant.dequantize_per_tensor_backward.default(grad, scale, dtype=dtype)


@operator(DEQUANTIZE_BACKWARD, PER_CHANNEL)
def dequantize_per_channel_backward(
    grad: Tensor, scale: Tensor, axis: int, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_channel` in its input.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_channel_backward
        >>> grad, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(grad, scale, 0)
        tensor([[0.2500, 0.7500],
                [0.1250, 0.3750]])
    """
    return torch.ops.baraquant.dequantize_per_channel_backward.default(
        grad, scale, axis, dtype=dtype
    )


@operator(DEQUANTIZE_BACKWARD, PER_TOKEN)
def dequantize_per_token_backward(
    grad: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_token` in its input.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_token_backward
        >>> grad, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(grad, scale)
        tensor([[0.2500, 0.7500],
                [0.1250, 0.3750]])
    """
    return torch.ops.baraquant.dequantize_per_token_backward.default(grad, scale, dtype=dtype)


@operator(DEQUANTIZE_BACKWARD, PER_GROUP)
def dequantize_per_group_backward(
    grad: Tensor,
    scale: Tensor,
    group_size: int,
    axis: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_group` in its input.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_group_backward
        >>> grad, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(grad, scale, 2)
        tensor([[0.2500, 0.7500, 0.1250, 0.3750]])
    """
    return torch.ops.baraquant.dequantize_per_group_backward.default(
        grad, scale, group_size, axis, dtype=dtype
    )


@operator(FAKE_QUANTIZE_BACKWARD, PER_TENSOR)
def fake_quantize_per_tensor_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.fake_quantize_per_tensor` in its input.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_tensor_backward
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([1., 1., 0.])
    """
    return torch.ops.baraquant.fake_quantize_per_tensor_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator(FAKE_QUANTIZE_BACKWARD, PER_CHANNEL)
def fake_quantize_per_channel_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.fake_quantize_per_channel` in its input.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_channel_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(torch.ones_like(x), x, scale, None, 0, -8, 4)
        tensor([[1., 1.],
                [1., 0.]])
    """
    return torch.ops.baraquant.fake_quantize_per_channel_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max
    )


@operator(FAKE_QUANTIZE_BACKWARD, PER_TOKEN)
def fake_quantize_per_token_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.fake_quantize_per_token` in its input.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_token_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([[1., 1.],
                [1., 0.]])
    """
    return torch.ops.baraquant.fake_quantize_per_token_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )


@operator(FAKE_QUANTIZE_BACKWARD, PER_GROUP)
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
    """Gradient of :func:`baraquant.ops.fake_quantize_per_group` in its input.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_group_backward
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(torch.ones_like(x), x, scale, None, 2, -1, -8, 4)
        tensor([[1., 1., 1., 0.]])
    """
    return torch.ops.baraquant.fake_quantize_per_group_backward.default(
        grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
    )


@operator(FAKE_QUANTIZE_BACKWARD_QPARAMS, PER_TENSOR)
def fake_quantize_per_tensor_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`baraquant.ops.fake_quantize_per_tensor` in input, scale and zero point.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_tensor_backward_qparams
        >>> x, scale = torch.tensor([0.625, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)[1]
        tensor(-8.2500)
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_tensor_backward_qparams.default(
            grad, input, scale, zero_point, quant_min, quant_max
        )
    )
    return gradients


@operator(FAKE_QUANTIZE_BACKWARD_QPARAMS, PER_CHANNEL)
def fake_quantize_per_channel_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`baraquant.ops.fake_quantize_per_channel` in input, scale and zero point.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_channel_backward_qparams
        >>> x, scale = torch.tensor([[0.625, 1.5], [0.625, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(torch.ones_like(x), x, scale, None, 0, -8, 4)[1]
        tensor([-0.2500,  3.5000])
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_channel_backward_qparams.default(
            grad, input, scale, zero_point, axis, quant_min, quant_max
        )
    )
    return gradients


@operator(FAKE_QUANTIZE_BACKWARD_QPARAMS, PER_TOKEN)
def fake_quantize_per_token_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`baraquant.ops.fake_quantize_per_token` in input, scale and zero point.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_token_backward_qparams
        >>> x, scale = torch.tensor([[0.625, 1.5], [0.625, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)[1]
        tensor([[-0.2500],
                [ 3.5000]])
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_token_backward_qparams.default(
            grad, input, scale, zero_point, quant_min, quant_max
        )
    )
    return gradients


@operator(FAKE_QUANTIZE_BACKWARD_QPARAMS, PER_GROUP)
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
    """Gradients of :func:`baraquant.ops.fake_quantize_per_group` in input, scale and zero point.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_group_backward_qparams
        >>> x, scale = torch.tensor([[0.625, 1.5, 0.625, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(torch.ones_like(x), x, scale, None, 2, -1, -8, 4)[1]
        tensor([[-0.2500,  3.5000]])
    """
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_group_backward_qparams.default(
            grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
        )
    )
    return gradients
