# SPDX-License-Identifier: BSD-3-Clause
"""Layers that servers fuse: one input scale, and zero points that survive the server."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import baraquant
from baraquant import export
from baraquant.export.compressed_tensors.checks import nudged_scale
from baraquant.export.fused import fused_paths
from tests.support.compressed_folders import IDS, Block, block, quantized
from tests.support.models.training_models import train

FUSED = ("q_proj", "k_proj", "v_proj")


def static(symmetric: bool = True) -> Block:
    return quantized(baraquant.W8A8Static(symmetric=symmetric))


def test_paths() -> None:
    paths = [
        "a.q_proj", "a.v_proj", "b.q_proj", "a.up_proj", "gate_proj", "up_proj", "c.w1", "c.w3",
    ]  # fmt: skip
    wanted = [["gate_proj", "up_proj"], ["a.q_proj", "a.v_proj"], ["c.w1", "c.w3"]]
    assert list(fused_paths(paths)) == wanted


def test_layers_that_agree_are_left_alone() -> None:
    model = static()
    before = copy.deepcopy(model.state_dict())
    assert export.tie_fused_scales(model) == []
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.q_proj.act_scale is model.k_proj.act_scale is model.v_proj.act_scale


@pytest.mark.exhaustive
def test_symmetric_layers_get_the_largest_scale(tmp_path: Path) -> None:
    model = static()
    model.k_proj.act_scale = model.k_proj.act_scale * 4
    largest = model.k_proj.act_scale.clone()
    assert export.tie_fused_scales(model) == [list(FUSED)]
    assert all(torch.equal(getattr(model, name).act_scale, largest) for name in FUSED)
    export.to_compressed_tensors(model, tmp_path / "out")


@pytest.mark.exhaustive
def test_asymmetric_layers_get_the_union() -> None:
    model = static(symmetric=False)
    ranges = {"q_proj": (0.1, -100), "k_proj": (0.05, 90), "v_proj": (0.08, 0)}
    for name, (scale, zero_point) in ranges.items():
        getattr(model, name).act_scale = torch.tensor(scale)
        getattr(model, name).act_zero_point = torch.tensor(zero_point, dtype=torch.int32)
    low = min(scale * (-128 - zero) for scale, zero in ranges.values())
    high = max(scale * (127 - zero) for scale, zero in ranges.values())
    assert export.tie_fused_scales(model) == [list(FUSED)]
    scale = (high - low) / 255
    for name in FUSED:
        layer = getattr(model, name)
        assert float(layer.act_scale) == pytest.approx(scale, rel=1e-6)
        assert int(layer.act_zero_point) == round(-128 - low / scale)
    assert export.tie_fused_scales(model) == []


@pytest.mark.exhaustive
def test_smoothed_layers_keep_their_factors() -> None:
    """The divisor of the input contains the scale, so it changes with the scale."""
    model = block()
    scheme = baraquant.SmoothQuant(0.5, baraquant.W8A8Static())
    baraquant.quantize_(model, scheme, calibration=[IDS], progress=False)
    layers = [getattr(model, name) for name in FUSED]
    layers[0].smooth_scale = torch.rand(64) + 0.5
    layers[0].act_scale = torch.tensor(0.01)
    factors = layers[0].smooth_scale / layers[0].act_scale
    export.tie_fused_scales(model)
    torch.testing.assert_close(layers[0].smooth_scale / layers[0].act_scale, factors)


@pytest.mark.exhaustive
def test_prepared_layers_share_what_they_learn() -> None:
    model = block()
    learned = baraquant.TensorConfig(8, baraquant.PerTensor(), learned=True)
    config = baraquant.QuantConfig(baraquant.TensorConfig(8), learned)
    baraquant.qat.prepare_(model, {nn.Linear: config, nn.Embedding: None})
    model.train()
    model(IDS)
    assert export.tie_fused_scales(model) == [list(FUSED)]
    train(model, IDS, IDS, IDS, lr=0.1).eval()
    wanted = model(IDS)
    baraquant.qat.convert_(model)
    scales = {float(getattr(model, name).act_scale) for name in FUSED}
    assert len(scales) == 1
    assert torch.equal(model(IDS), wanted)


@pytest.mark.exhaustive
def test_layers_that_cannot_be_tied() -> None:
    model = static()
    model.k_proj = static(symmetric=False).k_proj
    with pytest.raises(ValueError, match="q_proj, k_proj, v_proj: expected layers whose inputs"):
        export.tie_fused_scales(model)
    with pytest.raises(TypeError, match="expected model to be a Module, but got int"):
        export.tie_fused_scales(3)


@pytest.mark.exhaustive
def test_nudged_scales_survive_the_server() -> None:
    """What vLLM's CUDA path computes from the scale and the zero point, in float32."""

    def rebuilt(scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        high, low = scale * (127 - zero), scale * (-128 - zero)
        return (-128 - low / ((high - low) / 255)).to(torch.int32)

    generator = torch.Generator().manual_seed(0)
    wrong = refused = 0
    for _ in range(5000):
        scale = torch.rand((), generator=generator) * 0.1 + 1e-4
        zero = torch.randint(-128, 128, (), generator=generator, dtype=torch.int32)
        nudged = nudged_scale(scale, zero)
        around = scale.view(torch.int32) + torch.arange(-4, 5, dtype=torch.int32)
        survive = rebuilt(around.view(torch.float32), zero) == zero
        wrong += not survive[4]
        refused += nudged is None
        assert (nudged is None) == (not survive.any())
        if nudged is not None:
            ulps = int(nudged.view(torch.int32)) - int(scale.view(torch.int32))
            assert rebuilt(nudged, zero) == zero
            assert abs(ulps) == int((torch.nonzero(survive).flatten() - 4).abs().min())
    assert 0.05 < wrong / 5000 < 0.15
    assert refused / 5000 < 0.02
