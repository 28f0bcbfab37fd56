# SPDX-License-Identifier: BSD-3-Clause
"""The range family: the scale and the zero point come from the data, or from a running range.

The other sections of the docstrings are in ``_docs/range.py``.
"""

import torch
from torch import Tensor

from ._docs.range import (
    CHOOSE_QPARAMS,
    DYNAMIC_FAKE_QUANTIZE,
    DYNAMIC_RANGE_QUANTIZE,
    OBSERVE_FAKE_QUANTIZE,
    OBSERVE_MIN_MAX,
    PER_CHANNEL,
    PER_GROUP,
    PER_TENSOR,
    PER_TOKEN,
)
from ._operator import operator


@operator(CHOOSE_QPARAMS, PER_TENSOR)
def choose_qparams_per_tensor(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose one scale and zero point from the range of the whole tensor.

    Example:
        >>> x = torch.tensor([1.0, 63.5, -20.0])
        >>> baraquant.ops.choose_qparams_per_tensor(x)
        (tensor(0.5000), tensor(0, dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_tensor.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator(CHOOSE_QPARAMS, PER_CHANNEL)
def choose_qparams_per_channel(
    input: Tensor,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
) -> tuple[Tensor, Tensor]:
    """Choose a scale and zero point for each index of ``axis``.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-127.0, 0.0]])
        >>> baraquant.ops.choose_qparams_per_channel(x, 0)
        (tensor([0.5000, 1.0000]), tensor([0, 0], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_channel.default(
        input, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator(CHOOSE_QPARAMS, PER_TOKEN)
def choose_qparams_per_token(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose a scale and zero point for each vector along the last dimension.

    Example:
        >>> x = torch.tensor([[-1.0, 0.5], [2.0, 255.0]])
        >>> baraquant.ops.choose_qparams_per_token(x, 0, 255, symmetric=False)
        (tensor([[0.0059],
                [1.0000]]), tensor([[170],
                [  0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_token.default(
        input, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator(CHOOSE_QPARAMS, PER_GROUP)
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

    Example:
        >>> x = torch.tensor([[1.0, 63.5, -127.0, 0.0]])
        >>> baraquant.ops.choose_qparams_per_group(x, 2)
        (tensor([[0.5000, 1.0000]]), tensor([[0, 0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.choose_qparams_per_group.default(
        input, group_size, axis, quant_min, quant_max, symmetric=symmetric
    )
    return result


@operator(DYNAMIC_RANGE_QUANTIZE, PER_TENSOR)
def dynamic_range_quantize_per_tensor(
    input: Tensor,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize ``input`` with one scale, chosen from the range of the whole tensor.

    Example:
        >>> x = torch.tensor([1.0, 63.5, -20.0])
        >>> baraquant.ops.dynamic_range_quantize_per_tensor(x)
        (tensor([  2, 127, -40], dtype=torch.int8),
         tensor(0.5000),
         tensor(0, dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_tensor.default(
            input, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator(DYNAMIC_RANGE_QUANTIZE, PER_CHANNEL)
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

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-127.0, 0.0]])
        >>> baraquant.ops.dynamic_range_quantize_per_channel(x, 0)
        (tensor([[   2,  127],
                [-127,    0]], dtype=torch.int8),
         tensor([0.5000, 1.0000]),
         tensor([0, 0], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_channel.default(
            input, axis, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator(DYNAMIC_RANGE_QUANTIZE, PER_TOKEN)
def dynamic_range_quantize_per_token(
    input: Tensor,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize each vector along the last dimension with a scale chosen from its own range.

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
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_token.default(
            input, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator(DYNAMIC_RANGE_QUANTIZE, PER_GROUP)
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

    Example:
        >>> x = torch.tensor([[1.0, 63.5, -127.0, 0.0]])
        >>> baraquant.ops.dynamic_range_quantize_per_group(x, 2)
        (tensor([[   2,  127, -127,    0]], dtype=torch.int8),
         tensor([[0.5000, 1.0000]]),
         tensor([[0, 0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.dynamic_range_quantize_per_group.default(
            input, group_size, axis, quant_min, quant_max, symmetric=symmetric, dtype=dtype
        )
    )
    return result


@operator(DYNAMIC_FAKE_QUANTIZE, PER_TENSOR)
def dynamic_fake_quantize_per_tensor(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> Tensor:
    """Fake-quantize ``input`` with one scale, chosen from the range of the whole tensor.

    Example:
        >>> x = torch.tensor([0.6, 3.5, -1.2])
        >>> baraquant.ops.dynamic_fake_quantize_per_tensor(x, -8, 7)
        tensor([ 0.5000,  3.5000, -1.0000])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_tensor.default(
        input, quant_min, quant_max, symmetric=symmetric
    )


@operator(DYNAMIC_FAKE_QUANTIZE, PER_CHANNEL)
def dynamic_fake_quantize_per_channel(
    input: Tensor,
    axis: int,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    symmetric: bool = True,
) -> Tensor:
    """Fake-quantize ``input`` with a scale for each index of ``axis``, from the channel's range.

    Example:
        >>> x = torch.tensor([[0.6, 3.5], [0.6, 7.0]])
        >>> baraquant.ops.dynamic_fake_quantize_per_channel(x, 0, -8, 7)
        tensor([[0.5000, 3.5000],
                [1.0000, 7.0000]])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_channel.default(
        input, axis, quant_min, quant_max, symmetric=symmetric
    )


@operator(DYNAMIC_FAKE_QUANTIZE, PER_TOKEN)
def dynamic_fake_quantize_per_token(
    input: Tensor, quant_min: int = -128, quant_max: int = 127, *, symmetric: bool = True
) -> Tensor:
    """Fake-quantize each vector along the last dimension with a scale from its own range.

    Example:
        >>> x = torch.tensor([[0.6, 7.5], [0.6, 15.0]])
        >>> baraquant.ops.dynamic_fake_quantize_per_token(x, 0, 15, symmetric=False)
        tensor([[ 0.5000,  7.5000],
                [ 1.0000, 15.0000]])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_token.default(
        input, quant_min, quant_max, symmetric=symmetric
    )


@operator(DYNAMIC_FAKE_QUANTIZE, PER_GROUP)
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

    Example:
        >>> x = torch.tensor([[0.6, 3.5, 0.6, 7.0]])
        >>> baraquant.ops.dynamic_fake_quantize_per_group(x, 2, -1, -8, 7)
        tensor([[0.5000, 3.5000, 1.0000, 7.0000]])
    """
    return torch.ops.baraquant.dynamic_fake_quantize_per_group.default(
        input, group_size, axis, quant_min, quant_max, symmetric=symmetric
    )


@operator(OBSERVE_MIN_MAX)
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


@operator(OBSERVE_FAKE_QUANTIZE)
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
