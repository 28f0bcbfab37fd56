# SPDX-License-Identifier: BSD-3-Clause
"""A layer of a user's own, as docs/guide.md has one, with more options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import QuantConfig
from baraquant.workflow.layers import LAYERS
from baraquant.workflow.passes import PASSES


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What a test registers is known to that test alone."""
    known, passes = list(LAYERS), dict(PASSES)
    yield
    LAYERS[:] = known
    PASSES.clear()
    PASSES.update(passes)


class Gained(nn.Module):
    """A linear layer with a gain for each output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.gain = nn.Parameter(torch.rand(outputs) + 0.5)
        self.power = 1

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * self.gain**self.power


class FakeQuantizedGained(baraquant.nn.QuantizesWeight, Gained):
    @classmethod
    def from_float(cls, module: Gained, config: QuantConfig) -> FakeQuantizedGained:
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.weight, layer.gain, layer.power = module.weight, module.gain, module.power
        layer.set_quantizers(config, config.activation)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        weight = self.fake_quantized_weight()
        return F.linear(self.rounded_input(x), weight) * self.gain**self.power


OPTIONS = ["input_fake_quant", "group_size", "power"]
TENSORS = {"qweight": True, "weight_scale": True, "gain": True, "weight_zero_point": False}


class QuantizedGained(baraquant.nn.HoldsIntegers):
    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        gain: Tensor,
        weight_zero_point: Tensor | None = None,
        *,
        input_fake_quant: nn.Module | None,
        group_size: int | None,
        power: int,
        weight_bits: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        tensors = qweight, weight_scale, gain, weight_zero_point
        for name, tensor in zip(TENSORS, tensors, strict=True):
            self.register_buffer(name, tensor)
        self.input_fake_quant = input_fake_quant or nn.Identity()
        self.group_size, self.power = group_size, power
        self.weight_bits, self.dtype = weight_bits, dtype

    @property
    def inputs(self) -> int:
        return self.qweight.shape[1]

    @classmethod
    def from_prepared(cls, layer: FakeQuantizedGained, integers: Any) -> QuantizedGained:
        return cls(
            integers.qweight,
            integers.scale,
            layer.gain.detach().clone(),
            integers.zero_point,
            input_fake_quant=layer.frozen_input(),
            group_size=layer.config.weight.group_size,
            power=layer.power,
            weight_bits=layer.config.weight.bits,
            dtype=layer.float_weight().dtype,
        )

    def dequantized_weight(self) -> Tensor:
        parts = self.qweight, self.weight_scale, self.weight_zero_point
        if self.group_size is not None:
            return baraquant.ops.dequantize_per_group(*parts, self.group_size, 1, dtype=self.dtype)
        return baraquant.ops.dequantize_per_channel(*parts, 0, dtype=self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.dequantized_weight()
        return F.linear(self.input_fake_quant(x), weight) * self.gain**self.power


def register(inference: type[nn.Module] = QuantizedGained, **changes: Any) -> None:
    given = {"options": OPTIONS, "tensors": TENSORS, "sizes": ["power"], **changes}
    baraquant.register_layer(Gained, FakeQuantizedGained, inference, **given)


def model_of(outputs: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    block = nn.Sequential(Gained(8, outputs), nn.ReLU())
    return nn.Sequential(block, nn.Linear(outputs, 8), Gained(8, 4)).eval()
