# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files give the same numbers on processors without VNNI and in default sessions.

Scales beyond the range of float16 are kept, or named.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import baraquant
from baraquant import PerGroup, QuantConfig, TensorConfig
from baraquant.export._layers import integer_layer
from tests.export.onnx_runs import constants, error_of, exported, nodes, run
from tests.support.optional_packages import package

package("onnx")
package("onnxscript")
package("onnxruntime")

CONV = {"conv_inputs": True}
SCHEMES: dict[str, Any] = {
    "W8A8": baraquant.W8A8(),
    "W8A8 asymmetric": baraquant.W8A8(symmetric=False),
    "W8A8 per tensor": QuantConfig(TensorConfig(8), TensorConfig(8, "per_tensor")),
    "W8A8Static": baraquant.W8A8Static(**CONV),
    "W8A8Static asymmetric": baraquant.W8A8Static(symmetric=False, **CONV),
    "W7A8Static": QuantConfig(
        TensorConfig(7), TensorConfig(8, "per_tensor", symmetric=False, dynamic=False), **CONV
    ),
    "W8z": QuantConfig(
        TensorConfig(8, symmetric=False), TensorConfig(8, "per_tensor", dynamic=False), **CONV
    ),
    "W8A16": baraquant.W8A16(),
}


def products(path: Path) -> list[tuple[str, Any, bool]]:
    """The integers of each weight in a product of integers: node, integers, whether int8.

    Written from onnxruntime's rules alone: a product of a dequantized input and weight.
    """
    import onnx

    graph = onnx.load(path).graph
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    made = {output: node for node in graph.node for output in node.output}
    found = []
    for node in graph.node:
        names = list(node.input)
        if node.op_type == "MatMulInteger":
            found.append((node.name, stored[names[1]]))
        elif node.op_type in ("Conv", "MatMul", "Gemm"):
            sources = [made.get(name) for name in names[:2]]
            if all(one is not None and one.op_type == "DequantizeLinear" for one in sources):
                found.append((node.name, stored[sources[1].input[0]]))  # type: ignore[union-attr]
    return [(name, integers, integers.dtype == np.int8) for name, integers in found]


def saturates(integers: Any) -> bool:
    """Whether sums of two products with uint8 leave int16, which vpmaddubsw clamps to."""
    pairs = integers.reshape(integers.shape[0], -1).astype(np.int32)
    positive, negative = np.maximum(pairs, 0), np.minimum(pairs, 0)
    # Which two neighbours meet depends on the kernel's order: the two largest ones may.
    most = 255 * (np.sort(positive.ravel())[-2:].sum())
    least = 255 * (np.sort(negative.ravel())[:2].sum())
    return bool(most > 32767 or least < -32768)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 1)
        )
        self.head = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolutions(x).flatten(1))


def model_and_input(scheme: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Both().eval(), torch.randn(4, 3, 8, 8)
    needs = "Static" in str(scheme) or "static" in str(scheme)
    baraquant.quantize_(model, scheme, calibration=[x] if needs else None, progress=False)
    return model, x


def notes(path: Path) -> dict[str, str]:
    import onnx

    return {one.key: one.value for one in onnx.load(path).metadata_props}


MODES = [("integer", None), ("integer", True), ("qdq", None), ("qdq", False)]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", list(SCHEMES))
def test_sums_do_not_saturate_or_the_file_says_so(
    name: str, mode: tuple[str, bool | None], tmp_path: Path
) -> None:
    style, int8_weights = mode
    model, x = model_and_input(SCHEMES[name])
    if style == "qdq" and name in ("W8A8", "W8A8 asymmetric", "W8A8 per tensor"):
        with pytest.raises(ValueError, match="expected a static scale"):
            baraquant.export.to_onnx(model, (x,), tmp_path / "m", style=style)
        return
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        baraquant.export.to_onnx(model, (x,), path, style=style, int8_weights=int8_weights)
    wrong = [one for one, integers, is_int8 in products(path) if is_int8 and saturates(integers)]
    text = notes(path).get("baraquant.saturation", "")
    assert bool(wrong) == ("session.x64quantprecision" in text)
    keeps = int8_weights is True or (int8_weights is None and style == "qdq")
    assert not wrong or keeps
    if name not in ("W7A8Static", "W8A16", "W8z"):
        assert bool(wrong) == keeps
        assert ("int8_weights=True" in notes(path).get("baraquant.unsigned", "")) != keeps
    warned = any("session.x64quantprecision" in str(one.message) for one in said)
    assert warned == (bool(wrong) and int8_weights is None)
    assert error_of(run(path, x, optimize=False), model(x).detach()) < 1e-6
    assert error_of(run(path, x), model(x).detach()) < 2e-2  # with biases that it rounds


def test_unsigned_convolutions_are_integers_in_onnxruntime(tmp_path: Path) -> None:
    model, x = model_and_input(SCHEMES["W8A8Static asymmetric"])
    path = tmp_path / "model.onnx"
    with pytest.warns(UserWarning, match="rounds the biases"):
        baraquant.export.to_onnx(model, (x,), path)
    run(path, x, save=tmp_path / "optimized.onnx")
    assert nodes(tmp_path / "optimized.onnx")["QLinearConv"] == 3


GROUPS: dict[str, Any] = {
    "16": baraquant.W4A16(16),
    "32 asymmetric": baraquant.W4A16(32, symmetric=False),
    "128": baraquant.W4A16(128),
    "one group": baraquant.W4A16(256),
    "odd count asymmetric": QuantConfig(TensorConfig(4, PerGroup(256), symmetric=False)),
    "three bits": QuantConfig(TensorConfig(3, PerGroup(64))),
    "two bits asymmetric": QuantConfig(TensorConfig(2, PerGroup(32), symmetric=False)),
    "eight in a group": QuantConfig(TensorConfig(4, PerGroup(8))),
    "channels": baraquant.W4A16(None),
    "eight bits": QuantConfig(TensorConfig(8, PerGroup(32))),
    "eight bits asymmetric": QuantConfig(TensorConfig(8, PerGroup(64), symmetric=False)),
    "W8A16": baraquant.W8A16(),
    "W8A16 asymmetric": QuantConfig(TensorConfig(8, symmetric=False)),
    "four bits in channels asymmetric": QuantConfig(TensorConfig(4, symmetric=False)),
    "tensor": QuantConfig(TensorConfig(8, "per_tensor")),
}


@pytest.mark.parametrize("name", list(GROUPS))
def test_a_default_session_keeps_inputs_floating(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 40), nn.GELU(), nn.Linear(40, 8)).eval()
    baraquant.quantize_(model, {"0": GROUPS[name]}, progress=False)
    x, path = torch.randn(3, 5, 256), tmp_path / "model.onnx"
    baraquant.export.to_onnx(model, (x,), path, dynamic_shapes=({0: "batch"},))
    for rows in (x, x[:1]):
        assert error_of(run(path, rows, default=True), model(rows).detach()) < 1e-6


def test_the_other_style_says_what_a_session_needs(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 32)).eval()
    baraquant.quantize_(model, baraquant.W4A16(32), progress=False)
    path = tmp_path / "model.onnx"
    with pytest.warns(UserWarning, match="qdq_matmulnbits_accuracy_level"):
        baraquant.export.to_onnx(model, (torch.randn(2, 64),), path, style="qdq")
    assert "accuracy_level is '1'" in notes(path)["baraquant.accuracy_level"]


def with_small_rows(dtype: torch.dtype, first: float) -> nn.Sequential:
    """A layer in whose first eight rows the largest weight is ``first``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32)).eval()
    with torch.no_grad():
        model[0].weight[:8] *= first / model[0].weight[:8].abs().amax(1, keepdim=True)
        model[0].bias.zero_()
    return model.to(dtype)


@pytest.mark.parametrize("scheme", [baraquant.W8A16(), baraquant.W4A16(32)], ids=["8", "4"])
def test_onnx_keeps_small_scales(scheme: Any, tmp_path: Path) -> None:
    """By default onnxruntime makes products of float16, whose scales are 0 there."""
    model = with_small_rows(torch.float16, 1e-7)
    baraquant.quantize_(model, scheme, progress=False)
    x = 1e4 * torch.rand(4, 64).half()
    path = exported(model, (x,), tmp_path)
    read = run(path, x, default=True)
    found = integer_layer("0", model[0], "test")
    scale = found.grouped_scale.repeat_interleave(64 // found.grouped_scale.shape[1], 1)
    exact = x.double() @ (found.qweight.double() * scale.double()).t()
    for rows in (slice(0, 8), slice(8, 32)):
        assert error_of(read[:, rows].double(), exact[:, rows]) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_onnx_has_float32_scales(dtype: torch.dtype, tmp_path: Path) -> None:
    model = with_small_rows(dtype, 1e-7)
    baraquant.quantize_(model, baraquant.W4A16(32), progress=False)
    path = exported(model, (torch.rand(4, 64, dtype=dtype),), tmp_path)
    assert constants(path)["0.qweight_scales"] == ("FLOAT", (32, 2))


@pytest.mark.parametrize("first", [1e-7, 1.0])
def test_onnx_names_rounded_scales(first: float, tmp_path: Path) -> None:
    import onnx

    model = with_small_rows(torch.float16, first)
    baraquant.quantize_(model, baraquant.W4A16(32), progress=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = exported(model, (torch.rand(4, 64).half(),), tmp_path, style="qdq")
    said = any("scales of 1 weights (0) to float16" in str(one.message) for one in caught)
    noted = [one.key for one in onnx.load(path).metadata_props]
    assert said == ("baraquant.scales" in noted) == (first < 1)
    assert "baraquant.accuracy_level" in noted
