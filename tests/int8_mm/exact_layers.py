# SPDX-License-Identifier: BSD-3-Clause
"""Layers of whole numbers, for which every order of summation is exact, and their gradients."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.cases import PER_TOKEN, per_channel
from tests.support.oracle.range import Dynamic

ops = torch.ops.baraquant

# Three bits of the weight, four of the input.
NARROW = {"weight_quant_min": -4, "weight_quant_max": 3, "quant_min": -8, "quant_max": 7}


def ends_of(ranges: dict[str, int], prefix: str = "") -> tuple[int, int]:
    return ranges.get(f"{prefix}quant_min", -128), ranges.get(f"{prefix}quant_max", 127)


def composed(
    x: Tensor, weight: Tensor, bias: Tensor | None, symmetric: bool, **ranges: int
) -> Tensor:
    """What is differentiated, in the ops of the range family and a float product."""
    fake = ops.dynamic_fake_quantize_per_token(x, *ends_of(ranges), symmetric=symmetric)
    weight = ops.dynamic_fake_quantize_per_channel(weight, 0, *ends_of(ranges, "weight_"))
    return linear(fake, weight, bias)


def whole_rows(
    rows: int, width: int, dtype: torch.dtype, ends: tuple[float, float], seed: int
) -> Tensor:
    """Small numbers near whole ones, and in each row the ends of a range whose scale is 1.

    The ends lie elsewhere in each row, so that a sum over rows has few large terms.
    """
    lowest = -1 if ends[0] > -2 else -2
    gen = cases.generator(seed)
    small = torch.randint(lowest, 3, (rows, width), generator=gen).to(dtype)
    small += torch.randint(-1, 2, (rows, width), generator=gen).to(dtype) / 4
    for row in range(rows):
        small[row, (2 * row) % width], small[row, (2 * row + 1) % width] = ends
    return small


# 253.5 is rounded up beyond the range: its gradient is masked. bfloat16 does not have it. So is
# 13.5, in four bits.
ENDS = {"symmetric": (-127.0, 127.0), "whole": (-60.0, 195.0), "clipped": (-1.5, 253.5)}
ENDS |= {"narrow": (-7.0, 7.0), "narrow_clipped": (-1.5, 13.5)}


@dataclass
class Layer:
    """Leaves of one layer, an incoming gradient, and the fake-quantized tensors and mask."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor
    symmetric: bool
    ranges: dict[str, int] = field(default_factory=dict)

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.weight, self.bias

    def forward(self) -> Tensor:
        return ops.qat_linear(*self.leaves, symmetric=self.symmetric, **self.ranges)

    def composed(self) -> Tensor:
        return composed(*self.leaves, self.symmetric, **self.ranges)

    def rule(self) -> tuple[Tensor, Tensor, Tensor]:
        """The analytic gradients, in float64 on the CPU."""
        of_x = Dynamic(self.x, PER_TOKEN, *ends_of(self.ranges), symmetric=self.symmetric)
        of_w = Dynamic(self.weight, per_channel(0), *ends_of(self.ranges, "weight_"))
        fake_x, fake_w = (
            torch.from_numpy(rule.fake_quantize().copy()).double() for rule in (of_x, of_w)
        )
        dy = self.dy.detach().cpu().double()
        rows = dy.reshape(dy.shape[:-1].numel(), dy.shape[-1])
        dx = dy @ fake_w
        if not self.symmetric:
            dx = torch.where(torch.from_numpy(of_x.mask), dx, 0.0)
        dw = rows.T @ fake_x.reshape(len(rows), fake_x.shape[-1])
        return dx, dw, rows.sum(0)


def exact_layer(
    kind: str, dtype: torch.dtype, device: str, lead: tuple[int, ...] = (3, 4), n: int = 9
) -> Layer:
    rows, k = int(torch.tensor(lead).prod()), 32
    x = whole_rows(rows, k, dtype, ENDS[kind], 1).view(*lead, k)
    ranges = NARROW if kind.startswith("narrow") else {}
    limit = float(ends_of(ranges, "weight_")[1])
    weight = whole_rows(n, k, dtype, (-limit, limit), 2)
    gen = cases.generator(3)
    bias, dy = (torch.randint(-1, 2, s, generator=gen).to(dtype) for s in ((n,), (*lead, n)))
    made = (t.to(device).requires_grad_() for t in (x, weight, bias, dy))
    return Layer(*made, symmetric=kind in ("symmetric", "narrow"), ranges=ranges)
