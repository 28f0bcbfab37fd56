# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files of linear layers, embeddings and models: onnxruntime computes what ours compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import PerGroup, QuantConfig, TensorConfig
from baraquant import nn as bnn
from tests.export.onnx_runs import constants, error_of, exported, network, nodes, rows, run
from tests.support.optional_packages import package
from tests.support.tiny_transformers.build import build

package("onnx")
package("onnxscript")
package("onnxruntime")
pytestmark = pytest.mark.exhaustive

INTEGER: dict[str, Any] = {
    "W8A8": baraquant.W8A8(),
    "W8A8 asymmetric": baraquant.W8A8(symmetric=False),
    "W4A8": baraquant.W4A8(None),
    "rotated": baraquant.W8A8(symmetric=False, rotate=16),
    "ternary": QuantConfig(TensorConfig(2, ternary=True), TensorConfig(8, "per_token")),
    "W8A6 per tensor": QuantConfig(TensorConfig(8), TensorConfig(6, "per_tensor")),
    "W8A8 per tensor asymmetric": QuantConfig(TensorConfig(8), TensorConfig(8, "per_tensor",
        symmetric=False)),
    "W4A8 factors": baraquant.W4A8(32, group_factors=True),  # that leave as int8
}  # fmt: skip
STATIC: dict[str, Any] = {
    "W8A8": baraquant.W8A8Static(),
    "W8A8 asymmetric": baraquant.W8A8Static(symmetric=False),
    "rotated": baraquant.W8A8Static(rotate=32),
    "W8A5 asymmetric": QuantConfig(TensorConfig(8), TensorConfig(5, "per_tensor", symmetric=False,
        dynamic=False)),
    "W4A8 factors": QuantConfig(TensorConfig(4, PerGroup(32), symmetric=False, group_factors=True),
        TensorConfig(8, "per_tensor", dynamic=False), "min_max"),
}  # fmt: skip
WEIGHTS: dict[str, Any] = {
    "W8A16": baraquant.W8A16(),
    "W8A16 groups asymmetric": QuantConfig(TensorConfig(8, PerGroup(16), symmetric=False)),
    "rotated": baraquant.W8A16(rotate=16),
    "W6A16": QuantConfig(TensorConfig(6)),
    "W4A16": baraquant.W4A16(32),
    "W4A16 asymmetric": baraquant.W4A16(16, symmetric=False),
    "W4A16 channels": baraquant.W4A16(None),
    "W3A16": QuantConfig(TensorConfig(3, PerGroup(32))),
    "W2A16": QuantConfig(TensorConfig(2, PerGroup(16), symmetric=False)),
}  # fmt: skip


DYNAMIC: Any = ({0: "batch", 1: "tokens"},)


@pytest.mark.parametrize("name", list(INTEGER))
def test_dynamic_integer_layers(name: str, tmp_path: Path) -> None:
    model, x = network(INTEGER[name]), rows(2, 5)
    path = exported(model, (x,), tmp_path, dynamic_shapes=DYNAMIC)
    for inputs in (x, rows(3, 1), rows(1, 40)):
        for optimize in (True, False):
            assert error_of(run(path, inputs, optimize=optimize), model(inputs)) < 1e-6
    assert nodes(path)["MatMulInteger"] == 2
    assert not {"MatMul", "Gemm", "Transpose"} & set(nodes(path))


@pytest.mark.parametrize("style", ["integer", "qdq"])
@pytest.mark.parametrize("name", list(STATIC))
def test_static_layers(name: str, style: str, tmp_path: Path) -> None:
    x = rows(4, 6)
    model = network(STATIC[name], x)
    path = exported(model, (x,), tmp_path, dynamic_shapes=DYNAMIC, style=style)
    for inputs in (x, rows(3, 1) * 2):  # also beyond the calibrated range
        for optimize in (True, False):
            assert error_of(run(path, inputs, optimize=optimize), model(inputs)) < 1e-6
    kinds = nodes(path)
    if style == "integer":
        assert kinds["MatMulInteger"] == kinds["QuantizeLinear"] == 2 and kinds["MatMul"] == 0
    else:
        assert kinds["MatMul"] == kinds["QuantizeLinear"] == 2 and kinds["MatMulInteger"] == 0
        assert kinds["DequantizeLinear"] == 4
    assert not {"Gemm", "Transpose"} & set(kinds)


@pytest.mark.parametrize("style", ["integer", "qdq"])
@pytest.mark.parametrize("name", list(WEIGHTS))
def test_weights_only(name: str, style: str, tmp_path: Path) -> None:
    model, x = network(WEIGHTS[name]), rows(2, 5)
    path = exported(model, (x,), tmp_path, dynamic_shapes=DYNAMIC, style=style)
    for inputs in (x, rows(3, 1)):
        assert error_of(run(path, inputs), model(inputs)) < 1e-6
    kinds = nodes(path)
    if style == "integer":
        assert kinds["MatMulNBits"] == 2 and kinds["MatMul"] == 0
    else:
        assert kinds["DequantizeLinear"] == kinds["MatMul"] == 2
    assert not {"Gemm", "Transpose", "Cast"} & set(kinds)


def test_the_fast_forms(tmp_path: Path) -> None:
    """onnxruntime has fast kernels for uint8 by [K, N] and for int4 [K, N] before a MatMul."""
    import onnx

    x = rows(2, 5)
    path = exported(network(baraquant.W8A8()), (x,), tmp_path, int8_weights=True)
    graph = onnx.load(path).graph
    assert constants(path)["0.qweight"] == ("INT8", (64, 96))
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path)).graph.value_info
    types = {value.name: value.type.tensor_type.elem_type for value in inferred}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert [types[node.input[0]] for node in products] == [onnx.TensorProto.UINT8] * 2
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    assert [int(stored[node.input[2]]) for node in products] == [128, 128]

    model = network(baraquant.W4A16(32, symmetric=False))
    path = exported(model, (x,), tmp_path, style="qdq")
    shapes = constants(path)
    assert shapes["0.qweight"] == ("INT4", (64, 96)) and shapes["2.qweight"] == ("INT4", (96, 24))
    assert shapes["0.weight_scale"] == ("FLOAT", (2, 96))
    assert shapes["0.weight_zero_point"] == ("INT4", (2, 96))
    graph = onnx.load(path).graph
    made = {node.output[0]: node for node in graph.node}
    for product in (node for node in graph.node if node.op_type == "MatMul"):
        node = made[product.input[1]]
        options = {one.name: one.i for one in node.attribute}
        assert node.op_type == "DequantizeLinear" and options == {"axis": 0, "block_size": 32}
    run(path, x, save=tmp_path / "optimized.onnx")
    kinds = nodes(tmp_path / "optimized.onnx")
    assert kinds["MatMulNBits"] == 2 and not {"MatMul", "DequantizeLinear"} & set(kinds)


@pytest.mark.parametrize("style", ["integer", "qdq", None], ids=["integer", "qdq", "dynamic"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_smoothed_layers(symmetric: bool, style: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    smooth, bias = torch.rand(64) + 0.5, torch.randn(24)
    weight = torch.randint(-128, 128, (24, 64), dtype=torch.int8), torch.rand(24) + 0.1
    layer: nn.Module = bnn.QuantizedLinear(*weight, bias, symmetric=symmetric, smooth=smooth)
    if style is not None:
        point = None if symmetric else torch.tensor(-7)
        layer = bnn.StaticQuantizedLinear(
            *weight, torch.tensor(0.03), bias, act_zero_point=point, smooth_scale=0.03 * smooth
        )
    x = rows(3, 4)
    path = exported(layer, (x,), tmp_path, style=style or "integer")
    assert error_of(run(path, x), layer(x)) < 1e-6


@pytest.mark.parametrize("granularity", ["per_token", "per_tensor", "per_group"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_rounded_inputs_of_grouped_weights(
    granularity: str, symmetric: bool, tmp_path: Path
) -> None:
    size = 16 if granularity == "per_group" else None
    input = TensorConfig(8, granularity, symmetric, group_size=size)
    model, x = network(QuantConfig(TensorConfig(4, PerGroup(32)), input)), rows(2, 5)
    path = exported(model, (x,), tmp_path, dynamic_shapes=DYNAMIC)
    for inputs in (x, rows(1, 3)):
        assert error_of(run(path, inputs), model(inputs)) < 1e-6


@pytest.mark.parametrize(
    "config",
    [
        QuantConfig(TensorConfig(8)),
        QuantConfig(TensorConfig(8, symmetric=False)),
        QuantConfig(TensorConfig(4, PerGroup(16))),
        QuantConfig(TensorConfig(4, PerGroup(16), symmetric=False)),
    ],
    ids=str,
)
def test_embeddings_are_equal(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 48))
    baraquant.quantize_(model, config, progress=False)
    indices = torch.randint(50, (3, 7))
    path = exported(model, (indices,), tmp_path, dynamic_shapes=DYNAMIC)
    assert torch.equal(run(path, indices), model(indices))
    assert torch.equal(run(path, indices[:1, :2]), model(indices[:1, :2]))
    assert constants(path)["0.qweight"] == ("INT8", (50, 48))


@pytest.mark.parametrize("scheme", [baraquant.W8A8(), baraquant.W4A16(32)], ids=["W8A8", "W4A16"])
def test_float16(scheme: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 24).half())
    baraquant.quantize_(model, scheme, progress=False)
    x = rows(1, 5).half()
    read = run(exported(model, (x,), tmp_path), x)
    assert read.dtype == torch.float16
    assert error_of(read, model(x)) < 1e-3  # one unit of the output's last place


@pytest.mark.parametrize("opset", [21, 23, 25])
def test_opsets(opset: int, tmp_path: Path) -> None:
    import onnx

    model, x = network(baraquant.W4A16(32)), rows(2, 5)
    path = exported(model, (x,), tmp_path, opset_version=opset)
    assert onnx.load(path).opset_import[0].version == opset
    assert error_of(run(path, x), model(x)) < 1e-6


def test_weights_apart(tmp_path: Path) -> None:
    """The second file has a name of its own, which the first one says, and goes with it."""
    model, x = network(baraquant.W8A8()), rows(2, 5)
    path, kept = tmp_path / "model.onnx", tmp_path / "kept.onnx"
    (tmp_path / "model.onnx.data").write_bytes(b"not ours")

    def data_of_next() -> str:
        before = set(tmp_path.iterdir())
        baraquant.export.to_onnx(model, (x,), path, external_data=True)
        (data,) = (new.name for new in set(tmp_path.iterdir()) - before if new != path)
        assert re.fullmatch(r"model\.[0-9a-f]{16}\.onnx\.data", data)
        assert data.encode() in path.read_bytes() and error_of(run(path, x), model(x)) < 1e-6
        return data

    first = data_of_next()
    path.rename(kept)
    data_of_next()
    last = data_of_next()
    names = {kept.name, first, path.name, last, "model.onnx.data"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert error_of(run(kept, x), model(x)) < 1e-6


def test_names_and_keywords(tmp_path: Path) -> None:
    import onnx

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(baraquant.W8A8())

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return self.net(x) * scale

    model, x, scale = Two(), rows(2, 5), torch.tensor([2.0])
    path = tmp_path / "model.onnx"
    names: Any = {"input_names": ["rows", "factor"], "output_names": ["result"]}
    baraquant.export.to_onnx(model, (x,), path, kwargs={"scale": scale}, **names)
    graph = onnx.load(path).graph
    assert [one.name for one in graph.input] == ["rows", "factor"]
    assert [one.name for one in graph.output] == ["result"]
    assert error_of(run(path, x, scale), model(x, scale=scale)) < 1e-6


def test_the_model_does_not_change(tmp_path: Path) -> None:
    model, x = network(baraquant.W4A16(32)).train(), rows(2, 5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    exported(model, (x,), tmp_path)
    assert [type(module) for module in model.modules()] == kinds and model.training
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


class First(nn.Module):
    """The first output of a model of transformers, from token ids alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if hasattr(self.model, "lm_head") else {}
        result: torch.Tensor = self.model(input_ids=input_ids, return_dict=False, **options)[0]
        return result


OF_MODELS = {
    "static": baraquant.W8A8Static(symmetric=False),
    "W4A16": baraquant.W4A16(32),
    "W8A16": baraquant.W8A16(),
}


@pytest.mark.parametrize("scheme", list(OF_MODELS))
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_transformers(name: str, scheme: str, tmp_path: Path) -> None:
    package("transformers")
    torch.manual_seed(0)
    tokens = torch.randint(64, (3, 12))
    model = First(build(name))
    given = [tokens] if scheme == "static" else None
    baraquant.quantize_(model, OF_MODELS[scheme], calibration=given, progress=False)
    path = tmp_path / "model.onnx"
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    baraquant.export.to_onnx(model, tokens[:2], path, dynamic_shapes=shapes)
    kinds = nodes(path)
    weights_alone = kinds["DequantizeLinear"] + kinds["MatMulNBits"]
    assert (kinds["MatMulInteger"] if scheme == "static" else weights_alone) >= 12
    with torch.no_grad():
        ours = model(tokens)
    # Static scales turn another order of a floating sum into another integer here and there.
    assert error_of(run(path, tokens), ours) < (1e-2 if scheme == "static" else 1e-5)
