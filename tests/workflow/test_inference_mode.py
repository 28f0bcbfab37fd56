# SPDX-License-Identifier: BSD-3-Clause
"""Models that are changed under ``torch.inference_mode()`` can be trained and written to later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import AWQ, GPTQ, W4A16, SmoothQuant, W8A8Static
from baraquant.configs import Config
from baraquant.qat import convert_, prepare_
from tests.nn.test_nothing_stale import KINDS, example


def floating(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(KINDS[kind][0]()).eval()


def left_by(entry: str, kind: str, folder: Path) -> nn.Module:
    model, config = floating(kind), KINDS[kind][1]
    if entry in ("prepare_", "convert_"):
        prepare_(model, config)
    else:
        baraquant.quantize_(model, config, calibration=[example(kind)], progress=False)
    if entry == "convert_":
        model.train()(example(kind))
        convert_(model.eval())
    if entry.startswith("load_"):
        baraquant.save(model, folder / "model")
        target = floating(kind) if entry == "load_" else lambda: floating(kind)
        model = baraquant.load_(target, folder / "model")
    return model


ENTRIES = "quantize_", "prepare_", "convert_", "load_", "load_ of a function"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.cover(("kind", "entry"))
def test_called_in_inference_mode(kind: str, entry: str, tmp_path: Path) -> None:
    if kind.startswith("smoothed") and entry in ("prepare_", "convert_"):
        pytest.skip("SmoothQuant is not trained")
    with torch.inference_mode():
        model = left_by(entry, kind, tmp_path)
        assert torch.is_inference_mode_enabled()
    tensors = [*model.parameters(), *model.buffers()]
    assert not any(tensor.is_inference() for tensor in tensors)
    x = example(kind)
    if x.is_floating_point():
        x.requires_grad_()
        model.train(entry == "prepare_")(x).sum().backward()
        assert x.grad is not None
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(tensor.clone())


def test_a_model_of_inference_tensors() -> None:
    """The model was made in that mode, and is changed outside of it; ties stay."""
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        model[2].weight = model[0].weight
    baraquant.quantize_(model, baraquant.W8A8())
    assert not any(tensor.is_inference() for tensor in model.state_dict().values())
    assert model[0].qweight is model[2].qweight and model[1].weight.requires_grad
    model(torch.randn(2, 8, requires_grad=True)).sum().backward()


MODES: dict[str, Callable[[], Any]] = {
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),  # of sums, all the same
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "config", [W8A8Static(), SmoothQuant(0.5), AWQ(W4A16(8)), GPTQ(W4A16(8))], ids=str
)
def test_a_calibration_that_runs_in_a_mode(config: Config, mode: str) -> None:
    data = [torch.randn(64, 16, generator=torch.Generator().manual_seed(1))]

    def run(model: nn.Module) -> None:
        with MODES[mode]():
            model(data[0])

    states = []
    for given in (data, run):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8)).eval()
        model[0].weight.data.uniform_(0.1, 20)
        baraquant.quantize_(model, config, calibration=given, progress=False)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[0][name]) for name, value in states[1].items())


def test_the_fused_ops() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        baraquant.use_fused_ops_(model)
    assert not any(tensor.is_inference() for tensor in model.parameters())
    model(torch.randn(2, 8)).sum().backward()
    assert model[1].weight.grad is not None


def test_the_gradient_mode_stays() -> None:
    for mode in (False, True):
        with torch.set_grad_enabled(mode):
            baraquant.quantize_(nn.Sequential(nn.Linear(8, 8)), baraquant.W8A8())
            assert torch.is_grad_enabled() == mode
