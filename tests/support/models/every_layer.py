# SPDX-License-Identifier: BSD-3-Clause
"""One model that holds a layer of every kind: what is saved, loaded and hashed."""

import copy

import torch
from torch import nn

from baraquant.nn import (
    FakeQuantize,
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyLinear,
)


def integers(*shape, bits=8):
    high = 1 << (bits - 1)
    return torch.randint(-high, high, shape, dtype=torch.int8)


def scales(*shape):
    return torch.rand(*shape) + 0.5


class Every(nn.Module):
    """A module of every kind that is stored, and float ones beside them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8, padding_idx=1)
        self.table = nn.Embedding(5, 8)
        self.dynamic = nn.Linear(8, 8)
        self.narrow = nn.Linear(8, 8, bias=False)
        self.static = nn.Linear(8, 8)
        self.grouped = nn.Linear(8, 8)
        self.rounded = nn.Linear(8, 8)
        self.conv1 = nn.Conv1d(3, 4, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(4, 4, (1, 3), padding="same", groups=2, padding_mode="circular")
        self.norm = nn.BatchNorm1d(8)

    def quantize(self):
        torch.manual_seed(0)
        self.embedding = QuantizedEmbedding(integers(7, 8), scales(7), padding_idx=1)
        self.table = QuantizedEmbedding(
            integers(5, 8, bits=3), scales(5, 2), weight_zero_point=torch.randint(-4, 4, (5, 2)),
            group_size=4, weight_bits=3,
        )  # fmt: skip
        self.dynamic = QuantizedLinear(
            integers(8, 8), scales(8), self.dynamic.bias, bits=7, smooth=scales(8)
        )
        self.narrow = QuantizedLinear(
            integers(8, 8, bits=4), scales(8), symmetric=False, granularity="per_tensor",
            weight_bits=4,
        )  # fmt: skip
        self.static = StaticQuantizedLinear(
            integers(8, 8), scales(8), torch.tensor(0.1), self.static.bias,
            act_zero_point=torch.tensor(-7), smooth_scale=scales(8),
        )  # fmt: skip
        dynamic = FakeQuantize(mode="dynamic", granularity="per_token", symmetric=False)
        self.grouped = WeightOnlyLinear(
            integers(8, 8, bits=2), scales(8, 2), self.grouped.bias,
            weight_zero_point=torch.zeros(8, 2, dtype=torch.int32), group_size=4,
            input_fake_quant=dynamic, weight_bits=2,
        )  # fmt: skip
        fixed = FakeQuantize(torch.tensor(0.2), 3, quant_min=0, quant_max=15)
        self.rounded = WeightOnlyLinear(
            integers(8, 8), scales(8), self.rounded.bias, input_fake_quant=fixed
        )
        self.conv1 = QuantizedConv1d(
            integers(4, 3, 3), scales(4), self.conv1.bias, stride=2, padding=1
        )
        self.conv2 = QuantizedConv2d(
            integers(4, 2, 1, 3, bits=5), scales(4), self.conv2.bias, padding="same", groups=2,
            padding_mode="circular", input_fake_quant=copy.deepcopy(fixed), weight_bits=5,
        )  # fmt: skip
        return self.eval()

    def forward(self, tokens):
        x = self.embedding(tokens) + self.table(tokens)
        for layer in (self.dynamic, self.narrow, self.static, self.grouped, self.rounded):
            x = torch.tanh(layer(x))
        x = self.norm(x.transpose(1, 2))[:, :3]
        return self.conv2(self.conv1(x)[..., None, :])


def same(loaded, saved):
    """Whether two models have the same modules, the same options, and the same bits."""
    assert str(loaded) == str(saved)
    states = loaded.state_dict(), saved.state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        assert value.dtype == states[1][name].dtype and torch.equal(value, states[1][name]), name
    return True
