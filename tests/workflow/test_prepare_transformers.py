# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's Transformer modules, prepared and converted: nothing goes past the layers."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from baraquant import W8A8
from baraquant.qat import convert_, prepare_
from tests.support.models.training_models import data

ENCODERS: dict[str, Any] = {
    "batch_first": {"batch_first": True},
    "time_first": {"batch_first": False},
    "norm_first": {"batch_first": True, "norm_first": True, "activation": "gelu"},
    "no_bias": {"batch_first": True, "bias": False},
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("kind", ENCODERS)
def test_transformer_encoder(kind: str) -> None:
    """Its fused evaluation does not go past the layers."""
    torch.manual_seed(0)
    options = {"dropout": 0.0, "dim_feedforward": 32} | ENCODERS[kind]
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, **options), 2)
    x = data(4, 4, 16)
    padding = torch.zeros(4, 4, dtype=torch.bool)
    padding[1, 2:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    inputs: list[dict[str, Any]] = [
        {},
        {"src_key_padding_mask": padding},
        {"mask": causal, "is_causal": True},
        {"mask": causal, "src_key_padding_mask": padding.float().masked_fill(padding, -1e9)},
    ]
    reference = copy.deepcopy(model)
    prepare_(model, W8A8())
    assert all(type(m) is not nn.Linear for m in model.modules())
    for more, mode in itertools.product(inputs, (True, False)):
        keep = slice(None) if "src_key_padding_mask" not in more else slice(0, 1)
        with torch.no_grad():
            y, z = model.train(mode)(x, **more), reference.train()(x, **more)
        assert not torch.equal(y, z), "quantized"
        if kind != "time_first":
            y, z = y[keep], z[keep]
        torch.testing.assert_close(y, z, rtol=0.1, atol=0.1)
    model.eval()
    with torch.no_grad():
        before = [model(x, **more) for more in inputs]
        convert_(model)
        for more, y in zip(inputs, before, strict=True):
            assert torch.equal(model(x, **more), y)
