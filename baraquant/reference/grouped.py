# SPDX-License-Identifier: BSD-3-Clause
"""The grouped ops of the integer matrix family: each group is a call of the op for one weight."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import int8_mm
from ._functions import like_the_op


def _for_each_group(
    input: Tensor, weight: Tensor, offsets: Tensor, of: Callable[[int, slice], Tensor]
) -> Tensor:
    """Return the concatenated results of ``of(group, its rows)``, followed by zeros.

    Ends that do not ascend, or exceed the input, are replaced by the nearest valid ones.
    """
    results, begin = [], 0
    for group, end in enumerate(offsets.tolist()):
        end = max(begin, min(end, input.shape[0]))
        results.append(of(group, slice(begin, end)))
        begin = end
    zeros = torch.zeros(input.shape[0] - begin, weight.shape[1], device=input.device)
    results.append(zeros.to(results[0].dtype) if results else zeros)
    return torch.cat(results)


def _of(tensor: Tensor | None, group: int) -> Tensor | None:
    return None if tensor is None else tensor[group]


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    """Return some rows of a tensor with one value per token; a single value stays as it is."""
    return tensor if tensor is None or tensor.shape in ((), (1,)) else tensor[rows]


@like_the_op
def int8_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return :func:`int8_linear` of each group of rows with its weight."""

    def of(group: int, rows: slice) -> Tensor:
        scale = _rows(input_scale, rows)
        assert scale is not None
        return int8_mm.int8_linear(
            input[rows],
            weight[group],
            scale,
            weight_scale[group],
            _of(bias, group),
            input_zero_point=_rows(input_zero_point, rows),
            dtype=dtype,
        )

    return _for_each_group(input, weight, offsets, of).to(dtype)


@like_the_op
def quantized_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return :func:`quantized_linear` of each group of rows with its weight."""
    options: dict[str, Any] = {"quant_min": quant_min, "quant_max": quant_max, "dtype": dtype}
    options["symmetric"] = symmetric

    def of(group: int, rows: slice) -> Tensor:
        scale = weight_scale[group]
        return int8_mm.quantized_linear(
            input[rows], weight[group], scale, _of(bias, group), **options
        )

    return _for_each_group(input, weight, offsets, of).to(dtype or input.dtype)


@like_the_op
def qat_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_quant_min: int = -128,
    weight_quant_max: int = 127,
    quant_min: int = -128,
    quant_max: int = 127,
) -> Tensor:
    """Return :func:`qat_linear` of each group of rows with its weight."""
    options: dict[str, Any] = {"quant_min": quant_min, "quant_max": quant_max}
    options |= {"weight_quant_min": weight_quant_min, "weight_quant_max": weight_quant_max}
    options["symmetric"] = symmetric

    def of(group: int, rows: slice) -> Tensor:
        return int8_mm.qat_linear(input[rows], weight[group], _of(bias, group), **options)

    return _for_each_group(input, weight, offsets, of).to(input.dtype)
