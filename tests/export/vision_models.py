# SPDX-License-Identifier: BSD-3-Clause
"""Small networks like ResNet-18 and MobileNetV2, whose convolutions round their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Conv(nn.Module):
    """A convolution, a batch norm and an activation."""

    def __init__(self, *sizes: int, act: nn.Module | None, stride: int = 1, groups: int = 1):
        super().__init__()
        padding = sizes[2] // 2
        self.conv: Any = nn.Conv2d(
            *sizes, stride=stride, padding=padding, groups=groups, bias=False
        )
        self.norm: Any = nn.BatchNorm2d(sizes[1])
        self.act = nn.Identity() if act is None else act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = Conv(inputs, outputs, 3, act=nn.ReLU(), stride=stride)
        self.second = Conv(outputs, outputs, 3, act=None)
        same = stride == 1 and inputs == outputs
        self.down = nn.Identity() if same else Conv(inputs, outputs, 1, act=None, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.down(x))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        hidden = inputs * 4
        self.is_residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            Conv(inputs, hidden, 1, act=nn.ReLU6()),
            Conv(hidden, hidden, 3, act=nn.ReLU6(), stride=stride, groups=hidden),
            Conv(hidden, outputs, 1, act=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


def resnet() -> nn.Module:
    """Like ResNet-18: a stem, eight basic blocks of four widths, a pooled classifier."""
    widths = [8, 8, 16, 24, 32]
    blocks = [
        BasicBlock(widths[stage] if index == 0 else widths[stage + 1], widths[stage + 1], stride)
        for stage in range(4)
        for index, stride in enumerate((1 if stage == 0 else 2, 1))
    ]
    stem = [Conv(3, 8, 7, act=nn.ReLU(), stride=2), nn.MaxPool2d(3, 2, 1)]
    return _ready(nn.Sequential(*stem, *blocks, *_head(32)))


def mobilenet() -> nn.Module:
    """Like MobileNetV2: depthwise convolutions between narrow ones, and ReLU6."""
    blocks = [
        InvertedResidual(8, 8, 1),
        InvertedResidual(8, 16, 2),
        InvertedResidual(16, 16, 1),
        InvertedResidual(16, 24, 2),
    ]
    stem = Conv(3, 8, 3, act=nn.ReLU6(), stride=2)
    return _ready(nn.Sequential(stem, *blocks, Conv(24, 64, 1, act=nn.ReLU6()), *_head(64)))


def _head(features: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 10)]


def _ready(model: nn.Module) -> nn.Module:
    """Fill batch norms with statistics and fold them into the convolutions before."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    model.eval()
    for module in model.modules():
        if isinstance(module, Conv):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = nn.Identity()
    return model
