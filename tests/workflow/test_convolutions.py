# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_`` of convolutions: the layers and bits of ``prepare_`` and ``convert_``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, QuantConfig, SmoothQuant
from baraquant.nn import QuantizedConv1d, QuantizedConv2d
from baraquant.qat import convert_, prepare_
from tests.support.models.outlier_models import SCHEMES


class Picture(nn.Module):
    """Convolutions of both kinds: strides, groups, padding by circles, a shared one, a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, 3, padding="same", groups=8, padding_mode="circular")
        self.again = self.depth
        self.tied = nn.Conv2d(8, 8, 3, dilation=2, padding=2, groups=8)
        self.tied.weight = self.depth.weight
        self.line = nn.Conv1d(8, 6, 3, padding=1, padding_mode="reflect")
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.tied(self.again(self.depth(x)))
        return self.head(self.line(x.flatten(2)).mean(-1))


CONVOLUTIONS = {"stem": QuantizedConv2d, "depth": QuantizedConv2d, "tied": QuantizedConv2d}
CONVOLUTIONS |= {"line": QuantizedConv1d}


def picture(dtype: torch.dtype = torch.float32) -> Picture:
    torch.manual_seed(0)
    return Picture().to(dtype).eval()


def pictures(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", SCHEMES, ids=str)
def test_the_bits_are_those_of_prepare_and_convert(
    config: QuantConfig | SmoothQuant, dtype: torch.dtype
) -> None:
    model, expected = picture(dtype), picture(dtype)
    prepare_(expected, W8A8())
    convert_(expected)
    report = baraquant.quantize_(model, config, calibration=pictures(dtype))
    assert not report.left_out
    for name, kind in CONVOLUTIONS.items():
        layer, other = model.get_submodule(name), expected.get_submodule(name)
        assert type(layer) is kind and report.changed[name] == kind.__name__
        assert type(layer.input_fake_quant) is nn.Identity
        assert layer.qweight.dtype == torch.int8 and repr(layer) == repr(other)
        for (key, value), same in zip(
            layer.state_dict().items(), other.state_dict().values(), strict=True
        ):
            assert value.dtype == same.dtype and torch.equal(value, same), key
        shape = (2, layer.in_channels, *[8] * len(layer.kernel_size))
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)
        assert torch.equal(layer(x), other(x))
    assert model.again is model.depth
    assert model.tied.qweight.data_ptr() == model.depth.qweight.data_ptr()


def test_a_model_of_convolutions_alone() -> None:
    for config in SCHEMES:
        quantized = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).train()
        calls: list[int] = []
        quantized[0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        baraquant.quantize_(quantized, config, calibration=pictures())
        assert quantized[0].training and not calls, "nothing of it has to be calibrated"
        quantized(pictures()[0])
        assert calls == [1]
