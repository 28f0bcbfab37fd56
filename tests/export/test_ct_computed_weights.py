# SPDX-License-Identifier: BSD-3-Clause
"""Folders of models whose class computes a weight, as wav2vec 2.0 does by weight_norm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations

import baraquant
from baraquant import W8A8
from baraquant.export import from_compressed_tensors, to_compressed_tensors
from baraquant.qat import convert_, prepare_

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Sound(nn.Module):
    def __init__(self, norm: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.conv = norm(nn.Conv1d(16, 16, 3, groups=2))
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.linear(self.conv(x).mT)


NORMS: dict[str, tuple[Callable[..., nn.Module], list[str]]] = {
    "parametrized": (parametrizations.weight_norm, ["parametrizations.weight.original0",
        "parametrizations.weight.original1"]),
    "dim": (lambda layer: parametrizations.weight_norm(layer, dim=2),
        ["parametrizations.weight.original0", "parametrizations.weight.original1"]),
    "all": (lambda layer: parametrizations.weight_norm(layer, dim=None),
        ["parametrizations.weight.original0", "parametrizations.weight.original1"]),
    "hooked": (torch.nn.utils.weight_norm, ["weight_g", "weight_v"]),
}  # fmt: skip


@pytest.mark.parametrize("way", ["quantize_", "convert_", "load_"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_folder_has_the_tensors_of_the_float_class(norm: str, way: str, tmp_path: Path) -> None:
    """A reader would start a missing parametrization with random numbers."""
    make, names = NORMS[norm]
    torch.manual_seed(0)
    model, x = Sound(make), torch.randn(2, 16, 7)
    fresh, other = Sound(make), Sound(make)
    fresh.load_state_dict(model.state_dict())
    if way == "convert_":
        prepare_(model, W8A8())
        convert_(model)
    else:
        baraquant.quantize_(model, W8A8())
    if way == "load_":
        baraquant.save(model, tmp_path / "it.safetensors")
        model = baraquant.load_(other, tmp_path / "it.safetensors")
    folder = to_compressed_tensors(model, tmp_path / "it", serve=None)
    found = load_file(folder / "model.safetensors")
    assert {f"conv.{name}" for name in (*names, "bias")} == {n for n in found if "conv" in n}
    again = from_compressed_tensors(fresh, folder)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "odd",
    [
        lambda: parametrizations.spectral_norm(nn.Conv1d(16, 16, 1)),
        lambda: parametrizations.weight_norm(nn.Linear(16, 16)),
    ],
    ids=["spectral_norm", "linear"],
)
def test_what_a_folder_cannot_hold_is_an_error(odd: Any, tmp_path: Path) -> None:
    model = nn.ModuleDict({"odd": odd(), "linear": nn.Linear(16, 16)})
    floating = copy.deepcopy(model)
    baraquant.quantize_(model, W8A8())
    with pytest.raises(ValueError, match="odd: expected a weight that is a parameter"):
        to_compressed_tensors(model, tmp_path / "no", serve=None)
    baraquant.quantize_(floating, W8A8(), filter_fn=lambda module, name: name != "odd")
    to_compressed_tensors(floating, tmp_path / "it", serve=None)
