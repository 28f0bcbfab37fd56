# SPDX-License-Identifier: BSD-3-Clause
"""Layers without outputs, inputs or channels, and inputs without rows, under every scheme."""

import pytest
import torch
from torch import nn

import baraquant
from baraquant import qat

PRESETS = {
    "W8A8": baraquant.W8A8(),
    "W8A8Static": baraquant.W8A8Static(),
    "W8A16": baraquant.W8A16(),
    "W4A16": baraquant.W4A16(group_size=8),
    "W4A8": baraquant.W4A8(group_size=8),
}
LAYERS = {
    "no outputs": (lambda: nn.Linear(8, 0), torch.randn(3, 8)),
    "no inputs": (lambda: nn.Linear(0, 8), torch.randn(3, 0)),
    "no columns": (lambda: nn.Embedding(4, 0), torch.tensor([1, 2])),
    "no rows": (lambda: nn.Embedding(0, 4), torch.tensor([], dtype=torch.int64)),
}


class Both(nn.Module):
    """A usual layer, and an empty one."""

    def __init__(self, layer):
        super().__init__()
        self.usual, self.empty = nn.Linear(8, 8), layer

    def forward(self, x, values):
        return self.usual(x), self.empty(values)


def enter(entry, model, config, batch):
    needs = {"calibration": [batch]} if config.is_static else {}
    if entry == "quantize_":
        return baraquant.quantize_(model, config, **needs)
    report = qat.prepare_(model, config)
    model.train()(*batch)
    qat.convert_(model.eval())
    return report


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("scheme", PRESETS)
@pytest.mark.parametrize("entry", ["quantize_", "prepare_"])
def test_an_empty_layer_stays_floating(layer, scheme, entry, tmp_path):
    make, values = LAYERS[layer]
    model, batch = Both(make()).eval(), (torch.randn(5, 8), values)
    before = model(*batch)[1]
    report = enter(entry, model, PRESETS[scheme], batch)
    assert report.left_out["empty"] == "its weight has no elements"
    assert type(model.usual) is not nn.Linear and torch.equal(model(*batch)[1], before)
    baraquant.save(model, tmp_path / "model.safetensors")
    other = Both(make()).eval()
    baraquant.load_(other, tmp_path / "model.safetensors")
    assert all(map(torch.equal, other(*batch), model(*batch)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", PRESETS)
def test_a_model_of_empty_layers_alone_is_an_error(scheme):
    with pytest.raises(ValueError, match="its weight has no elements"):
        enter("quantize_", nn.Sequential(nn.Linear(8, 0)), PRESETS[scheme], (torch.randn(5, 8),))
