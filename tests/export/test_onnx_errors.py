# SPDX-License-Identifier: BSD-3-Clause
"""What to_onnx refuses: by name, and no file is left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import nn as bnn
from tests.export.onnx_runs import no_file_is_left
from tests.support.models.made import prepared, quantized
from tests.support.optional_packages import package

package("onnx")
package("onnxscript")

X = torch.ones(2, 32)


def network(scheme: Any = None, **options: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8))
    return quantized(model, scheme or baraquant.W8A8(), **options)


def refused(
    model: Any, folder: Path, match: str, kind: type[Exception] = ValueError, **options: Any
) -> None:
    args = options.pop("args", (X,))
    with no_file_is_left(folder), pytest.raises(kind, match=match):
        baraquant.export.to_onnx(model, args, folder / "model.onnx", **options)


def with_rounder(rounder: nn.Module) -> nn.Module:
    model = network()
    model.append(rounder)
    return model


MODELS: dict[str, tuple[Any, str, type[Exception], dict[str, Any]]] = {
    "floating": (lambda: nn.Linear(4, 4), "without a quantized layer", ValueError, {}),
    "prepared": (lambda: prepared(nn.Sequential(nn.Linear(32, 8)), baraquant.W8A8()),
        "0: expected converted layers, but it is prepared", ValueError, {}),
    "no module": (lambda: [1], "expected model to be a Module, but got list", TypeError, {}),
    "float64": (lambda: quantized(nn.Sequential(nn.Linear(32, 8).double()), baraquant.W8A8()),
        "0: expected a float32 scale, but got float64", ValueError, {}),
    "observer": (lambda: with_rounder(bnn.FakeQuantize(mode="observed")),
        "3: expected a FakeQuantize whose range is fixed, but its observer is on", ValueError, {}),
    "learned": (lambda: with_rounder(bnn.LearnedFakeQuantize()),
        "3: expected no LearnedFakeQuantize", ValueError, {}),
    "dynamic in qdq": (network,
        "0: expected a static scale of the input for style='qdq', but got a dynamic one",
        ValueError, {"style": "qdq"}),
    "dynamic groups in qdq": (lambda: network(baraquant.W4A8(8, group_factors=False)),
        "0.input_fake_quant: expected a static scale of the input for style='qdq'", ValueError,
        {"style": "qdq"}),
    "dynamic rounder in qdq": (lambda: nn.Sequential(network(baraquant.W8A16()),
        bnn.FakeQuantize(mode="dynamic")),
        "1: expected a static scale of the input for style='qdq'", ValueError, {"style": "qdq"}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(MODELS))
def test_models(case: str, tmp_path: Path) -> None:
    make, match, kind, options = MODELS[case]
    refused(make(), tmp_path, match, kind, **options)


ARGUMENTS: dict[str, tuple[dict[str, Any], str, type[Exception]]] = {
    "style": ({"style": "QDQ"}, "style to be one of integer, qdq, but got 'QDQ'", ValueError),
    "opset 20": ({"opset_version": 20}, r"to lie in \[21, 25\], but got 20", ValueError),
    "opset True": ({"opset_version": True}, "opset_version to lie in", ValueError),
    "opset text": ({"opset_version": "21"}, "opset_version to lie in", ValueError),
    "list": ({"args": [X]}, "expected args to be a tuple .* but got list", TypeError),
    "kwargs": ({"kwargs": [1]}, "expected kwargs to be a dictionary, but got list", TypeError),
    "external": ({"external_data": 1}, "expected external_data to be a bool or None", TypeError),
}  # fmt: skip


@pytest.mark.parametrize("case", list(ARGUMENTS))
def test_arguments(case: str, tmp_path: Path) -> None:
    options, match, kind = ARGUMENTS[case]
    refused(network(), tmp_path, match, kind, **options)


def test_paths(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(OSError, match="to_onnx: expected a folder that can be written to"):
        baraquant.export.to_onnx(model, X, tmp_path / "missing" / "model.onnx")
    with no_file_is_left(tmp_path), pytest.raises(IsADirectoryError, match="expected a file"):
        baraquant.export.to_onnx(model, X, tmp_path)


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_missing_packages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    refused(network(), tmp_path, r'install it with: pip install "baraquant\[onnx\]"', ImportError)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if float(x.sum()) > 0 else x


@pytest.mark.exhaustive
def test_what_the_exporter_cannot_follow(tmp_path: Path) -> None:
    refused(Branches(), tmp_path, "exporter could not follow the model", RuntimeError)
    refused(network(), tmp_path, "exporter could not follow", RuntimeError, args=(X, X))


@pytest.mark.exhaustive
def test_a_failure_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).write_bytes(b"old")
    passes = "baraquant.export._onnx_passes.store_four_bits"
    monkeypatch.setattr(passes, lambda *args: 1 / 0)
    refused(network(), tmp_path, "division", ZeroDivisionError)
    assert {file.read_bytes() for file in tmp_path.iterdir()} == {b"old"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_steps_that_vary(kind: Any, tmp_path: Path) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = kind(16, 16)
            self.out = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.steps(x)[0])

    model = quantized(Recurrent().eval(), baraquant.W8A8())
    text = rf"steps: the exporter writes .* of a {kind.__name__}.* dynamic_shapes .*Cell"
    with pytest.raises(RuntimeError, match=text):
        path = tmp_path / "it.onnx"
        baraquant.export.to_onnx(model, torch.randn(3, 2, 16), path, dynamic_shapes=({0: "t"},))
