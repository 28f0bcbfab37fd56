# SPDX-License-Identifier: BSD-3-Clause
"""The docstring of the convolution of integers."""

from .._limits import MAX_FEATURES, MAX_SHIFTED_FEATURES
from . import JACOB, RAISES

INT8_CONV = f"""
Args:
    input: The integers ``q``, ``[N, C, *space]`` or ``[C, *space]`` with one to three dimensions of
        space; int8 or uint8. Any strides; what is neither contiguous nor ``channels_last`` is
        copied first.
    weight: The integers ``w``, ``[OC, C / groups, *kernel]``, int8. In the memory format
        ``channels_last`` it is read as it lies, else each call copies it. ``weight[0]`` has at most
        {MAX_FEATURES} elements, or {MAX_SHIFTED_FEATURES} for uint8 or with a zero point.
    input_scale: ``s``, ``[]`` or ``[1]``; float32 (float64 for a float64 result).
    weight_scale: ``sw``, ``[OC]``, of the dtype of ``input_scale``.
    bias: ``[OC]``, of that dtype or of the result's; None adds no bias.
    input_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0. A value
        that the dtype of ``input`` does not hold counts as the nearest one.
    weight_sum: ``weight.flatten(1).sum(1, dtype=torch.int32)``, ``[OC]``; needed with a zero point.
        If it is None, each call computes it.
    stride: Of the kernel: one number, or one for each dimension of space.
    padding: Places that are added at both ends: one number, or one for each dimension of space.
        They hold ``z``, the integer of 0.
    dilation: The step between the kernel's places: one number, or one for each dimension of space.
    groups: The number of groups of channels; it divides ``OC``.
    dtype: The dtype of the result: float32, float64, float16 or bfloat16; None takes the dtype of
        ``weight_scale``.

Returns:
    ``[N, OC, *out]`` or ``[OC, *out]``, of ``dtype``: ``channels_last`` if ``input`` is, or is a
    slice of such a tensor, else contiguous.

$example

{RAISES}
    NotImplementedError: No kernel for the device; a scale that requires grad; :func:`torch.vmap`
        over anything but the input.

Gradient:
    Integers have no gradient; ``bias`` gets the sum over all but its channel.

Rounding:
    The sums are exact: this is why the weight is limited. Then ``fma(acc * sw[o], s, bias[o])`` in
    float32 (float64 for a float64 result), with one rounding to the result's dtype.

References:
{JACOB}
"""
