# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""The convolution of integers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "int8_conv",
]


@operator
def int8_conv(
    input: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Convolve integers with exact sums, and scale these back to numbers.

    ``y[n, o, p] = (sum_ck (q[n, c, p * stride - padding + k * dilation] - z) * w[o, c, k]) * sw[o]
    * s + bias[o]``

    It is ``torch.nn.functional.conv1d``, ``conv2d`` or ``conv3d`` of the numbers ``(q - z) * s``
    and ``w * sw``, with the same bits on every device.

    Args:
        input: The integers ``q``, ``[N, C, *space]`` or ``[C, *space]`` with one to three
            dimensions of space; int8 or uint8. Any strides; what is neither contiguous nor
            ``channels_last`` is copied first.
        weight: The integers ``w``, ``[OC, C / groups, *kernel]``, int8. In the memory format
            ``channels_last`` it is read as it lies, else each call copies it. ``weight[0]`` has at
            most 131071 elements, or 65536 for uint8 or with a zero point.
        input_scale: ``s``, ``[]`` or ``[1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[OC]``, of the dtype of ``input_scale``.
        bias: ``[OC]``, of that dtype or of the result's; None adds no bias.
        input_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0. A value
            that the dtype of ``input`` does not hold counts as the nearest one.
        weight_sum: ``weight.flatten(1).sum(1, dtype=torch.int32)``, ``[OC]``; needed with a zero
            point. If it is None, each call computes it.
        stride: Of the kernel: one number, or one for each dimension of space.
        padding: Places that are added at both ends: one number, or one for each dimension of space.
            They hold ``z``, the integer of 0.
        dilation: The step between the kernel's places: one number, or one for each dimension of
            space.
        groups: The number of groups of channels; it divides ``OC``.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16; None takes the dtype
            of ``weight_scale``.

    Returns:
        ``[N, OC, *out]`` or ``[OC, *out]``, of ``dtype``: ``channels_last`` if ``input`` is, or is
        a slice of such a tensor, else contiguous.

    Example:
        >>> q = torch.tensor([[[2, 127, -4]]], dtype=torch.int8)
        >>> w = torch.tensor([[[1, 2]], [[0, 1]]], dtype=torch.int8)
        >>> baraquant.ops.int8_conv(q, w, torch.tensor(0.5), torch.tensor([1.0, 0.25]))
        tensor([[[128.0000,  59.5000],
                 [ 15.8750,  -0.5000]]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; a scale that requires grad;
            :func:`torch.vmap` over anything but the input.

    Gradient:
        Integers have no gradient; ``bias`` gets the sum over all but its channel.

    Rounding:
        The sums are exact: this is why the weight is limited. Then ``fma(acc * sw[o], s, bias[o])``
        in float32 (float64 for a float64 result), with one rounding to the result's dtype.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.int8_conv.default(
        input,
        weight,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dtype=dtype,
    )
    return result
