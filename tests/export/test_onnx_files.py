# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files give the same numbers on processors without VNNI and in default sessions.

Scales beyond the range of float16 are kept, or named. What to_onnx refuses it names, and no file is
left behind.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import baraquant
from baraquant import nn as bnn
from baraquant import qat
from baraquant.export import round_biases_
from baraquant.export._layers import integer_layer
from tests.export import onnx_runs
from tests.export.onnx_runs import Beside, assert_close, constants, error_of, exported, nodes, run
from tests.support.models.made import prepared, quantized
from tests.support.optional_packages import package
from tests.support.schemes import all_described, described

package("onnx")
package("onnxscript")
package("onnxruntime")

SCHEMES: dict[str, Any] = all_described(
    "int8, int8 per_token", "int8, int8 per_token asymmetric", "int8, int8 per_tensor", "int8",
) | all_described(
    "int8, int8 per_tensor static", "int8, int8 per_tensor asymmetric static",
    "int7, int8 per_tensor asymmetric static", "int8 asymmetric, int8 per_tensor static",
    conv_inputs=True, observer="min_max",
)  # fmt: skip


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
        first = nn.Conv2d(3, 8, 3, bias=False)
        self.convolutions = nn.Sequential(first, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 1))
        self.head = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolutions(x).flatten(1))


def model_and_input(scheme: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Both().eval(), torch.randn(4, 3, 8, 8)
    given = [x] if "static" in str(scheme) else None
    baraquant.quantize_(model, scheme, calibration=given, progress=False)
    return model, x


def notes(path: Path) -> dict[str, str]:
    import onnx

    return {one.key: one.value for one in onnx.load(path).metadata_props}


@pytest.mark.pairs
@pytest.mark.parametrize("says", [False, True], ids=["by default", "as told"])
@pytest.mark.parametrize("style", ["integer", "qdq"])
@pytest.mark.parametrize("name", list(SCHEMES))
def test_sums_do_not_saturate_or_the_file_says_so(
    name: str, style: str, says: bool, tmp_path: Path
) -> None:
    int8_weights = style == "integer" if says else None  # what is not the default
    model, x = model_and_input(SCHEMES[name])
    if style == "qdq" and ", " in name and "static" not in name:
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
    if name.startswith("int8, "):
        assert bool(wrong) == keeps
        assert ("int8_weights=True" in notes(path).get("baraquant.unsigned", "")) != keeps
    warned = any("session.x64quantprecision" in str(one.message) for one in said)
    assert warned == (bool(wrong) and int8_weights is None)
    assert error_of(run(path, x, optimize=False), model(x).detach()) < 1e-6
    assert error_of(run(path, x), model(x).detach()) < 2e-2  # with biases that it rounds


def test_unsigned_convolutions_are_integers_in_onnxruntime(tmp_path: Path) -> None:
    model, x = model_and_input(SCHEMES["int8, int8 per_tensor asymmetric static"])
    path = tmp_path / "model.onnx"
    with pytest.warns(UserWarning, match="rounds the biases"):
        baraquant.export.to_onnx(model, (x,), path)
    run(path, x, save=tmp_path / "optimized.onnx")
    assert nodes(tmp_path / "optimized.onnx")["QLinearConv"] == 3


WEIGHTS = (
    *(f"int4 per_group({size})" for size in (8, 16, 128, 256)), "int4", "int4 asymmetric",
    "int4 per_group(32) asymmetric", "int4 per_group(256) asymmetric", "int3 per_group(64)",
    "int2 per_group(32) asymmetric", "int8 per_group(32)", "int8 per_group(64) asymmetric",
    "int8", "int8 asymmetric", "int8 per_tensor",
)  # fmt: skip


def test_a_default_session_keeps_inputs_floating(tmp_path: Path) -> None:
    torch.manual_seed(0)
    networks = (nn.Sequential(nn.Linear(256, 40), nn.GELU(), nn.Linear(40, 8)) for _ in WEIGHTS)
    model = Beside(networks).eval()
    schemes = {f"networks.{i}.0": described(name) for i, name in enumerate(WEIGHTS)}
    baraquant.quantize_(model, schemes, progress=False)
    x = torch.randn(3, 5, 256)
    inputs, shapes = tuple(x.clone() for _ in WEIGHTS), (({0: "batch"},) * len(WEIGHTS),)
    path = exported(model, inputs, tmp_path, dynamic_shapes=shapes)
    for rows in (x, x[:1]):
        assert_close(path, model, rows, default=True)


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
    model = with_small_rows(torch.float16, first)
    baraquant.quantize_(model, baraquant.W4A16(32), progress=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = exported(model, (torch.rand(4, 64).half(),), tmp_path, style="qdq")
    said = any("scales of 1 weights (0) to float16" in str(one.message) for one in caught)
    assert said == ("baraquant.scales" in notes(path)) == (first < 1)
    assert "baraquant.accuracy_level" in notes(path)


# --- biases that programs with int32 biases hold exactly -----------------------------------------


def chain(count: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(count)]
    return nn.Sequential(*layers).eval(), torch.randn(2, 8, 10, 10)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("prepared", [True, False])
def test_biases_become_multiples(symmetric: bool, prepared: bool) -> None:
    model, x = chain(3)
    scheme = baraquant.W8A8Static(symmetric=symmetric, conv_inputs=True)
    if prepared:
        qat.prepare_(model, scheme)
        model.train()(x)
        model.eval()
    else:
        baraquant.quantize_(model, scheme, calibration=[x], progress=False)
    assert round_biases_(model) == ["0", "1", "2"]
    assert round_biases_(model) == []
    if prepared:
        before = model(x).detach()
        qat.convert_(model)
        assert torch.equal(model(x), before) and round_biases_(model) == []
    for one in model:
        assert isinstance(one, baraquant.nn.QuantizedConv2d)
        step = one.input_fake_quant.scale * one.weight_scale.reshape(-1)
        assert torch.equal(torch.round(one.bias / step) * step, one.bias)


def test_others_stay() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 4))
    baraquant.quantize_(model, baraquant.W8A16(), progress=False)
    assert round_biases_(model) == []
    with pytest.raises(TypeError, match="expected model to be a Module"):
        round_biases_([])  # type: ignore[arg-type]


def test_onnxruntime_comes_nearer(tmp_path: Path) -> None:
    model, x = chain(6)
    quantized(model, baraquant.W8A8Static(conv_inputs=True), x)
    path = tmp_path / "model.onnx"
    errors = []
    for rounds in (False, True):
        if rounds:
            round_biases_(model)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            baraquant.export.to_onnx(model, (x,), path)
        assert any("rounds the biases" in str(one.message) for one in said) != rounds
        errors.append(error_of(run(path, x), model(x).detach()))
    assert errors[1] < 1e-6 < errors[0]


# --- what is refused ------------------------------------------------------------------------------

X = torch.ones(2, 32)


def network(scheme: Any = None, **options: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8))
    return quantized(model, scheme or baraquant.W8A8(), **options)


def refused(model: Any, folder: Path, match: str, kind: Any = ValueError, **options: Any) -> None:
    args = options.pop("args", (X,))
    with onnx_runs.no_file_is_left(folder), pytest.raises(kind, match=match):
        baraquant.export.to_onnx(model, args, folder / "model.onnx", **options)


QDQ, TYPE = {"style": "qdq"}, {"kind": TypeError}
REFUSED: dict[str, tuple[Any, ...]] = {
    "floating": (lambda: nn.Linear(4, 4), "without a quantized layer"),
    "prepared": (lambda: prepared(nn.Sequential(nn.Linear(32, 8)), baraquant.W8A8()),
        "0: expected converted layers, but it is prepared"),
    "no module": (lambda: [1], "expected model to be a Module, but got list", TYPE),
    "float64": (lambda: quantized(nn.Sequential(nn.Linear(32, 8).double()), baraquant.W8A8()),
        "0: expected a float32 scale, but got float64"),
    "observer": (lambda: network().append(bnn.FakeQuantize(mode="observed")),
        "3: expected a FakeQuantize whose range is fixed, but its observer is on"),
    "learned": (lambda: network().append(bnn.LearnedFakeQuantize()),
        "3: expected no LearnedFakeQuantize"),
    "dynamic in qdq": (network,
        "0: expected a static scale of the input for style='qdq', but got a dynamic one", QDQ),
    "dynamic groups in qdq": (lambda: network(baraquant.W4A8(8, group_factors=False)),
        "0.input_fake_quant: expected a static scale of the input for style='qdq'", QDQ),
    "dynamic rounder in qdq": (lambda: nn.Sequential(network(baraquant.W8A16()),
        bnn.FakeQuantize(mode="dynamic")),
        "1: expected a static scale of the input for style='qdq'", QDQ),
    "style": (network, "style to be one of integer, qdq, but got 'QDQ'", {"style": "QDQ"}),
    "opset 20": (network, r"to lie in \[21, 25\], but got 20", {"opset_version": 20}),
    "opset True": (network, "opset_version to lie in", {"opset_version": True}),
    "opset text": (network, "opset_version to lie in", {"opset_version": "21"}),
    "list": (network, "expected args to be a tuple .* but got list", TYPE | {"args": [X]}),
    "kwargs": (network, "expected kwargs to be a dictionary, but got list", TYPE | {"kwargs": [1]}),
    "data": (network, "expected external_data to be a bool or None", TYPE | {"external_data": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    make, match, *options = REFUSED[case]
    refused(make(), tmp_path, match, **dict(*options))


def test_paths(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(OSError, match="to_onnx: expected a folder that can be written to"):
        baraquant.export.to_onnx(model, X, tmp_path / "missing" / "model.onnx")
    no_file = onnx_runs.no_file_is_left(tmp_path)
    with no_file, pytest.raises(IsADirectoryError, match="expected a file"):
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
