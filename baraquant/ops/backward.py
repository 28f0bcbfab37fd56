# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""The gradients of the affine ops, for programs that call them by hand."""

import torch
from torch import Tensor

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


@operator
def quantize_per_tensor_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.quantize_per_tensor` in its input.

    ``dx = grad / s where quant_min <= rint(x / s) + z <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: The tensor that was quantized, floating, of any shape.
        scale: ``[]`` or ``[1]``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_tensor_backward
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([2., 2., 0.])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_tensor_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )
    return result


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
    """Gradient of :func:`baraquant.ops.quantize_per_channel` in its input.

    ``dx = grad / s[c] where quant_min <= rint(x / s[c]) + z[c] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: The tensor that was quantized, floating, of any shape.
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        axis: The dimension of the channels; a negative one counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_channel_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(torch.ones_like(x), x, scale, None, 0, -8, 4)
        tensor([[2., 2.],
                [4., 0.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_channel_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max
    )
    return result


@operator
def quantize_per_token_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.quantize_per_token` in its input.

    ``dx = grad / s[t] where quant_min <= rint(x / s[t]) + z[t] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: The tensor that was quantized, floating, of any shape.
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_token_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([[2., 2.],
                [4., 0.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_token_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )
    return result


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
    """Gradient of :func:`baraquant.ops.quantize_per_group` in its input.

    ``dx = grad / s[g] where quant_min <= rint(x / s[g]) + z[g] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, floating: the gradient of the quantized values.
        input: The tensor that was quantized, floating, of any shape.
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.quantize_per_group_backward
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(torch.ones_like(x), x, scale, None, 2, -1, -8, 4)
        tensor([[2., 2., 4., 0.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_group_backward.default(
        grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
    )
    return result


@operator
def dequantize_per_tensor_backward(
    grad: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_tensor` in its input.

    ``dq = grad * s``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[]`` or ``[1]``, float32 or float64, which is the dtype of the computation.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_tensor_backward
        >>> grad, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(grad, scale)
        tensor([ 0.2500,  0.7500, -4.5000])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_tensor_backward.default(
        grad, scale, dtype=dtype
    )
    return result


@operator
def dequantize_per_channel_backward(
    grad: Tensor, scale: Tensor, axis: int, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_channel` in its input.

    ``dq = grad * s[c]``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 or float64, which is the dtype of
            the computation.
        axis: The dimension of the channels; a negative one counts from the end.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_channel_backward
        >>> grad, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(grad, scale, 0)
        tensor([[0.2500, 0.7500],
                [0.1250, 0.3750]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_channel_backward.default(
        grad, scale, axis, dtype=dtype
    )
    return result


@operator
def dequantize_per_token_backward(
    grad: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_token` in its input.

    ``dq = grad * s[t]``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 or float64, which is
            the dtype of the computation.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_token_backward
        >>> grad, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(grad, scale)
        tensor([[0.2500, 0.7500],
                [0.1250, 0.3750]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_token_backward.default(
        grad, scale, dtype=dtype
    )
    return result


@operator
def dequantize_per_group_backward(
    grad: Tensor,
    scale: Tensor,
    group_size: int,
    axis: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.dequantize_per_group` in its input.

    ``dq = grad * s[g]``

    Args:
        grad: Any shape, floating: the gradient of the numbers.
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 or float64, which is the dtype of the computation.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        dtype: The dtype of the gradient; None stands for that of ``grad``.

    Returns:
        The gradient, with the shape of ``grad`` and of ``dtype``.

    Example:
        >>> op = baraquant.ops.backward.dequantize_per_group_backward
        >>> grad, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(grad, scale, 2)
        tensor([[0.2500, 0.7500, 0.1250, 0.3750]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_group_backward.default(
        grad, scale, group_size, axis, dtype=dtype
    )
    return result


@operator
def fake_quantize_per_tensor_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.fake_quantize_per_tensor` in its input.

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
        >>> op = baraquant.ops.backward.fake_quantize_per_tensor_backward
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([1., 1., 0.])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_tensor_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )
    return result


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
    """Gradient of :func:`baraquant.ops.fake_quantize_per_channel` in its input.

    ``dx = grad where quant_min <= rint(x / s[c]) + z[c] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        axis: The dimension of the channels; a negative one counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_channel_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(torch.ones_like(x), x, scale, None, 0, -8, 4)
        tensor([[1., 1.],
                [1., 0.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_channel_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max
    )
    return result


@operator
def fake_quantize_per_token_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Gradient of :func:`baraquant.ops.fake_quantize_per_token` in its input.

    ``dx = grad where quant_min <= rint(x / s[t]) + z[t] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_token_backward
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)
        tensor([[1., 1.],
                [1., 0.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_token_backward.default(
        grad, input, scale, zero_point, quant_min, quant_max
    )
    return result


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
    """Gradient of :func:`baraquant.ops.fake_quantize_per_group` in its input.

    ``dx = grad where quant_min <= rint(x / s[g]) + z[g] <= quant_max, else 0``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradient, with the shape and the dtype of ``input``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_group_backward
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(torch.ones_like(x), x, scale, None, 2, -1, -8, 4)
        tensor([[1., 1., 1., 0.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Linear in ``grad``, and differentiable in it.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. A NaN x lies outside the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_group_backward.default(
        grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
    )
    return result


@operator
def fake_quantize_per_tensor_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`baraquant.ops.fake_quantize_per_tensor` in input, scale and zero point.

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
        The gradients of ``input``, of ``scale`` and of ``zero_point``, computed in one pass; each
        has the shape and the dtype of its tensor. For a ``zero_point`` that is not floating the
        dtype is that of ``scale``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_tensor_backward_qparams
        >>> x, scale = torch.tensor([0.625, 1.5, -9.0]), torch.tensor(0.5)
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)[1]
        tensor(-8.2500)

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: the gradients of scale and zero point cannot be differentiated again.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. Sums are float64; a NaN x adds nothing to the scale's sum.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_tensor_backward_qparams.default(
            grad, input, scale, zero_point, quant_min, quant_max
        )
    )
    return result


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
    """Gradients of :func:`baraquant.ops.fake_quantize_per_channel` in input, scale and zero point.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        axis: The dimension of the channels; a negative one counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, computed in one pass; each
        has the shape and the dtype of its tensor. For a ``zero_point`` that is not floating the
        dtype is that of ``scale``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_channel_backward_qparams
        >>> x, scale = torch.tensor([[0.625, 1.5], [0.625, 1.5]]), torch.tensor([0.5, 0.25])
        >>> op(torch.ones_like(x), x, scale, None, 0, -8, 4)[1]
        tensor([-0.2500,  3.5000])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: the gradients of scale and zero point cannot be differentiated again.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. Sums are float64; a NaN x adds nothing to the scale's sum.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_channel_backward_qparams.default(
            grad, input, scale, zero_point, axis, quant_min, quant_max
        )
    )
    return result


@operator
def fake_quantize_per_token_backward_qparams(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int = -128,
    quant_max: int = 127,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`baraquant.ops.fake_quantize_per_token` in input, scale and zero point.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 (float64 for a float64
            input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, computed in one pass; each
        has the shape and the dtype of its tensor. For a ``zero_point`` that is not floating the
        dtype is that of ``scale``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_token_backward_qparams
        >>> x, scale = torch.tensor([[0.625, 1.5], [0.625, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> op(torch.ones_like(x), x, scale, None, -8, 4)[1]
        tensor([[-0.2500],
                [ 3.5000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: the gradients of scale and zero point cannot be differentiated again.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. Sums are float64; a NaN x adds nothing to the scale's sum.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_token_backward_qparams.default(
            grad, input, scale, zero_point, quant_min, quant_max
        )
    )
    return result


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
    """Gradients of :func:`baraquant.ops.fake_quantize_per_group` in input, scale and zero point.

    ``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
    ``dz = sum(0 where x is inside the range, else -s * grad)``

    Args:
        grad: Shaped like ``input``, of its dtype.
        input: The tensor that was rounded, floating, of any shape.
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        quant_min: The smallest integer.
        quant_max: The largest integer.

    Returns:
        The gradients of ``input``, of ``scale`` and of ``zero_point``, computed in one pass; each
        has the shape and the dtype of its tensor. For a ``zero_point`` that is not floating the
        dtype is that of ``scale``.

    Example:
        >>> op = baraquant.ops.backward.fake_quantize_per_group_backward_qparams
        >>> x, scale = torch.tensor([[0.625, 1.5, 0.625, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> op(torch.ones_like(x), x, scale, None, 2, -1, -8, 4)[1]
        tensor([[-0.2500,  3.5000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: the gradients of scale and zero point cannot be differentiated again.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. Sums are float64; a NaN x adds nothing to the scale's sum.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.fake_quantize_per_group_backward_qparams.default(
            grad, input, scale, zero_point, group_size, axis, quant_min, quant_max
        )
    )
    return result
