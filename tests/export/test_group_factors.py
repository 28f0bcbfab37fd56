# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose groups have factors: no format has these, so they leave as int8, bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W4A8, PerGroup, QuantConfig, TensorConfig
from tests.support.optional_packages import package

FACTORS = TensorConfig(4, PerGroup(32), symmetric=False, group_factors=True)
SCHEMES = {
    "dynamic": W4A8(32, group_factors=True),
    "static": QuantConfig(FACTORS, TensorConfig(8, "per_tensor", dynamic=False), "min_max"),
}
X = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()


@pytest.fixture(params=SCHEMES)
def model(request: pytest.FixtureRequest) -> nn.Module:
    made = plain()
    baraquant.quantize_(made, SCHEMES[request.param], calibration=[X], progress=False)
    return made


def test_as_int8(model: nn.Module) -> None:
    layer, same = model[0], model[0].as_int8()
    assert type(same).__name__ == type(layer).__name__.replace("Int4", "")
    assert torch.equal(same(X), layer(X)) and torch.equal(same.weight + 0, layer.weight + 0)
    assert same.qweight.dtype == torch.int8


def test_a_folder_for_servers(model: nn.Module, tmp_path: Path) -> None:
    package("safetensors")
    before = copy.deepcopy(model.state_dict())
    baraquant.export.to_compressed_tensors(model, tmp_path)
    loaded = plain()
    baraquant.export.from_compressed_tensors(loaded, tmp_path)
    assert type(loaded[0]).__name__ == type(model[0]).__name__.replace("Int4", "")
    assert torch.equal(loaded(X), model(X))
    assert all(torch.equal(model.state_dict()[name], old) for name, old in before.items())


def test_onnx(model: nn.Module, tmp_path: Path) -> None:
    """The file is that of the model of int8."""
    onnxruntime = package("onnxruntime")
    package("onnxscript")
    same = nn.Sequential(model[0].as_int8(), nn.ReLU(), model[2].as_int8())
    found = []
    for name, one in (("factors", model), ("int8", same)):
        path = tmp_path / f"{name}.onnx"
        baraquant.export.to_onnx(one, (X,), path)
        session = onnxruntime.InferenceSession(path)
        (y,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
        found.append(torch.from_numpy(y))
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], model(X))
