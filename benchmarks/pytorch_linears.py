# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers in PyTorch's own ops: what a user without baraquant runs in int8, fp8 or floats."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# isort: split
from benchmarks.pytorch_chains import Chain
from tests.support.cases import PER_TOKEN, per_channel

FLOAT8 = torch.float8_e4m3fn
_INPUT = Chain(PER_TOKEN, symmetric=True)
_WEIGHT = Chain(per_channel(0), symmetric=True)


@dataclass(frozen=True)
class IntMm:
    """``torch._int_mm`` for an input ``[m, k]`` and a weight ``[n, k]``, padded where it has to be.

    On CUDA it takes more than 16 rows, and multiples of 8 otherwise. A weight is padded once,
    an input in every call.
    """

    device: torch.device
    m: int
    n: int
    k: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K of the product that runs."""
        if self.device.type != "cuda":
            return self.m, self.n, self.k
        return max(self.m, 17), -(-self.n // 8) * 8, -(-self.k // 8) * 8

    @property
    def note(self) -> str:
        """What the table has to say about the padding."""
        padded = self.shape != (self.m, self.n, self.k)
        return "torch._int_mm padded to " + "x".join(map(str, self.shape)) if padded else ""

    def pad_input(self, x: Tensor) -> Tensor:
        """``x`` as large as it has to be; itself, if it is."""
        m, _, k = self.shape
        return x if x.shape == (m, k) else F.pad(x, (0, k - self.k, 0, m - self.m))

    def pad_weight(self, weight: Tensor) -> Tensor:
        """The weight as large as it has to be; itself, if it is."""
        _, n, k = self.shape
        return weight if weight.shape == (n, k) else F.pad(weight, (0, k - self.k, 0, n - self.n))

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        input_scale: Tensor,
        weight_scale: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """As ``int8_linear`` with int8 ``x`` and a padded weight, in as many passes as it takes."""
        sums = torch._int_mm(self.pad_input(x), weight.t())[: self.m, : self.n]
        return (sums * input_scale * weight_scale).to(dtype)

    def quantized_linear(self, x: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
        """As ``quantized_linear``."""
        q, scale, _ = _INPUT.quantize(x)
        return self.linear(q, weight, scale, weight_scale, x.dtype)


def float8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in fp8, and the scale ``[rows, 1]`` of each."""
    scale = x.abs().amax(1, keepdim=True).float() / torch.finfo(FLOAT8).max
    return (x.float() / scale).to(FLOAT8), scale


def float8_product(
    x: Tensor, weight: Tensor, input_scale: Tensor, weight_scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """``torch._scaled_mm`` with a scale for each row ``[m, 1]`` and channel ``[n, 1]``."""
    return torch._scaled_mm(x, weight.t(), input_scale, weight_scale.t(), out_dtype=dtype)


def float8_linear(x: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """A linear layer of an fp8 weight, with the input's rows taken to fp8 on the fly."""
    q, scale = float8_rows(x)
    return float8_product(q, weight, scale, weight_scale, x.dtype)


def fake_quantized_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As ``qat_linear``, in floats: both operands are fake-quantized, then multiplied."""
    return F.linear(_INPUT.straight_through(x), _WEIGHT.straight_through(weight), bias)


def dynamic_linear(weight: Tensor) -> nn.Module:
    """PyTorch's layer that ``quantize_dynamic`` makes of a float one, on the CPU."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, but what most have
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(linear), {nn.Linear})
