# SPDX-License-Identifier: BSD-3-Clause
"""``FakeQuantizedEmbedding``: an embedding in quantization-aware training."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import ops
from ...configs import Config
from ...schemes import quant_config
from .quantizers import DropIn, QuantizesWeight, check_groups


class FakeQuantizedEmbedding(DropIn, nn.Embedding):  # type: ignore[misc]
    """An ``Embedding`` whose rows are fake-quantized; the table stays floating.

    With a dynamic scale for each row (``per_channel``) or for groups within it, only the requested
    rows are read.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`, of which only the weight's part is used. All other
            arguments are those of ``torch.nn.Embedding``.

    Raises:
        ValueError: The group size does not divide ``embedding_dim``, or ``max_norm`` is given,
            which rewrites the table.
        TypeError: ``config`` is not a configuration.
    """

    __constants__ = (
        *QuantizesWeight.__constants__,
        *nn.Embedding.__constants__,
        *("rounds_rows", "rounds_scale"),
    )
    padding_idx: int | None
    rounds_rows: bool  # those asked for, not the table
    rounds_scale: bool

    def _set_config(self, config: Config) -> None:
        qat = quant_config(config).with_floating_input().with_rotation(0)
        weight = qat.weight
        if self.max_norm is not None:
            raise ValueError(f"expected no max_norm, but got {self.max_norm}")
        check_groups(weight, self.embedding_dim, "embedding_dim")
        self.set_quantizers(qat, None)
        self.rounds_scale = qat.scale_dtype != "float32" or weight.ternary
        self.rounds_rows = bool(weight.dynamic) and weight.granularity != "per_tensor"
        self.group_size = 0 if weight.group_size is None else weight.group_size
        self.quant_min, self.quant_max = weight.quant_min, weight.quant_max
        self.symmetric = weight.symmetric

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded rows for the indices ``[...]``: ``[..., embedding_dim]``."""
        if self.rounds_rows:
            rows = self._rows_to_round(input)
            rounds = self.weight_fake_quant._rounds or not self.training
            return self._round_rows(rows) if rounds and not self.is_teacher() else rows
        return self._rows(input, self.fake_quantized_weight())

    def _rows_to_round(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():  # noqa: SIM102 - TorchScript skips the block
            if len(self.adapters) > 0:  # the bits of a product may depend on how many rows it has
                return self._rows(input, self.weight_to_round())
        return self._rounded_master(self._rows(input, self.float_weight()))

    def _rows(self, input: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(
            input,
            weight,
            self.padding_idx,
            None,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def _round_rows(self, rows: Tensor) -> Tensor:
        if self.rounds_scale:  # no op of rows does it
            table = rows.reshape(-1, self.embedding_dim)
            return self.weight_fake_quant.round(table).reshape(rows.shape)
        low, high, symmetric = self.quant_min, self.quant_max, self.symmetric
        if self.group_size > 0:
            return ops.dynamic_fake_quantize_per_group(
                rows, self.group_size, -1, low, high, symmetric=symmetric
            )
        return ops.dynamic_fake_quantize_per_token(rows, low, high, symmetric=symmetric)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return f"{nn.Embedding.extra_repr(self)}, weight={self.config.weight_str}"
