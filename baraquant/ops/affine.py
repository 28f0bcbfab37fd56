# SPDX-License-Identifier: BSD-3-Clause
"""The affine family: quantize, dequantize and fake-quantize with a scale that is given.

``q = clamp(rint(x / s) + z, quant_min, quant_max)`` and ``y = (q - z) * s``, where the granularity
says which elements share ``s`` and ``z``. The other sections of the docstrings are in
``_docs/affine.py``.
"""

import torch
from torch import Tensor

from ._docs.affine import (
    DEQUANTIZE,
    FAKE_QUANTIZE,
    PER_CHANNEL,
    PER_GROUP,
    PER_TENSOR_OR_NUMBER,
    PER_TOKEN,
    QUANTIZE,
)
from ._operator import operator


@operator(QUANTIZE, PER_TENSOR_OR_NUMBER)
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

    Example:
        >>> x, scale = torch.tensor([0.5, 1.5, -9.0]), torch.tensor(0.5)
        >>> baraquant.ops.quantize_per_tensor(x, scale, None)
        tensor([  1,   3, -18], dtype=torch.int8)
    """
    if isinstance(scale, (int, float)):
        return torch.ops.baraquant.quantize_per_tensor.number(
            input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
        )
    if isinstance(zero_point, int):
        return torch.ops.baraquant.quantize_per_tensor.scale_tensor(
            input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
        )
    return torch.ops.baraquant.quantize_per_tensor.default(
        input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )


@operator(QUANTIZE, PER_CHANNEL)
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

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([0.5, 0.25])
        >>> baraquant.ops.quantize_per_channel(x, scale, None, 0)
        tensor([[1, 3],
                [2, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.quantize_per_channel.default(
        input, scale, zero_point, axis, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )


@operator(QUANTIZE, PER_TOKEN)
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

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5], [0.5, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.quantize_per_token(x, scale, None)
        tensor([[1, 3],
                [2, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.quantize_per_token.default(
        input, scale, zero_point, quant_min, quant_max, dtype=dtype, save_mask=save_mask
    )


@operator(QUANTIZE, PER_GROUP)
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

    Example:
        >>> x, scale = torch.tensor([[0.5, 1.5, 0.5, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.quantize_per_group(x, scale, None, 2)
        tensor([[1, 3, 2, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.quantize_per_group.default(
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


@operator(DEQUANTIZE, PER_TENSOR_OR_NUMBER)
def dequantize_per_tensor(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int | None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize ``input`` with one scale for the whole tensor.

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


@operator(DEQUANTIZE, PER_CHANNEL)
def dequantize_per_channel(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize ``input`` with a scale for each index of ``axis``.

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


@operator(DEQUANTIZE, PER_TOKEN)
def dequantize_per_token(
    input: Tensor, scale: Tensor, zero_point: Tensor | None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Dequantize ``input`` with a scale for each vector along the last dimension.

    Example:
        >>> q = torch.tensor([[1, 3], [2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.dequantize_per_token(q, scale, None)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.dequantize_per_token.default(input, scale, zero_point, dtype=dtype)


@operator(DEQUANTIZE, PER_GROUP)
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

    Example:
        >>> q = torch.tensor([[1, 3, 2, 6]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.dequantize_per_group(q, scale, None, 2)
        tensor([[0.5000, 1.5000, 0.5000, 1.5000]])
    """
    return torch.ops.baraquant.dequantize_per_group.default(
        input, scale, zero_point, group_size, axis, dtype=dtype
    )


@operator(FAKE_QUANTIZE, PER_TENSOR_OR_NUMBER)
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

    Example:
        >>> x, scale = torch.tensor([0.6, 1.5, -9.0]), torch.tensor(0.5)
        >>> baraquant.ops.fake_quantize_per_tensor(x, scale, None)
        tensor([ 0.5000,  1.5000, -9.0000])
    """
    if isinstance(scale, (int, float)):
        return torch.ops.baraquant.fake_quantize_per_tensor.number(
            input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
        )
    if isinstance(zero_point, int):
        return torch.ops.baraquant.fake_quantize_per_tensor.scale_tensor(
            input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
        )
    return torch.ops.baraquant.fake_quantize_per_tensor.default(
        input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
    )


@operator(FAKE_QUANTIZE, PER_CHANNEL)
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

    Example:
        >>> x, scale = torch.tensor([[0.6, 1.5], [0.6, 1.5]]), torch.tensor([0.5, 0.25])
        >>> baraquant.ops.fake_quantize_per_channel(x, scale, None, 0)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.fake_quantize_per_channel.default(
        input, scale, zero_point, axis, quant_min, quant_max, save_mask=save_mask
    )


@operator(FAKE_QUANTIZE, PER_TOKEN)
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

    Example:
        >>> x, scale = torch.tensor([[0.6, 1.5], [0.6, 1.5]]), torch.tensor([[0.5], [0.25]])
        >>> baraquant.ops.fake_quantize_per_token(x, scale, None)
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """
    return torch.ops.baraquant.fake_quantize_per_token.default(
        input, scale, zero_point, quant_min, quant_max, save_mask=save_mask
    )


@operator(FAKE_QUANTIZE, PER_GROUP)
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

    Example:
        >>> x, scale = torch.tensor([[0.6, 1.5, 0.6, 1.5]]), torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.fake_quantize_per_group(x, scale, None, 2)
        tensor([[0.5000, 1.5000, 0.5000, 1.5000]])
    """
    return torch.ops.baraquant.fake_quantize_per_group.default(
        input, scale, zero_point, group_size, axis, quant_min, quant_max, save_mask=save_mask
    )
