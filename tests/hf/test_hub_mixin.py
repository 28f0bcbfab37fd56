# SPDX-License-Identifier: BSD-3-Clause
"""Models that are not of transformers, in the hub's own format: PyTorchModelHubMixin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from tests.support.optional_packages import package

hub = package("huggingface_hub")


class Net(nn.Module, hub.PyTorchModelHubMixin):  # type: ignore[misc]
    """A model that saves itself with baraquant.save, and loads itself with baraquant.load_."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.conv(self.embed(ids).mT).mean(dim=-1))

    def _save_pretrained(self, save_directory: Path) -> None:
        baraquant.save(self, save_directory / "model.safetensors")

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, revision: Any, cache_dir: Any, force_download: bool,
        local_files_only: bool, token: Any, map_location: str = "cpu", strict: bool = False,
        proxies: Any = None, resume_download: Any = None,  # of huggingface_hub before 1.0
        **sizes: Any,
    ) -> Net:  # fmt: skip
        file = Path(model_id) / "model.safetensors"
        if not file.is_file():
            file = hub.hf_hub_download(
                model_id, file.name, revision=revision, cache_dir=cache_dir, token=token,
                force_download=force_download, local_files_only=local_files_only,
            )  # fmt: skip
        model = cls(**sizes)
        baraquant.load_(model, file)
        return model.to(map_location)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "scheme",
    [baraquant.W8A8(), baraquant.W4A16(8, symmetric=False), {nn.Linear: baraquant.W8A8()}],
    ids=str,
)
def test_equal_bits_after_reload(scheme: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net(width=24).eval()
    baraquant.quantize_(model, scheme)
    model.save_pretrained(tmp_path / "net")
    ids = torch.arange(12).reshape(2, 6) % 10
    read = Net.from_pretrained(tmp_path / "net").eval()
    assert read.conv.in_channels == 24  # the arguments of the constructor are in config.json
    assert torch.equal(read(ids), model(ids))
    assert {n: type(m) for n, m in read.named_modules()} == {
        n: type(m) for n, m in model.named_modules()
    }


@pytest.mark.exhaustive
def test_prepared_and_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    baraquant.qat.prepare_(model, baraquant.W8A8())
    ids = torch.arange(12).reshape(2, 6) % 10
    model(ids).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    baraquant.qat.convert_(model.eval())
    model.save_pretrained(tmp_path / "net")
    assert torch.equal(Net.from_pretrained(tmp_path / "net").eval()(ids), model(ids))
