# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files of layers of all kinds and of models: onnxruntime computes what ours compute."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import nn as bnn
from tests.export import onnx_runs
from tests.export.onnx_runs import assert_close, error_of, exported, network, nodes, rows, run
from tests.support.optional_packages import package
from tests.support.schemes import all_described, described
from tests.support.tiny_transformers.build import build

package("onnx")
package("onnxscript")
ORT = package("onnxruntime").__version__
pytestmark = pytest.mark.exhaustive

INTEGER: dict[str, Any] = {
    **all_described(
        "int8, int8 per_token", "int8, int8 per_token asymmetric", "int4, int8 per_token",
        "int2 ternary, int8 per_token", "int8, int6 per_tensor", "int8, int8 per_tensor asymmetric",
        "int4 per_group(32) factors, int8 per_token",  # that leaves as int8
    ),
    "rotated": baraquant.W8A8(symmetric=False, rotate=16),
}  # fmt: skip
STATIC: dict[str, Any] = {
    **all_described(
        "int8, int8 per_tensor static", "int8, int8 per_tensor asymmetric static",
        "int8, int5 per_tensor asymmetric static",
        "int4 per_group(32) asymmetric factors, int8 per_tensor static", observer="min_max",
    ),
    "rotated": baraquant.W8A8Static(rotate=32),
}  # fmt: skip
WEIGHTS: dict[str, Any] = {
    **all_described(
        "int8", "int8 per_group(16) asymmetric", "int6", "int4 per_group(32)", "int4",
        "int4 per_group(16) asymmetric", "int3 per_group(32)", "int2 per_group(16) asymmetric",
    ),
    "rotated": baraquant.W8A16(rotate=16),
}  # fmt: skip


DYNAMIC: Any = {0: "batch", 1: "tokens"}


def in_one_file(model: onnx_runs.Beside, x: torch.Tensor, folder: Path, **options: Any) -> Path:
    """Of any size; an input of two networks would be quantized once."""
    inputs = tuple(x.clone() for _ in model.networks)
    shapes = ((DYNAMIC,) * len(inputs),)
    path = exported(model, inputs, folder, dynamic_shapes=shapes, **options)
    assert not {"Gemm", "Transpose"} & set(nodes(path))
    return path


def test_dynamic_integer_layers(tmp_path: Path) -> None:
    model = onnx_runs.Beside(network(scheme) for scheme in INTEGER.values())
    path = in_one_file(model, rows(2, 5), tmp_path)
    for inputs in (rows(2, 5), rows(3, 1), rows(1, 40)):
        for optimize in (True, False):
            assert_close(path, model, inputs, optimize=optimize)
    assert nodes(path)["MatMulInteger"] == 2 * len(INTEGER) and nodes(path)["MatMul"] == 0


@pytest.mark.parametrize("style", ["integer", "qdq"])
def test_static_layers(style: str, tmp_path: Path) -> None:
    x = rows(4, 6)
    model = onnx_runs.Beside(network(scheme, x) for scheme in STATIC.values())
    layers = 2 * len(STATIC)
    path = in_one_file(model, x, tmp_path, style=style)
    for inputs in (x, rows(3, 1) * 2):  # also beyond the calibrated range
        for optimize in (True, False):
            assert_close(path, model, inputs, optimize=optimize)
    kinds = nodes(path)
    if style == "integer":
        assert kinds["MatMulInteger"] == kinds["QuantizeLinear"] == layers and kinds["MatMul"] == 0
    else:
        assert kinds["MatMul"] == kinds["QuantizeLinear"] == layers
        assert kinds["MatMulInteger"] == 0 and kinds["DequantizeLinear"] == 2 * layers


@pytest.mark.parametrize("style", ["integer", "qdq"])
def test_weights_only(style: str, tmp_path: Path) -> None:
    model = onnx_runs.Beside(network(scheme) for scheme in WEIGHTS.values())
    layers = 2 * len(WEIGHTS)
    path = in_one_file(model, rows(2, 5), tmp_path, style=style)
    for inputs in (rows(2, 5), rows(3, 1)):
        assert_close(path, model, inputs)
    kinds = nodes(path)
    if style == "integer":
        assert kinds["MatMulNBits"] == layers and kinds["MatMul"] == 0
    else:
        assert kinds["DequantizeLinear"] == kinds["MatMul"] == layers
    assert kinds["Cast"] == 0


def test_the_fast_forms(tmp_path: Path) -> None:
    """onnxruntime has fast kernels for uint8 by [K, N] and for int4 [K, N] before a MatMul."""
    import onnx

    x = rows(2, 5)
    path = exported(network(baraquant.W8A8()), (x,), tmp_path, int8_weights=True)
    graph = onnx.load(path).graph
    assert onnx_runs.constants(path)["0.qweight"] == ("INT8", (64, 96))
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path)).graph.value_info
    types = {value.name: value.type.tensor_type.elem_type for value in inferred}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert [types[node.input[0]] for node in products] == [onnx.TensorProto.UINT8] * 2
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    assert [int(stored[node.input[2]]) for node in products] == [128, 128]

    model = network(baraquant.W4A16(32, symmetric=False))
    path = exported(model, (x,), tmp_path, style="qdq")
    shapes = onnx_runs.constants(path)
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
def test_smoothed_layers(style: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    smooth, bias = torch.rand(64) + 0.5, torch.randn(24)
    weight = torch.randint(-128, 128, (24, 64), dtype=torch.int8), torch.rand(24) + 0.1
    step = torch.tensor(0.03)
    static, points = {"smooth_scale": step * smooth}, (None, torch.tensor(-7))
    layers = (
        bnn.QuantizedLinear(*weight, bias, symmetric=point is None, smooth=smooth)
        if style is None
        else bnn.StaticQuantizedLinear(*weight, step, bias, act_zero_point=point, **static)
        for point in points
    )
    model, x = onnx_runs.Beside(layers), rows(3, 4)
    assert_close(exported(model, (x, x), tmp_path, style=style or "integer"), model, x)


def test_rounded_inputs_beside_groups(tmp_path: Path) -> None:
    schemes = (
        described(f"int4 per_group(32), int8 {granularity} {zero_point}")
        for granularity in ("per_token", "per_tensor", "per_group(16)")
        for zero_point in ("symmetric", "asymmetric")
    )
    model = onnx_runs.Beside(network(scheme) for scheme in schemes)
    path = in_one_file(model, rows(2, 5), tmp_path)
    for inputs in (rows(2, 5), rows(1, 3)):
        assert_close(path, model, inputs)


def test_embeddings_are_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = ("int8", "int8 asymmetric", "int4 per_group(16)", "int4 per_group(16) asymmetric")
    model = onnx_runs.Beside(nn.Sequential(nn.Embedding(50, 48)) for _ in names)
    by_name = {f"networks.{i}.*": described(name) for i, name in enumerate(names)}
    baraquant.quantize_(model, by_name, progress=False)
    indices = torch.randint(50, (3, 7))
    path = in_one_file(model, indices, tmp_path)
    for some in (indices, indices[:1, :2]):
        assert torch.equal(run(path, *[some] * 4), model(*[some] * 4))
    stored = onnx_runs.constants(path).items()
    tables = [kind for name, kind in stored if name.endswith("0.qweight")]
    assert tables == [("INT8", (50, 48))] * 4


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


STATIC_INPUTS = "int8, int8 per_tensor asymmetric static"


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, STATIC_INPUTS) for name in ("bert", "llama")), ("bert", "int4 per_group(32)"),
        ("llama", "int8")],
)  # fmt: skip
def test_transformers(name: str, scheme: str, tmp_path: Path) -> None:
    package("transformers")
    torch.manual_seed(0)
    tokens = torch.randint(64, (3, 12))
    model = First(build(name))
    is_static = "static" in scheme
    config, given = described(scheme, observer="min_max"), [tokens] if is_static else None
    baraquant.quantize_(model, config, calibration=given, progress=False)
    path = tmp_path / "model.onnx"
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    baraquant.export.to_onnx(model, tokens[:2], path, dynamic_shapes=shapes)
    kinds = nodes(path)
    weights_alone = kinds["DequantizeLinear"] + kinds["MatMulNBits"]
    assert (kinds["MatMulInteger"] if is_static else weights_alone) >= 12
    with torch.no_grad():
        ours = model(tokens)
    # Static scales turn another order of a floating sum into another integer here and there.
    assert error_of(run(path, tokens), ours) < (1e-2 if is_static else 1e-5)


# --- convolutions and FakeQuantize: the pattern that becomes int8 convolutions --------------------

FINITE = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-30, -1e30, 3e38, float("inf"), float("-inf")]


def values(*shape: int) -> torch.Tensor:
    """Ties of the scale 0.25, extreme numbers and random ones."""
    torch.manual_seed(0)
    x = torch.randn(*shape) * 8
    flat = x.view(-1)
    ties = torch.arange(-140, 140) * 0.25 + 0.125
    flat[: len(FINITE)] = torch.tensor(FINITE)
    flat[20 : 20 + len(ties)] = ties
    return x


class Rounders(nn.Module):
    """FakeQuantize modules, and one integer layer, without which there is nothing to export."""

    def __init__(self, *rounders: nn.Module) -> None:
        super().__init__()
        self.rounders = nn.ModuleList(rounders)
        self.layer: Any = nn.Sequential(nn.Linear(2, 2))
        baraquant.quantize_(self.layer, baraquant.W8A16(), progress=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([rounder(x) for rounder in self.rounders])


CHANNELS = torch.rand(16, generator=torch.Generator().manual_seed(3)) + 0.1
FIXED: dict[str, tuple[Any, ...]] = {
    "tensor": (
        *(bnn.FakeQuantize(0.25), bnn.FakeQuantize(0.25, 3)),
        bnn.FakeQuantize(0.25, 131, quant_min=0, quant_max=255),
        bnn.FakeQuantize(0.25, 2, quant_min=-8, quant_max=7),
        bnn.FakeQuantize(0.25, quant_min=-127, quant_max=127),
        bnn.FakeQuantize(0.25, 5, quant_min=-2048, quant_max=2047),
    ),
    "channel": (
        bnn.FakeQuantize(CHANNELS, None, "per_channel", axis=1),
        bnn.FakeQuantize(CHANNELS, torch.arange(16) - 8, "per_channel", axis=1),
        bnn.FakeQuantize(CHANNELS, None, "per_channel", axis=1, quant_min=-4, quant_max=3),
    ),
    "token": (bnn.FakeQuantize(torch.rand(5, 16) + 0.1, torch.ones(5, 16).int(), "per_token"),),
    "group": (
        bnn.FakeQuantize(torch.rand(5, 16, 4) + 0.1, None, "per_group", group_size=8),
        bnn.FakeQuantize(torch.rand(5, 2, 32) + 0.1, None, "per_group", group_size=8, axis=1),
    ),
}


@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_scales_are_equal(name: str, tmp_path: Path) -> None:
    x, model = values(5, 16, 32), Rounders(*FIXED[name])
    if name == "group" and tuple(map(int, ORT.split(".")[:2])) < (1, 32):
        x = x.clamp(-1e6, 1e6)  # 1.30 gives what int32 does not hold the least integer
    path = exported(model, (x,), tmp_path, style="qdq")
    assert torch.equal(run(path, x, optimize=False), model(x))
    assert torch.equal(run(path, x), model(x))


DYNAMIC_ROUNDERS: list[Any] = [
    bnn.FakeQuantize(mode="dynamic", granularity=granularity, symmetric=symmetric, **options)
    for granularity, options in (
        *(("per_tensor", {}), ("per_token", {}), ("per_channel", {"axis": 1})),
        *(("per_group", {"group_size": 8}), ("per_group", {"group_size": 3, "axis": 1})),
        ("per_token", {"quant_min": 0, "quant_max": 15}),
    )
    for symmetric in (True, False)
]


def test_dynamic_scales_are_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(5, 16, 32) * 8, Rounders(*DYNAMIC_ROUNDERS)
    x[1] = 0.0
    x[2, 3] *= 1e-42
    path = exported(model, (x,), tmp_path)
    assert torch.equal(run(path, x, optimize=False), model(x))


def test_an_observed_scale_is_frozen(tmp_path: Path) -> None:
    observed = bnn.FakeQuantize(mode="observed", symmetric=False)
    x = values(4, 160).clamp(-30, 30)
    observed(x)
    observed.disable_observer()
    passing = bnn.FakeQuantize(0.25)
    passing.disable_fake_quant()
    model = Rounders(observed, passing)
    path = exported(model, (x,), tmp_path, style="qdq")
    assert torch.equal(run(path, x * 2), model(x * 2))
    assert nodes(path)["QuantizeLinear"] == 1


def quantize_with_inputs(model: nn.Module, images: torch.Tensor, symmetric: bool) -> None:
    scheme = baraquant.W8A8Static(symmetric=symmetric, conv_inputs=True)
    baraquant.quantize_(model, scheme, calibration=[images], progress=False)


CONVOLUTIONS: dict[str, Any] = {
    "1d": nn.Conv1d(8, 12, 3, padding=1, stride=2),
    "2d": nn.Conv2d(8, 12, 3, padding=1, groups=4),
    "2d same": nn.Conv2d(8, 12, 3, padding="same", dilation=2, bias=False),
    "2d reflect": nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"),
    "3d": nn.Conv3d(8, 12, 3),
    "transposed": nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4, output_padding=1),
}
GROUPS = "int4 per_group(2) asymmetric"


@pytest.mark.parametrize(
    ("name", "weight", "rounds"),
    [*((name, "int8", False) for name in CONVOLUTIONS),
        *((name, GROUPS, False) for name in ("2d", "3d", "transposed")),
        ("2d", "int8", True), ("transposed", "int8", True), ("1d", GROUPS, True)],
)  # fmt: skip
def test_convolutions(name: str, weight: str, rounds: bool, tmp_path: Path) -> None:
    """Weights only, and with a rounded input."""
    torch.manual_seed(0)
    model = nn.Sequential(CONVOLUTIONS[name])
    baraquant.quantize_(model, described(weight), progress=False)
    layer: Any = model[0]
    if rounds:
        layer.input_fake_quant = bnn.FakeQuantize(0.03, -20)
    x = torch.randn(2, 8, *[7] * (layer.qweight.dim() - 2))
    path = exported(model, (x,), tmp_path, style="qdq", dynamic_shapes=({0: "batch"},))
    more = torch.cat([x, x * 2])
    assert error_of(run(path, more), model(more).detach()) < 1e-6
    assert nodes(path)["QuantizeLinear"] == int(rounds)
    stored = onnx_runs.constants(path).values()
    assert ("INT8", 12) in [(dtype, shape[0]) for dtype, shape in stored]


class Residual(nn.Module):
    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, **options)


def basic(n: int) -> nn.Module:
    return nn.Sequential(Residual(conv(n, n), nn.ReLU(), conv(n, n)), nn.ReLU())


def inverted(n: int) -> nn.Module:
    """A block of MobileNetV2: a depthwise convolution between narrow ones."""
    depthwise = conv(4 * n, 4 * n, groups=4 * n)
    return Residual(conv(n, 4 * n, 1), nn.ReLU6(), depthwise, nn.ReLU6(), conv(4 * n, n, 1))


def vision_network(block: Callable[[int], nn.Module]) -> nn.Module:
    """A stem, blocks of two widths, a pooled classifier."""
    torch.manual_seed(0)
    stem = conv(3, 8, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), block(8), block(8)
    wide = conv(8, 16, stride=2), nn.ReLU(), block(16), block(16)
    return nn.Sequential(*stem, *wide, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.parametrize(("block", "style"), [(inverted, "qdq"), (basic, "integer")])
def test_networks_become_int8_convolutions(block: Any, style: str, tmp_path: Path) -> None:
    """onnxruntime computes convolutions in integers where a QuantizeLinear follows."""
    torch.manual_seed(1)
    images = torch.randn(4, 3, 64, 64)
    model = vision_network(block).eval()
    floating = model(images).detach()
    quantize_with_inputs(model, images, symmetric=False)
    path = exported(model, (images,), tmp_path, style=style, dynamic_shapes=({0: "batch"},))
    convolutions = sum(isinstance(module, bnn.QuantizedConv2d) for module in model.modules())
    before = nodes(path)
    assert before["Conv"] == convolutions
    few = images[:3]
    ours = model(few).detach()
    rounding = error_of(floating[:3], ours)
    # A sum in another order may round to the neighbour; then its further layers differ a little.
    assert error_of(run(path, few, optimize=False), ours) < rounding / 2
    assert error_of(run(path, few, save=tmp_path / "optimized.onnx"), ours) < rounding / 2
    after = nodes(tmp_path / "optimized.onnx")
    assert after["QLinearConv"] >= 4  # one in each block at least
    weights = {n: dtype for n, (dtype, _) in onnx_runs.constants(path).items() if "qweight" in n}
    wanted = {"INT8"} if style == "qdq" else {"UINT8"}
    assert {kind for n, kind in weights.items() if not n.endswith("zero_point")} == wanted


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_chain_of_convolutions_is_integer_to_the_last(symmetric: bool, tmp_path: Path) -> None:
    """Without residual sums, each convolution but the last is followed by a QuantizeLinear.

    A ReLU before it falls into the rounding if 0 is the smallest integer: not if it is symmetric.
    """
    torch.manual_seed(0)
    act = nn.Identity() if symmetric else nn.ReLU()
    model = nn.Sequential(nn.Conv2d(4, 8, 3), act, nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 3))
    images = torch.randn(2, 4, 12, 12)
    quantize_with_inputs(model, images, symmetric=symmetric)
    path = exported(model, (images,), tmp_path, style="qdq")
    run(path, images, save=tmp_path / "optimized.onnx")
    after = nodes(tmp_path / "optimized.onnx")
    assert after["QLinearConv"] == 2 and after["QuantizeLinear"] == 1
    assert error_of(run(path, images, optimize=False), model(images).detach()) < 1e-2


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 64)])
def test_static_shapes(shape: tuple[int, ...], symmetric: bool, tmp_path: Path) -> None:
    """onnxruntime moves a DequantizeLinear behind the Reshape that it makes of such a product."""
    torch.manual_seed(0)
    x, model = torch.randn(shape), nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 8))
    scheme = baraquant.W8A8Static(symmetric=symmetric)
    baraquant.quantize_(model, scheme, calibration=[x], progress=False)
    path = exported(model, (x,), tmp_path, style="qdq")
    assert error_of(run(path, x, save=tmp_path / "optimized.onnx"), model(x)) < 1e-6
    after = nodes(tmp_path / "optimized.onnx")
    assert not {"Gemm", "MatMul"} & set(after), after  # weights are not dequantized in each call
