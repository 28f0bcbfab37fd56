# SPDX-License-Identifier: BSD-3-Clause
"""Products of a served layer, of every kind, with the contract's gradient in plain PyTorch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.family_cases.int8_mm import clipped, integers

N, K = 9, 32
KINDS = ("symmetric", "asymmetric", "static", "static_shifted", "smooth", "smooth_shifted")
by_kind = pytest.mark.parametrize("kind", KINDS)


class Served:
    """A product with its weight, of one kind, as a function of the input and the bias.

    `lowest` to `highest` is narrower than int8 where the scale is given, and no middle.
    """

    lowest, highest = -100, 90

    def __init__(self, kind: str, dtype: torch.dtype, device: str, n: int = N, k: int = K) -> None:
        self.kind, self.dtype = kind, dtype
        compute = cases.compute_dtype(dtype)
        self.weight = integers((n, k), torch.int8, "random", 1).to(device)
        self.weight_scale = cases.scales((n,), compute, 2).to(device)
        self.act_scale = torch.tensor(0.0625, dtype=compute, device=device)
        self.smooth_scale = cases.scales((k,), compute, 3).to(device)
        self.zero_point = torch.tensor(11, dtype=torch.int32, device=device)
        self.static = kind not in ("symmetric", "asymmetric")
        self.shifted = kind in ("asymmetric", "static_shifted", "smooth_shifted")
        self.smooth = kind.startswith("smooth")

    def call(self, ops: Any, x: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
        own = x, self.weight, self.weight_scale
        if not self.static:
            return ops.quantized_linear(*own, bias, symmetric=not self.shifted, **options)
        options |= {"quant_min": self.lowest, "quant_max": self.highest}
        if self.shifted:
            options["act_zero_point"] = self.zero_point
        if self.smooth:
            options["smooth_scale"] = self.smooth_scale
        return ops.static_quantized_linear(*own, self.act_scale, bias, **options)

    def __call__(self, x: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
        return self.call(ops, x, bias, **options)

    def inside(self, x: Tensor) -> Tensor:
        """The contract's mask, in plain PyTorch."""
        ends = self.lowest, self.highest
        if not self.static:
            scale, point = ops.choose_qparams_per_token(x.detach(), symmetric=not self.shifted)
            ends = -128, 127
            scale, point = (t.reshape(*x.shape[:-1], 1) for t in (scale, point))
        else:
            scale = self.smooth_scale if self.smooth else self.act_scale
            point = self.zero_point if self.shifted else torch.zeros_like(self.zero_point)
        v = torch.round(x.detach().to(scale.dtype) / scale) + point
        return (v >= ends[0]) & (v <= ends[1])

    def rounded_weight(self) -> Tensor:
        c = self.weight_scale.dtype
        return (self.weight.to(c) * self.weight_scale[:, None]).to(self.dtype)

    def rule(self, x: Tensor, dy: Tensor) -> Tensor:
        dx = dy.to(self.dtype) @ self.rounded_weight()
        if self.smooth:
            dx = (dx.to(self.act_scale.dtype) * (self.act_scale / self.smooth_scale)).to(dx.dtype)
        return torch.where(self.inside(x), dx, torch.zeros_like(dx))


def example(served: Served, lead: tuple[int, ...] = (5,), seed: int = 0) -> tuple[Tensor, Tensor]:
    """An input of which all kinds but the symmetric clip some, and an incoming gradient."""
    n, k = served.weight.shape
    gen = cases.generator(seed)
    x = 4 * torch.randn((*lead, k), generator=gen, dtype=torch.float64)
    if served.kind == "asymmetric" and x.numel() and k > 5:
        x = clipped(x.numel() // k, k).reshape(x.shape)
    dy = torch.randn((*lead, n), generator=gen, dtype=torch.float64)
    device = served.weight.device
    return x.to(device, served.dtype).requires_grad_(), dy.to(device, served.dtype)
