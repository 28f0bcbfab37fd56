# SPDX-License-Identifier: BSD-3-Clause
"""``QuantizedEmbedding``: a table of int8 rows, which are dequantized when they are looked up."""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import ops
from ..shared.arguments import check_bits
from . import _arguments
from .integers import HoldsIntegers


class QuantizedEmbedding(HoldsIntegers):
    """An embedding whose table is int8, with a scale for each row or for each group within it.

    ``y[...] = (qweight[i] - weight_zero_point[i]) * weight_scale[i]`` for each index ``i`` of the
    input ``[...]``: ``[..., embedding_dim]``. Only these rows are read. There is no gradient.

    Args:
        qweight: int8 ``[num_embeddings, embedding_dim]``.
        weight_scale: float32 or float64: ``[num_embeddings]``, or ``[num_embeddings, groups]`` with
            ``group_size``.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of adjacent values of a row that share a scale.
        dtype: The dtype of the output, and of ``weight`` when it is read. It follows the
            conversions of the module (``half()``, ``to(dtype)``).
        padding_idx: Kept for other code that reads it; here it is an ordinary row.
        weight_bits: The width of the integers, 2 to 8. They are always stored as int8.

    Raises:
        ValueError: A shape or width does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> table = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
        >>> embedding = baraquant.nn.QuantizedEmbedding(table, torch.tensor([0.5, 0.25]))
        >>> embedding(torch.tensor([1, 0, 1]))
        tensor([[ 0.7500,  1.0000],
                [ 0.5000, -1.0000],
                [ 0.7500,  1.0000]])
    """

    _scales = ("weight_scale",)
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    num_embeddings: Final[int]
    embedding_dim: Final[int]
    group_size: Final[int | None]
    padding_idx: Final[int | None]
    weight_bits: Final[int]

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        *,
        weight_zero_point: Tensor | None = None,
        group_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        padding_idx: int | None = None,
        weight_bits: int = 8,
    ) -> None:
        super().__init__()
        name = "QuantizedEmbedding"
        _arguments.check_weight(name, qweight, None)
        check_bits(name, "weight_bits", weight_bits)
        self.num_embeddings, self.embedding_dim = qweight.shape
        self.group_size, self.padding_idx, self.weight_bits = group_size, padding_idx, weight_bits
        scale = _arguments.scale_of_weight(name, weight_scale, qweight.shape, group_size)
        self.dtype = _arguments.weight_dtype(name, dtype, None, scale)
        zero_point = _arguments.zero_point_of_weight(name, weight_zero_point, scale)
        self.register_parameter("qweight", _arguments.parameter(qweight))
        self.register_buffer("weight_scale", scale)
        self.register_parameter("weight_zero_point", zero_point)

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows for the indices ``[...]``: ``[..., embedding_dim]``."""
        rows = F.embedding(input, self.qweight)  # [..., embedding_dim] int8
        zero_points = self.weight_zero_point
        zero_point = None if zero_points is None else zero_points[input]
        return self._dequantized(rows, self.weight_scale[input], zero_point)

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized table."""
        return self._dequantized(self.qweight, self.weight_scale, self.weight_zero_point)

    def _dequantized(self, rows: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
        """Return floating rows ``[..., embedding_dim]``; scales are ``[...]`` or with groups."""
        group_size = self.group_size
        if group_size is None:
            output = ops.dequantize_per_token(rows, scale, zero_point, dtype=self.dtype)
        else:
            output = ops.dequantize_per_group(
                rows, scale, zero_point, group_size, -1, dtype=self.dtype
            )
        return output

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        how = "per_row" if self.group_size is None else f"per_group({self.group_size})"
        zero = "" if self.weight_zero_point is None else " asymmetric"
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, "
            f"weight=int{self.weight_bits} {how}{zero}, dtype={self.dtype}"
        )
