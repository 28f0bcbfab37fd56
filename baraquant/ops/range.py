# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""Scales and zero points from the range of the data."""

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "choose_qparams_per_channel",
    "choose_qparams_per_group",
    "choose_qparams_per_tensor",
    "choose_qparams_per_token",
    "dynamic_fake_quantize_per_channel",
    "dynamic_fake_quantize_per_group",
    "dynamic_fake_quantize_per_tensor",
    "dynamic_fake_quantize_per_token",
    "dynamic_range_quantize_per_channel",
    "dynamic_range_quantize_per_group",
    "dynamic_range_quantize_per_tensor",
    "dynamic_range_quantize_per_token",
    "observe_fake_quantize",
    "observe_min_max_",
]


@operator
def choose_qparams_per_tensor(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose one scale and zero point from the range of the whole tensor.

    ``s = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
    ``s = (xmax - xmin) / (quant_max - quant_min)`` and ``z = quant_min - rint(xmin / s)``, where
    ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the tensor

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale, ``[]``, float32 (float64 for a float64 input), and the zero point, int32, with
        the shape of the scale.

    Example:
        >>> x = torch.tensor([1.0, 63.5, -20.0])
        >>> baraquant.ops.choose_qparams_per_tensor(x)
        (tensor(0.5000), tensor(0, dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A
        tensor of zeros, or an empty one, has scale 1; any other scale is at least the smallest
        normal number. One NaN or infinity makes the scale of its tensor NaN or infinite: the tensor
        dequantizes to NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Wu et al. 2020, "Integer Quantization for Deep Learning Inference: Principles and Empirical
        Evaluation".
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_tensor.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def choose_qparams_per_channel(
    input: Tensor, axis: int, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose a scale and zero point for each index of ``axis``.

    ``s[c] = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
    ``s[c] = (xmax - xmin) / (quant_max - quant_min)`` and ``z[c] = quant_min - rint(xmin / s[c])``,
    where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the channel

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        axis: The dimension of the channels; a negative one counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale, ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64
        input), and the zero point, int32, with the shape of the scale.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-127.0, 0.0]])
        >>> baraquant.ops.choose_qparams_per_channel(x, 0)
        (tensor([0.5000, 1.0000]), tensor([0, 0], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A
        channel of zeros, or an empty one, has scale 1; any other scale is at least the smallest
        normal number. One NaN or infinity makes the scale of its channel NaN or infinite: the
        channel dequantizes to NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Wu et al. 2020, "Integer Quantization for Deep Learning Inference: Principles and Empirical
        Evaluation".
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
    where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the token

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale, ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32,
        with the shape of the scale.

    Example:
        >>> x = torch.tensor([[-1.0, 0.5], [2.0, 255.0]])
        >>> baraquant.ops.choose_qparams_per_token(x, 0, 255, symmetric=False)
        (tensor([[0.0059],
                [1.0000]]), tensor([[170],
                [  0]], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A token
        of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal
        number. One NaN or infinity makes the scale of its token NaN or infinite: the token
        dequantizes to NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Wu et al. 2020, "Integer Quantization for Deep Learning Inference: Principles and Empirical
        Evaluation".
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
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.

    Returns:
        The scale, ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along
        ``axis``, float32 (float64 for a float64 input), and the zero point, int32, with the shape
        of the scale.

    Example:
        >>> x = torch.tensor([[1.0, 63.5, -127.0, 0.0]])
        >>> baraquant.ops.choose_qparams_per_group(x, 2)
        (tensor([[0.5000, 1.0000]]), tensor([[0, 0]], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A group
        of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal
        number. One NaN or infinity makes the scale of its group NaN or infinite: the group
        dequantizes to NaN.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Wu et al. 2020, "Integer Quantization for Deep Learning Inference: Principles and Empirical
        Evaluation".
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_group.default(
        input, group_size, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result


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
        The integers, with the shape of ``input`` and of ``dtype``.
        The scale, ``[]``, float32 (float64 for a float64 input), and the zero point, int32, with
        the shape of the scale.

    Example:
        >>> x = torch.tensor([1.0, 63.5, -20.0])
        >>> baraquant.ops.dynamic_range_quantize_per_tensor(x)
        (tensor([  2, 127, -40], dtype=torch.int8),
         tensor(0.5000),
         tensor(0, dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A
        tensor of zeros, or an empty one, has scale 1; any other scale is at least the smallest
        normal number. One NaN or infinity makes the scale of its tensor NaN or infinite: its
        integers are the zero point, and dequantize to NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
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
        axis: The dimension of the channels; a negative one counts from the end.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of ``input`` and of ``dtype``.
        The scale, ``[C]``, for the ``C`` indices of ``axis``, float32 (float64 for a float64
        input), and the zero point, int32, with the shape of the scale.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-127.0, 0.0]])
        >>> baraquant.ops.dynamic_range_quantize_per_channel(x, 0)
        (tensor([[   2,  127],
                [-127,    0]], dtype=torch.int8),
         tensor([0.5000, 1.0000]),
         tensor([0, 0], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A
        channel of zeros, or an empty one, has scale 1; any other scale is at least the smallest
        normal number. One NaN or infinity makes the scale of its channel NaN or infinite: its
        integers are the zero point, and dequantize to NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
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
        The integers, with the shape of ``input`` and of ``dtype``.
        The scale, ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32,
        with the shape of the scale.

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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A token
        of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal
        number. One NaN or infinity makes the scale of its token NaN or infinite: its integers are
        the zero point, and dequantize to NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
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
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of ``input`` and of ``dtype``.
        The scale, ``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along
        ``axis``, float32 (float64 for a float64 input), and the zero point, int32, with the shape
        of the scale.

    Example:
        >>> x = torch.tensor([[1.0, 63.5, -127.0, 0.0]])
        >>> baraquant.ops.dynamic_range_quantize_per_group(x, 2)
        (tensor([[   2,  127, -127,    0]], dtype=torch.int8),
         tensor([[0.5000, 1.0000]]),
         tensor([[0, 0]], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A group
        of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal
        number. One NaN or infinity makes the scale of its group NaN or infinite: its integers are
        the zero point, and dequantize to NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_group.default(
            input, group_size, axis, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through, with the scale as a constant; differentiable twice. A symmetric scale
        clips nothing: the gradient is ``grad`` itself, and nothing is kept for it. An asymmetric
        scale: ``grad`` where x lay inside the range and 0 elsewhere; one bit per element is kept.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A
        tensor of zeros, or an empty one, has scale 1; any other scale is at least the smallest
        normal number. One NaN or infinity makes the scale of its tensor NaN or infinite: the tensor
        becomes NaN.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
    """
    result: Tensor = torch.ops.baraquant.dynamic_fake_quantize_per_tensor.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def dynamic_fake_quantize_per_channel(
    input: Tensor, axis: int, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> Tensor:
    """Fake-quantize ``input`` with a scale for each index of ``axis``, from the channel's range.

    ``y = (clamp(rint(x / s[c]) + z[c], quant_min, quant_max) - z[c]) *
    s[c]`` with the ``s`` and ``z`` of :func:`choose_qparams_per_channel`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        axis: The dimension of the channels; a negative one counts from the end.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through, with the scale as a constant; differentiable twice. A symmetric scale
        clips nothing: the gradient is ``grad`` itself, and nothing is kept for it. An asymmetric
        scale: ``grad`` where x lay inside the range and 0 elsewhere; one bit per element is kept.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A
        channel of zeros, or an empty one, has scale 1; any other scale is at least the smallest
        normal number. One NaN or infinity makes the scale of its channel NaN or infinite: the
        channel becomes NaN.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
    """
    result: Tensor = torch.ops.baraquant.dynamic_fake_quantize_per_channel.default(
        input, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def dynamic_fake_quantize_per_token(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> Tensor:
    """Fake-quantize each vector along the last dimension with a scale from its own range.

    ``y = (clamp(rint(x / s[t]) + z[t], quant_min, quant_max) - z[t]) *
    s[t]`` with the ``s`` and ``z`` of :func:`choose_qparams_per_token`

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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: ``input`` has no dimension.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through, with the scale as a constant; differentiable twice. A symmetric scale
        clips nothing: the gradient is ``grad`` itself, and nothing is kept for it. An asymmetric
        scale: ``grad`` where x lay inside the range and 0 elsewhere; one bit per element is kept.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A token
        of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal
        number. One NaN or infinity makes the scale of its token NaN or infinite: the token becomes
        NaN.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
    """
    result: Tensor = torch.ops.baraquant.dynamic_fake_quantize_per_token.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


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

    ``y = (clamp(rint(x / s[g]) + z[g], quant_min, quant_max) - z[g]) *
    s[g]`` with the ``s`` and ``z`` of :func:`choose_qparams_per_group`

    Args:
        input: Any shape; float32, float64, float16 or bfloat16.
        group_size: The number of neighbours that share a scale; the last group may be shorter.
        axis: The dimension along which the groups lie.
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

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.

    Gradient:
        Straight through, with the scale as a constant; differentiable twice. A symmetric scale
        clips nothing: the gradient is ``grad`` itself, and nothing is kept for it. An asymmetric
        scale: ``grad`` where x lay inside the range and 0 elsewhere; one bit per element is kept.

    Rounding:
        Computed in float32, or in float64 for a float64 input; ties go to the even integer. A group
        of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal
        number. One NaN or infinity makes the scale of its group NaN or infinite: the group becomes
        NaN.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
    """
    result: Tensor = torch.ops.baraquant.dynamic_fake_quantize_per_group.default(
        input, group_size, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator
def observe_min_max_(
    input: Tensor,
    min_val: Tensor,
    max_val: Tensor,
    axis: int | None = None,
    averaging_constant: float | None = None,
    *,
    skipped_batches: Tensor | None = None,
) -> None:
    """Update a running minimum and maximum with those of ``input``, in place.

    ``min_val = min(min_val, min x)`` and ``max_val = max(max_val, max x)``; with an averaging
    constant ``c``: ``min_val += c * (min x - min_val)`` and ``max_val += c * (max x - max_val)``

    A batch with a NaN or an infinity is ignored: the range stays as it was. With an ``axis`` this
    is decided for each channel separately.

    Args:
        input: Any shape; float32, float64, float16 or bfloat16. An empty one changes nothing.
        min_val: ``[]`` or ``[1]``, or ``[C]`` for the ``C`` indices of ``axis``; float32 (float64
            for a float64 input), contiguous. Start with inf. If an end is not finite, or
            ``min_val > max_val``, no data was seen yet, and the range becomes that of ``input``.
            Changed in place.
        max_val: Like ``min_val``, another tensor. Start with -inf. Changed in place.
        axis: The dimension of the channels, each of which has its own range. None: one range for
            the whole tensor.
        averaging_constant: The weight of a new range in a moving average, in (0, 1]; 1 keeps the
            new range alone. None keeps the minimum and the maximum of all data.
        skipped_batches: int64, ``[]`` or ``[1]``: it is incremented in place, by 1 for each batch
            that at least one range ignored. None does not count.

    Returns:
        Nothing; ``min_val`` and ``max_val`` are changed in place.

    Example:
        >>> low, high = torch.tensor(float("inf")), torch.tensor(float("-inf"))
        >>> baraquant.ops.observe_min_max_(torch.tensor([-1.0, 3.0]), low, high)
        >>> baraquant.ops.observe_min_max_(torch.tensor([0.0, 5.0]), low, high)
        >>> low, high
        (tensor(-1.), tensor(5.))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`, whose samples cannot
            share a tensor that changes in place.

    Gradient:
        None. :mod:`torch.utils.checkpoint` runs the op again in the backward pass. A minimum and a
        maximum, and the scale from them, do not change then if nothing else was observed in
        between. A moving average counts the batch twice: switch it off, or leave it out of the
        checkpoint.

    Rounding:
        Computed in float32, or in float64 for a float64 input. A batch with a NaN or an infinity
        leaves its range as it was.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    torch.ops.baraquant.observe_min_max_.default(
        input, min_val, max_val, axis, averaging_constant, skipped_batches=skipped_batches
    )


@operator
def observe_fake_quantize(
    input: Tensor,
    min_val: Tensor,
    max_val: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    observer_enabled: Tensor,
    fake_quant_enabled: Tensor,
    axis: int | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    averaging_constant: float | None = None,
    skipped_batches: Tensor | None = None,
) -> Tensor:
    """Update a running range, choose scale and zero point from it, and fake-quantize ``input``.

    ``y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s`` with the ``s`` and ``z`` that
    :func:`choose_qparams_per_tensor` gives for the data ``{min_val, max_val}``

    A tensor on the device switches each half off, without a wait for the device and without
    recompilation. If nothing is observed, ``scale`` and ``zero_point`` are used as they are.

    A batch with a NaN or an infinity is ignored: the range stays as it was. The scale is then that
    of this range, or the given one before the first finite batch. With an ``axis`` this is decided
    for each channel separately.

    Args:
        input: Any shape; float32, float64, float16 or bfloat16. An empty one changes nothing.
        min_val: ``[]`` or ``[1]``, or ``[C]`` for the ``C`` indices of ``axis``; float32 (float64
            for a float64 input), contiguous. Start with inf. If an end is not finite, or
            ``min_val > max_val``, no data was seen yet, and the range becomes that of ``input``.
            Changed in place.
        max_val: Like ``min_val``, another tensor. Start with -inf. Changed in place.
        scale: Like ``min_val``. Start with 1. Changed in place.
        zero_point: Like ``min_val``, but int32. Start with 0. Changed in place.
        observer_enabled: One element, uint8 or bool. If it is 0, the four tensors above are not
            changed, and no batch is counted.
        fake_quant_enabled: One element, uint8 or bool. If it is 0, the result is a copy of
            ``input``.
        axis: The dimension of the channels, each of which has its own range and scale. None: one
            range and one scale for the whole tensor.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        symmetric: True maps 0 to the middle of the integers' range. False maps the running range,
            extended to include 0, to ``[quant_min, quant_max]``.
        averaging_constant: The weight of a new range in a moving average, in (0, 1]; 1 keeps the
            new range alone. None keeps the minimum and the maximum of all data.
        skipped_batches: int64, ``[]`` or ``[1]``: it is incremented in place, by 1 for each batch
            that at least one range ignored. None does not count.

    Returns:
        The rounded numbers, with the shape and the dtype of ``input``. A NaN in it stays NaN, an
        infinity gives an end of the range.

    Example:
        >>> x, on = torch.tensor([0.6, 3.5, -1.2]), torch.tensor(True)
        >>> low, high = torch.tensor(float("inf")), torch.tensor(float("-inf"))
        >>> s, z = torch.tensor(1.0), torch.tensor(0, dtype=torch.int32)
        >>> baraquant.ops.observe_fake_quantize(x, low, high, s, z, on, on, None, -8, 7)
        tensor([ 0.5000,  3.5000, -1.0000])
        >>> low, high, s
        (tensor(-1.2000), tensor(3.5000), tensor(0.5000))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`, whose samples cannot
            share a tensor that changes in place.

    Gradient:
        Straight through, with the scale as a constant: ``grad`` where x lay inside the range or
        nothing was quantized, and 0 elsewhere; differentiable twice. One bit per element is kept.
        :mod:`torch.utils.checkpoint` runs the op again in the backward pass. A minimum and a
        maximum, and the scale from them, do not change then if nothing else was observed in
        between. A moving average counts the batch twice: switch it off, or leave it out of the
        checkpoint.

    Rounding:
        Computed in float32, or in float64 for a float64 input. A batch with a NaN or an infinity
        leaves its range as it was. The scale, the zero point and the rounding follow the rules of
        :func:`choose_qparams_per_tensor` and :func:`fake_quantize_per_tensor`.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.observe_fake_quantize.default(
        input,
        min_val,
        max_val,
        scale,
        zero_point,
        observer_enabled,
        fake_quant_enabled,
        axis,
        quant_min,
        quant_max,
        symmetric=symmetric,
        averaging_constant=averaging_constant,
        skipped_batches=skipped_batches,
    )
    return result
