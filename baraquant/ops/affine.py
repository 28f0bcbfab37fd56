# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""Quantize, dequantize and fake_quantize with given scales and zero points."""

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "dequantize_per_channel",
    "dequantize_per_group",
    "dequantize_per_tensor",
    "dequantize_per_token",
    "fake_quantize_per_channel",
    "fake_quantize_per_group",
    "fake_quantize_per_tensor",
    "fake_quantize_per_token",
    "quantize_per_channel",
    "quantize_per_group",
    "quantize_per_tensor",
    "quantize_per_token",
]


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
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0. It may be an int in
            the range (for dequantize: an int of 32 bits). If ``scale`` is a number, it must be an
            int or None.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included), and
        0 elsewhere; differentiable twice. Integers have no gradient.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN gives the zero point, an infinity an end of the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    if isinstance(scale, (int, float)):
        result_number: Tensor = torch.ops.baraquant.quantize_per_tensor.number(
            input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
        )
        return result_number
    if isinstance(zero_point, int):
        result_scale_tensor: Tensor = torch.ops.baraquant.quantize_per_tensor.scale_tensor(
            input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
        )
        return result_scale_tensor
    result: Tensor = torch.ops.baraquant.quantize_per_tensor.default(
        input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )
    return result


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
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        axis: The dimension of the channels; a negative one counts from the end.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included), and
        0 elsewhere; differentiable twice. Integers have no gradient.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN gives the zero point, an infinity an end of the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_channel.default(
        input, scale, zero_point, axis, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )
    return result


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
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 (float64 for a float64
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included), and
        0 elsewhere; differentiable twice. Integers have no gradient.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN gives the zero point, an infinity an end of the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_token.default(
        input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )
    return result


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
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included), and
        0 elsewhere; differentiable twice. Integers have no gradient.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN gives the zero point, an infinity an end of the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.quantize_per_group.default(
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
    return result


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
        scale: ``[]`` or ``[1]``, float32 or float64, which is the dtype of the computation; or a
            number > 0.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0. It may be an int in
            the range (for dequantize: an int of 32 bits). If ``scale`` is a number, it must be an
            int or None.
        dtype: A floating dtype; None stands for the dtype of the computation.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([1, 3, -18], dtype=torch.int8)
        >>> scale = torch.tensor(0.5)
        >>> baraquant.ops.dequantize_per_tensor(q, scale, None)
        tensor([ 0.5000,  1.5000, -9.0000])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``input`` is floating: ``grad * s``; differentiable twice. Integers have no gradient.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    if isinstance(scale, (int, float)):
        result_number: Tensor = torch.ops.baraquant.dequantize_per_tensor.number(
            input, scale, zero_point, dtype=dtype
        )
        return result_number
    if isinstance(zero_point, int):
        result_scale_tensor: Tensor = torch.ops.baraquant.dequantize_per_tensor.scale_tensor(
            input, scale, zero_point, dtype=dtype
        )
        return result_scale_tensor
    result: Tensor = torch.ops.baraquant.dequantize_per_tensor.default(
        input, scale, zero_point, dtype=dtype
    )
    return result


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
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 or float64, which is the dtype of
            the computation.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        axis: The dimension of the channels; a negative one counts from the end.
        dtype: A floating dtype; None stands for the dtype of the computation.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([[1, 3], [2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([0.5, 0.25])
        >>> baraquant.ops.dequantize_per_channel(q, scale, None, 0)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``input`` is floating: ``grad * s``; differentiable twice. Integers have no gradient.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_channel.default(
        input, scale, zero_point, axis, dtype=dtype
    )
    return result


@operator
def dequantize_per_token(
    input: Tensor, scale: Tensor, zero_point: Tensor | None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Dequantize ``input`` with a scale for each vector along the last dimension.

    ``y = (q - z[t]) * s[t]``

    Args:
        input: Any shape; int8, uint8, or floating (the differentiable form).
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 or float64, which is
            the dtype of the computation.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        dtype: A floating dtype; None stands for the dtype of the computation.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([[1, 3], [2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.dequantize_per_token(q, scale, None)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``input`` is floating: ``grad * s``; differentiable twice. Integers have no gradient.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_token.default(
        input, scale, zero_point, dtype=dtype
    )
    return result


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
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 or float64, which is the dtype of the computation.
        zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        dtype: A floating dtype; None stands for the dtype of the computation.

    Returns:
        The numbers, with the shape of ``input`` and of ``dtype``.

    Example:
        >>> q = torch.tensor([[1, 3, 2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.dequantize_per_group(q, scale, None, 2)
        tensor([[0.5000, 1.5000, 0.5000, 1.5000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        If ``input`` is floating: ``grad * s``; differentiable twice. Integers have no gradient.

    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is
        float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays
        NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.dequantize_per_group.default(
        input, scale, zero_point, group_size, axis, dtype=dtype
    )
    return result


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
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0. It may be an int
            in the range (for dequantize: an int of 32 bits). If ``scale`` is a number, it must be
            an int or None.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere;
        differentiable twice. A scale that requires grad gets the sum over its segment of
        ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside. A floating
        zero point that requires grad gets the sum of ``-s * grad`` outside the range; the forward
        pass uses ``rint(z)``, clamped to the range. The sums are float64 and give the same bits in
        every run. The formulas hold for a negative scale as they stand: ``x / s`` is then of the
        other sign, and so is the side on which x is clamped.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN stays NaN, an infinity gives an end of the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    if isinstance(scale, (int, float)):
        result_number: Tensor = torch.ops.baraquant.fake_quantize_per_tensor.number(
            input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
        )
        return result_number
    if isinstance(zero_point, int):
        result_scale_tensor: Tensor = torch.ops.baraquant.fake_quantize_per_tensor.scale_tensor(
            input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
        )
        return result_scale_tensor
    result: Tensor = torch.ops.baraquant.fake_quantize_per_tensor.default(
        input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
    )
    return result


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
        scale: ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        axis: The dimension of the channels; a negative one counts from the end.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere;
        differentiable twice. A scale that requires grad gets the sum over its segment of
        ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside. A floating
        zero point that requires grad gets the sum of ``-s * grad`` outside the range; the forward
        pass uses ``rint(z)``, clamped to the range. The sums are float64 and give the same bits in
        every run. The formulas hold for a negative scale as they stand: ``x / s`` is then of the
        other sign, and so is the side on which x is clamped.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN stays NaN, an infinity gives an end of the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_channel.default(
        input, scale, zero_point, axis, quant_min, quant_max, save_mask=save_mask
    )
    return result


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
        scale: ``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``, float32 (float64 for a float64
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere;
        differentiable twice. A scale that requires grad gets the sum over its segment of
        ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside. A floating
        zero point that requires grad gets the sum of ``-s * grad`` outside the range; the forward
        pass uses ``rint(z)``, clamped to the range. The sums are float64 and give the same bits in
        every run. The formulas hold for a negative scale as they stand: ``x / s`` is then of the
        other sign, and so is the side on which x is clamped.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN stays NaN, an infinity gives an end of the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_token.default(
        input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
    )
    return result


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
        scale: ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``,
            float32 (float64 for a float64 input).
        zero_point: Shaped like ``scale``, integer or floating; None stands for 0.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere;
        differentiable twice. A scale that requires grad gets the sum over its segment of
        ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside. A floating
        zero point that requires grad gets the sum of ``-s * grad`` outside the range; the forward
        pass uses ``rint(z)``, clamped to the range. The sums are float64 and give the same bits in
        every run. The formulas hold for a negative scale as they stand: ``x / s`` is then of the
        other sign, and so is the side on which x is clamped.

    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
        result's dtype. NaN stays NaN, an infinity gives an end of the range.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero
        point: Bhalgat et al. 2020, "LSQ+".
    """
    result: Tensor = torch.ops.baraquant.fake_quantize_per_group.default(
        input, scale, zero_point, group_size, axis, quant_min, quant_max, save_mask=save_mask
    )
    return result
