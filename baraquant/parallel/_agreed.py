# SPDX-License-Identifier: BSD-3-Clause
"""Fake quantizers whose segments lie on several processes, which agree on their ranges."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..nn.shared.fake_quantize import FakeQuantize
from ..nn.shared.precision import compute_dtype
from ..nn.training.int4 import FakeQuantizeInt4
from ..nn.training.ternary import FakeQuantizeTernary
from ..ops.recompute import unless_recomputing
from ._layout import Layout, local_attribute


class _Split(FakeQuantize):
    """A fake quantizer of which other processes have other parts."""

    def sync_qparams(self, process_group: object = None) -> None:
        """Give all replicas of this process's part the union of their ranges.

        Args:
            process_group: The processes that have the same part, as ``mesh["dp"].get_group()``.

        Raises:
            RuntimeError: There is no ``process_group``: other processes have other channels.
        """
        if process_group is None:
            raise RuntimeError(
                "FakeQuantize: expected process_group to be the replicas of a layer that is split "
                "over processes, but got None, which is all processes; give the group of data "
                'parallelism, as mesh["dp"].get_group(). The processes that share a layer agree '
                "already"
            )
        super().sync_qparams(process_group)


class LocalFakeQuantize(_Split):
    """A fake quantizer with a scale for each channel; this process has some of the channels."""

    min_val = local_attribute("min_val")
    max_val = local_attribute("max_val")
    scale = local_attribute("scale")
    zero_point = local_attribute("zero_point")


class AgreedFakeQuantize(_Split):
    """A fake quantizer that computes its scale from the range over all processes.

    Each process has a part of every segment: of a token or a channel along the dimension that is
    split, or of the whole tensor. One maximum of integers over the processes makes the ranges
    equal, and from there everything is as in one process.
    """

    _layout: Layout

    def qparams_of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale and the zero point of rows of which these are one part."""
        low, high = self._layout.ends(rows.amin(dim=1), rows.amax(dim=1))
        return self._qparams_of_range(low, high)

    def _observe_and_round(self, input: Tensor) -> Tensor:
        if input.numel() == 0:
            return super()._observe_and_round(input)
        # The running range depends on a batch's ends alone, so the ends stand in for the batch.
        ends = torch.aminmax(self._segments(input.detach()), dim=1)
        low, high = self._layout.ends(*(end.to(compute_dtype(input.dtype)) for end in ends))
        per_channel = self.granularity == "per_channel"
        ends = torch.stack([low, high]) if per_channel else torch.cat([low, high])
        enabled = unless_recomputing(self.observer_enabled)
        no_rounding = torch.zeros_like(self.fake_quant_enabled)
        self._observe(ends, enabled, no_rounding, 1 if per_channel else None)
        return self._round_observed(input, self.observer_enabled)


class AgreedFakeQuantizeInt4(FakeQuantizeInt4):
    """Rounds a weight to 2 to 4 bits; each process has some of the groups of every row.

    The scale of a row comes from its range over all processes, and the factor of a group from that
    scale and the range of the group.
    """

    _layout: Layout

    def calculate_qparams(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scales of the rows, and the factors and zero points of this part's groups."""
        groups = input.detach().unflatten(1, (-1, self.group_size))
        # Only the ends of a group count, so they stand in for it; one more has those of the row.
        ends = torch.stack(torch.aminmax(groups, dim=2), dim=2)
        compute = torch.promote_types(input.dtype, torch.float32)
        low, high = ends.amin(dim=(1, 2)).to(compute), ends.amax(dim=(1, 2)).to(compute)
        of_row = torch.stack(self._layout.ends(low, high), dim=1).to(input.dtype)
        scale, factor, zero_point = ops.choose_int4_qparams(
            torch.cat([ends.flatten(1), of_row], dim=1),
            2,
            symmetric=self.symmetric,
            bits=self.bits,
        )
        return scale, factor[:, :-1].contiguous(), zero_point[:, :-1].contiguous()


class AgreedFakeQuantizeTernary(FakeQuantizeTernary):
    """Rounds a weight to -1, 0 and 1; each process has a part of the values of every scale."""

    _layout: Layout
    _count: int  # of the values of a scale, over all processes

    def qparams_of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scales that all processes agree on, and zeros."""
        own = rows.abs().amax(dim=1)
        _, largest = self._layout.ends(-own, own)
        part = torch.ops.baraquant._sum_of_magnitudes(rows, largest, self._count)
        return self._qparams_of_sum(self._layout.sum(part), largest, self._count)
