# SPDX-License-Identifier: BSD-3-Clause
"""Tied, separate and shared weights through every file and back: right or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant.export import from_compressed_tensors, to_compressed_tensors
from tests.support.optional_packages import package

package("huggingface_hub")
IDS = torch.arange(64)


class Decoder(nn.Module):
    def __init__(self, weights: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.middle = nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        if weights == "tied":
            self.head.weight = self.embed.weight
        elif weights == "shared":
            self.head.weight = nn.Parameter(self.embed.weight.data)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.middle(self.embed(ids)))


QUANTIZED: dict[str, Any] = {
    "both": {"embed": baraquant.W8A16(), "head": baraquant.W8A8()},
    "embedding": {"embed": baraquant.W8A16()},
    "head": {"head": baraquant.W8A8()},
    "neither": {},
}


def in_folder(model: nn.Module, path: Path, fresh: nn.Module, floats: bool) -> nn.Module:
    to_compressed_tensors(model, path, serve=None, float_embeddings=floats)
    return from_compressed_tensors(fresh, path)


def in_file(model: nn.Module, path: Path, fresh: nn.Module) -> nn.Module:
    baraquant.save(model, path)
    baraquant.load_(fresh, path)
    return fresh


WAYS: dict[str, Callable[[nn.Module, Path, nn.Module], nn.Module]] = {
    "folder": lambda model, path, fresh: in_folder(model, path, fresh, False),
    "folder of floating embeddings": lambda model, path, fresh: in_folder(model, path, fresh, True),
    "file": in_file,
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("into", ["tied", "separate", "shared"])
@pytest.mark.parametrize("quantized", list(QUANTIZED))
@pytest.mark.parametrize("weights", ["tied", "separate", "shared"])
def test_right_or_refused(
    weights: str, quantized: str, into: str, way: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Decoder(weights).eval()
    rules = {"middle": baraquant.W8A8(), **QUANTIZED[quantized]}
    baraquant.quantize_(model, rules, progress=False)
    wanted = model(IDS).detach()
    try:
        read = WAYS[way](model, tmp_path / "it", Decoder(into).eval())
    except ValueError as error:
        assert into == "tied" or quantized == "neither", error
        assert "embed.weight" in str(error) or "head.weight" in str(error), error
    else:
        assert torch.equal(read(IDS).detach(), wanted)
