# SPDX-License-Identifier: BSD-3-Clause
"""The range family in PyTorch's own ops: what a user without baraquant writes, or compiles.

The chains are kept as fast as they can be, at the cost of care: rows of zeros, of NaN or near the
largest finite number are not looked after.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# isort: split
from tests.support.cases import Granularity, compute_dtype

QUANT_MIN, QUANT_MAX = -128, 127
AVERAGING_CONSTANT = 0.01


class _StraightThrough(torch.autograd.Function):
    """The gradient of a scale that cannot clip."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, chain: "Chain") -> Tensor:
        return chain.fake_quantize(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Masked(torch.autograd.Function):
    """The gradient of one that can, where rounding takes the ends of the range beyond it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, chain: "Chain") -> Tensor:
        scale, zero_point = chain.choose(x)
        levels = chain.levels(x, scale, zero_point)
        ctx.save_for_backward(((levels >= QUANT_MIN) & (levels <= QUANT_MAX)).view(x.shape))
        return chain.values(x, levels, scale, zero_point)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, 0), None


@dataclass(frozen=True)
class Chain:
    """The functions for one granularity and scheme, of a tensor of two dimensions.

    Results are those of baraquant, but for shapes: groups are rows, and reduced axes are kept.
    """

    granularity: Granularity
    symmetric: bool

    def view(self, x: Tensor) -> Tensor:
        """``x`` such that the segments lie along :attr:`axis`."""
        return x.view(-1, self.granularity.group_size) if self._is_grouped else x

    @property
    def axis(self) -> int | None:
        """The axis that is reduced; None for all of them."""
        if self.granularity.kind == "per_tensor":
            return None
        return 1 - self.granularity.axis if self.granularity.kind == "per_channel" else 1

    @property
    def _is_grouped(self) -> bool:
        return self.granularity.kind == "per_group"

    def extremes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the greatest of each segment, in the dtype of the scale."""
        dtype = compute_dtype(x.dtype)
        if self.axis is None:
            low, high = torch.aminmax(x)
        else:  # aminmax along an axis is slower than both on the CPU
            low, high = x.amin(self.axis, keepdim=True), x.amax(self.axis, keepdim=True)
        return low.to(dtype), high.to(dtype)

    def scale_of(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point of a range, both in the dtype of the scale."""
        if self.symmetric:
            scale = torch.maximum(-low, high) / QUANT_MAX
            return scale, torch.zeros_like(scale)
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = (high - low) / (QUANT_MAX - QUANT_MIN)
        return scale, torch.clamp(QUANT_MIN - torch.round(low / scale), QUANT_MIN, QUANT_MAX)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scale and zero point; None is 0."""
        if self.symmetric:
            x = self.view(x).abs()
            amax = x.amax() if self.axis is None else x.amax(self.axis, keepdim=True)
            return amax.to(compute_dtype(x.dtype)) / QUANT_MAX, None
        return self.scale_of(*self.extremes(self.view(x)))

    def choose_qparams(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As ``choose_qparams``."""
        scale, zero_point = self.choose(x)
        if zero_point is None:
            return scale, torch.zeros_like(scale, dtype=torch.int32)
        return scale, zero_point.to(torch.int32)

    def levels(self, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
        """The integers before they are clamped, as floating numbers."""
        levels = torch.round(self.view(x).to(scale.dtype) / scale)
        return levels if zero_point is None else levels + zero_point

    def values(self, x: Tensor, levels: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
        """The clamped integers back in the shape and dtype of ``x``."""
        q = torch.clamp(levels, QUANT_MIN, QUANT_MAX)
        q = q if zero_point is None else q - zero_point
        return (q * scale).to(x.dtype).view(x.shape)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """As ``dynamic_range_quantize``, without a zero point that is always 0."""
        scale, zero_point = self.choose(x)
        levels = self.levels(x, scale, zero_point)
        q = torch.clamp(levels, QUANT_MIN, QUANT_MAX).to(torch.int8).view(x.shape)
        return q, scale, None if zero_point is None else zero_point.to(torch.int32)

    def fake_quantize(self, x: Tensor) -> Tensor:
        """As ``dynamic_fake_quantize``, without a gradient."""
        scale, zero_point = self.choose(x)
        return self.values(x, self.levels(x, scale, zero_point), scale, zero_point)

    def straight_through(self, x: Tensor) -> Tensor:
        """As ``dynamic_fake_quantize``, with its gradient."""
        return (_StraightThrough if self.symmetric else _Masked).apply(x, self)

    def observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        """As ``observe_min_max_``, with moving averages in ``low`` and ``high``."""
        new_low, new_high = self.extremes(x)
        low.lerp_(new_low, AVERAGING_CONSTANT)
        high.lerp_(new_high, AVERAGING_CONSTANT)

    def observe_fake_quantize(
        self, x: Tensor, low: Tensor, high: Tensor, scale: Tensor, zero_point: Tensor
    ) -> Tensor:
        """As ``observe_fake_quantize``; ``zero_point`` is in the dtype of the scale here."""
        self.observe(x, low, high)
        new_scale, new_zero_point = self.scale_of(low, high)
        scale.copy_(new_scale)
        zero_point.copy_(new_zero_point)
        return self.values(x, self.levels(x, scale, zero_point), scale, zero_point)
