# SPDX-License-Identifier: BSD-3-Clause
"""``rotate=`` for whole models: which layers are rotated; in files, graphs and exports."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W4A16, W8A16, QuantConfig, W8A8Static, ops
from baraquant.qat import convert_, prepare_
from tests.support.models.outlier_models import Tied, relative_error, seeded, tokens

W8 = baraquant.W8A8(rotate=16)


def block() -> nn.Module:
    """Layers that are rotated in blocks of 32, 64 and 8, and one that cannot be."""
    torch.manual_seed(0)
    up, norm, down = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 40)
    tail = {"head": nn.Linear(40, 9), "odd": nn.Linear(9, 5)}
    return nn.Sequential(OrderedDict(up=up, norm=norm, down=down, **tail))


def inputs(seed: int = 1) -> Tensor:
    x = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(seed))
    x[..., 5] *= 20
    return x


def test_which_blocks_and_what_the_reports_say() -> None:
    config, model = baraquant.W8A8(rotate=32), block()
    blocks = {"up": ", rotate=32", "down": ", rotate=32", "head": ", rotate=8", "odd": ""}
    plain = str(baraquant.W8A8())
    report = prepare_(model, config)
    prepared = {name: f"FakeQuantizedLinear({plain}{text})" for name, text in blocks.items()}
    assert report.changed == prepared
    converted = {name: f"QuantizedLinear{text}" for name, text in blocks.items()}
    assert convert_(model).changed == converted
    assert baraquant.quantize_(block(), config).changed == converted
    assert str(model.head).endswith(", rotate=8)") and "rotate" not in str(model.odd)


@pytest.mark.exhaustive
@pytest.mark.parametrize("trains", [True, False])
def test_shared_weights_are_not_rotated(trains: bool) -> None:
    model, data = seeded(Tied), tokens()[0]
    model.first.key.weight = model.first.query.weight
    wanted = model(data).detach()
    report = prepare_(model, W8) if trains else baraquant.quantize_(model, W8)
    rotated = [name for name, text in report.changed.items() if "rotate=16" in text]
    assert rotated == [f"first.{name}" for name in ("out", "up", "down")]
    assert set(report.changed) == {*rotated, "first.query", "first.key", "embedding", "head"}
    assert model.first is model.second
    if trains:
        assert model.head._parameters["weight"] is model.embedding._parameters["weight"]
        assert model.first.key._parameters["weight"] is model.first.query._parameters["weight"]
        convert_(model)
    assert model.first.key.qweight is model.first.query.qweight
    assert relative_error(model(data), wanted) < 0.05


@pytest.mark.exhaustive
@pytest.mark.parametrize("observer", ["min_max", "percentile", "mse"])
def test_calibration_sees_the_rotated_input(observer: str) -> None:
    config = W8A8Static(observer, rotate=32)
    rotated, plain = nn.Sequential(nn.Linear(32, 8)), nn.Sequential(nn.Linear(32, 8))
    baraquant.quantize_(rotated, config, calibration=[inputs(), inputs(2)], progress=False)
    turned = [ops.hadamard(inputs(seed), 32) for seed in (1, 2)]
    baraquant.quantize_(plain, config.with_rotation(0), calibration=turned, progress=False)
    assert torch.equal(rotated[0].act_scale, plain[0].act_scale)
    prepared, seen = nn.Sequential(nn.Linear(32, 8)), []
    prepared[0].register_forward_hook(lambda layer, args, y: seen.append(args[0].clone()))
    prepare_(prepared, config, calibration=[inputs(), inputs(2)], progress=False)
    assert torch.equal(seen[-1], inputs(2)), "a hook sees the input of the layer"
    assert torch.equal(prepared.eval()[0].input_fake_quant.scale, plain[0].act_scale)
    if observer == "min_max":
        assert rotated[0].act_scale == max(one.abs().max() for one in turned) / 127


@pytest.mark.exhaustive
@pytest.mark.parametrize("alpha", [0.5, "search"])
def test_a_smoothing_folds_into_a_rotated_layer(alpha: Any) -> None:
    """The rows of a rotated weight are divided as those of another."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    model[0].weight.data[3] *= 30  # channel 3 of the second layer's input
    wanted = model(inputs()).detach()
    schemes = {"0": W8, "1": baraquant.SmoothQuant(alpha)}
    report = baraquant.quantize_(model, schemes, calibration=[inputs()], progress=False)
    assert report.changed["0"] == "QuantizedLinear, rotate=16"
    assert report.changed["1"].endswith("folded into 0")
    assert (model(inputs()) - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "scheme", [W8, W8A8Static("mse", False, rotate=8), W8A16(rotate=16), W4A16(16, rotate=32)]
)
def test_exported(scheme: QuantConfig) -> None:
    model = block()
    baraquant.quantize_(model, scheme, calibration=[inputs()], progress=False)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (inputs(),), dynamic_shapes=({0: batch},))
    for x in (inputs(), inputs()[:3]):
        assert torch.equal(program.module()(x), model(x))
    nodes = {str(node.target) for node in program.graph.nodes}
    assert "baraquant.hadamard.default" in nodes
    # AOTInductor hands the dtype argument of an op on as a number: the program has no such op.
    assert "baraquant.int8_linear.default" not in nodes


@pytest.mark.exhaustive
def test_pt2e_ops() -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    baraquant.quantize_(model, baraquant.W8A8(symmetric=False, rotate=16))
    model[0].qweight.clamp_(min=-127)
    program = torch.export.export(baraquant.export.to_pt2e_ops(model), (inputs(),))
    assert not any("baraquant" in str(node.target) for node in program.graph.nodes)
    wanted = model(inputs())
    assert (program.module()(inputs()) - wanted).norm() < 1e-2 * wanted.norm()
