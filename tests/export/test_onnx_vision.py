# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files of convolutions and of FakeQuantize: the pattern that becomes int8 convolutions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import PerGroup, QuantConfig, TensorConfig
from baraquant import nn as bnn
from tests.export.onnx_runs import constants, error_of, exported, nodes, run
from tests.support.optional_packages import package

package("onnx")
package("onnxscript")
ORT = package("onnxruntime").__version__
pytestmark = pytest.mark.exhaustive

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
        bnn.FakeQuantize(0.25),
        bnn.FakeQuantize(0.25, 3),
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


DYNAMIC: list[Any] = [
    bnn.FakeQuantize(mode="dynamic", granularity=granularity, symmetric=symmetric, **options)
    for granularity, options in (
        ("per_tensor", {}),
        ("per_token", {}),
        ("per_channel", {"axis": 1}),
        ("per_group", {"group_size": 8}),
        ("per_group", {"group_size": 3, "axis": 1}),
        ("per_token", {"quant_min": 0, "quant_max": 15}),
    )
    for symmetric in (True, False)
]


def test_dynamic_scales_are_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(5, 16, 32) * 8, Rounders(*DYNAMIC)
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
WEIGHTS = {
    "int8": QuantConfig(TensorConfig(8)),
    "int4 groups asymmetric": QuantConfig(TensorConfig(4, PerGroup(2), symmetric=False)),
}


@pytest.mark.parametrize(
    ("name", "weight", "rounds"),
    [(name, weight, False) for name in CONVOLUTIONS for weight in WEIGHTS]
    + [("2d", "int8", True), ("transposed", "int8", True), ("1d", "int4 groups asymmetric", True)],
)
def test_convolutions(name: str, weight: str, rounds: bool, tmp_path: Path) -> None:
    """Weights only, and with a rounded input."""
    torch.manual_seed(0)
    model = nn.Sequential(CONVOLUTIONS[name])
    baraquant.quantize_(model, WEIGHTS[weight], progress=False)
    layer: Any = model[0]
    if rounds:
        layer.input_fake_quant = bnn.FakeQuantize(0.03, -20)
    x = torch.randn(2, 8, *[7] * (layer.qweight.dim() - 2))
    path = exported(model, (x,), tmp_path, style="qdq", dynamic_shapes=({0: "batch"},))
    more = torch.cat([x, x * 2])
    assert error_of(run(path, more), model(more).detach()) < 1e-6
    assert nodes(path)["QuantizeLinear"] == int(rounds)
    assert ("INT8", 12) in [(dtype, shape[0]) for dtype, shape in constants(path).values()]


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


def network(block: Callable[[int], nn.Module]) -> nn.Module:
    """A stem, blocks of two widths, a pooled classifier."""
    torch.manual_seed(0)
    stem = conv(3, 8, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), block(8), block(8)
    wide = conv(8, 16, stride=2), nn.ReLU(), block(16), block(16)
    return nn.Sequential(*stem, *wide, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.parametrize("style", ["qdq", "integer"])
@pytest.mark.parametrize("block", [basic, inverted])
def test_networks_become_int8_convolutions(block: Any, style: str, tmp_path: Path) -> None:
    """onnxruntime computes convolutions in integers where a QuantizeLinear follows."""
    torch.manual_seed(1)
    images = torch.randn(4, 3, 64, 64)
    model = network(block).eval()
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
    weights = {n: dtype for n, (dtype, _) in constants(path).items() if "qweight" in n}
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
