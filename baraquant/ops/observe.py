# SPDX-License-Identifier: BSD-3-Clause
"""observe: a running range of the data that a tensor has held, for a scale that stays."""

import torch
from torch import Tensor

from ._operator import operator


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
        min_val: ``[]`` or ``[1]``, or ``[input.shape[axis]]``; float32 (float64 for a float64
            input), contiguous. Start with inf. If an end is not finite, or ``min_val > max_val``,
            no data was seen yet, and the range becomes that of ``input``.
        max_val: Like ``min_val``, another tensor. Start with -inf.
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
        min_val: ``[]`` or ``[1]``, or ``[input.shape[axis]]``; float32 (float64 for a float64
            input), contiguous. Start with inf. If an end is not finite, or ``min_val > max_val``,
            no data was seen yet, and the range becomes that of ``input``. Changed in place.
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
    """
    return torch.ops.baraquant.observe_fake_quantize.default(
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
