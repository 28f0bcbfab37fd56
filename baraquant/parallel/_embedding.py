# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings on several processes: split by their features (columns) or by their rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F

from ..nn.inference.embedding import QuantizedEmbedding
from ..nn.training.embedding import FakeQuantizedEmbedding
from ._agreed import AgreedFakeQuantize
from ._layout import local_attribute
from ._linear import LocalParameters, Parallel


class _LocalTable(Parallel):
    qweight = local_attribute("qweight")
    weight_scale = local_attribute("weight_scale")
    weight_zero_point = local_attribute("weight_zero_point")


class FeaturesOfTable(Parallel):
    """An embedding whose features are split: each process has some of each row."""

    _split = "features split"

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the features of this process, in the layout that the style says."""
        index = self._layout.arriving(input, Replicate(), Replicate())
        rows = super().forward(index)  # type: ignore[misc]
        return self._layout.leaving(rows, Shard(-1), self.embedding_dim)


class RowsOfTable(Parallel):
    """An embedding whose rows are split: each process looks up those that it has."""

    _split = "rows split"
    _first_row: int

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the rows, in the layout that the style says.

        A process that lacks a row adds zeros, so that the sum over the processes is the row.
        """
        layout = self._layout
        index = layout.arriving(input, Replicate(), Replicate())
        known = ((index >= 0) & (index < self.num_embeddings)).all()
        torch._assert_async(known, f"expected indices of {self.num_embeddings} rows")
        first, count = self._first_row, self._own_rows()
        is_here = (index >= first) & (index < first + count)
        if count == 0:  # more processes than parts of the table
            rows = self._no_rows(index)
        else:
            rows = super().forward(  # type: ignore[misc]
                torch.where(is_here, index - first, 0)
            )
            rows = rows.masked_fill(~is_here.unsqueeze(-1), 0)
        whole = DTensor.from_local(rows, layout.mesh, [Partial()], run_check=False)
        return layout.finished(whole.redistribute(layout.mesh, [layout.output]).to_local())

    def _no_rows(self: Any, index: Tensor) -> Tensor:
        table = self._own_table()
        dtype = table.dtype if table.is_floating_point() else self.dtype
        return table.new_zeros([*index.shape, table.shape[1]], dtype=dtype)

    def _own_rows(self: Any) -> int:
        count: int = self._own_table().shape[0]
        return count


class FeaturesInTraining(FeaturesOfTable, LocalParameters, FakeQuantizedEmbedding):
    """A prepared embedding, split by its features."""

    def _round_rows(self, rows: Tensor) -> Tensor:
        quantizer = self.weight_fake_quant
        if not isinstance(quantizer, AgreedFakeQuantize) and not self.rounds_scale:
            return super()._round_rows(rows)
        table = rows.reshape(-1, rows.shape[-1])
        return quantizer.round(table).reshape(rows.shape)


class RowsOfTableInTraining(RowsOfTable, LocalParameters, FakeQuantizedEmbedding):
    """A prepared embedding, split by its rows."""

    def _own_table(self) -> Tensor:
        return self.float_weight()

    def _no_rows(self, index: Tensor) -> Tensor:
        # The sum of the empty table connects the zeros to the parameter, which has a gradient.
        return super()._no_rows(index) + self.float_weight().sum()

    def _rows(self, input: Tensor, weight: Tensor) -> Tensor:
        padding = None if self.padding_idx is None else self.padding_idx - self._first_row
        if padding is not None and not 0 <= padding < weight.shape[0]:
            padding = None
        return F.embedding(input, weight, padding, None, self.norm_type)


class FeaturesOfIntegers(FeaturesOfTable, _LocalTable, QuantizedEmbedding):
    """A ``QuantizedEmbedding``, split by its features."""


class RowsOfTableOfIntegers(RowsOfTable, _LocalTable, QuantizedEmbedding):
    """A ``QuantizedEmbedding``, split by its rows."""

    def _own_table(self) -> Tensor:
        return self.qweight
