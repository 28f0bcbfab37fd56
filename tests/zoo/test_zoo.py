# SPDX-License-Identifier: BSD-3-Clause
"""A part of the zoo; `make zoo` runs all of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers

from tests.support.tiny_transformers.build import TINY
from tests.zoo import run, torchvision_support
from tests.zoo.cells import ARCHITECTURES, NOT_RUN, OTHERS, Cell, planned
from tests.zoo.checks import examine
from tests.zoo.loading import load_back
from tests.zoo.schemes import SCHEMES

# The short run takes these: each scheme, both dtypes, and what the other models lack.
SHORT = [
    Cell("bert", "w8a8", "float32"),  # a tied head with a bias of its own
    Cell("deberta_v2", "w8a8", "float32"),  # an embedding whose table is a tensor
    Cell("t5", "w4a16", "float32"),  # a relative bias, a shared table, the dtype of a weight
    Cell("bart", "w8a8", "float32"),  # embeddings with a forward of their own, tied
    Cell("mamba", "w8a8", "float32"),  # a convolution and a projection by their weights
    Cell("vit", "w8a8", "float32"),  # the dtype of a convolution's weight
    Cell("whisper", "w8a16", "float32"),
    Cell("wavlm", "w8a8", "float32"),  # attention by the weights of its projections
    Cell("llama", "w8a8", "bfloat16"),
    Cell("gpt2", "w4a16", "float32"),
    Cell("olmoe", "w8a8_asymmetric", "float32"),
    Cell("gemma3", "learned", "float32"),
    Cell("bamba", "w4a8", "float32"),
    Cell("unet", "static", "float32"),
    Cell("clip", "smoothquant", "float32"),
    Cell("lstm_tagger", "mixed", "float32"),
]


def once_each() -> list[Any]:
    """Each architecture of transformers and torch once; torchvision has a process of its own.

    `make zoo` knows less of transformers than the tests.
    """
    few = {cell.architecture for cell in SHORT}
    schemes = list(SCHEMES)
    more = [
        Cell(name, schemes[position % len(schemes)], "float32")
        for position, (name, row) in enumerate(ARCHITECTURES.items())
        if name not in few and row.package != "torchvision"
    ]
    more += [Cell(name, "w8a8", "float32") for name in OTHERS]
    return [*SHORT, *(pytest.param(cell, marks=pytest.mark.exhaustive) for cell in more)]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("cell", once_each(), ids=str)
def test_cell(cell: Cell, tmp_path: Path) -> None:
    """All checks of a cell; what is saved is loaded in this process."""
    if cell.architecture in TINY:
        for needed in (TINY[cell.architecture].model, TINY[cell.architecture].config):
            if not hasattr(transformers, needed):
                pytest.skip(f"transformers {transformers.__version__} has no {needed}")
    result = examine(cell, tmp_path, "cpu")
    if result.status == NOT_RUN:
        pytest.skip(result.reason)
    assert result.failed == {}
    assert load_back(cell, tmp_path, "cpu") == {}
    assert list(tmp_path.iterdir()) == []


def test_every_pair_is_planned() -> None:
    cells = planned(full=False)
    for a, b in (("architecture", "scheme"), ("scheme", "dtype"), ("architecture", "dtype")):
        pairs = {(getattr(c, a), getattr(c, b)) for c in planned(full=True)}
        assert {(getattr(c, a), getattr(c, b)) for c in cells} == pairs
    assert len({row.package for row in ARCHITECTURES.values()}) == 3


@pytest.mark.process
def test_the_runner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes of its own, the results and the page; torchvision where it is installed."""
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    cells = ["--only", "unet:w8a8:float32", "--only", "torchvision_vit:w8a8:float32"]
    code = run.main([*cells, "--jobs", "1", "--json", str(results), "--markdown", str(page)])
    unet, vit = json.loads(results.read_text())
    assert code == 0, capsys.readouterr().out
    assert {"quantized", "trained", "converted", "gradients", "loaded"} <= set(unet["passed"])
    assert vit["status"] == ("passed" if torchvision_support.missing() is None else NOT_RUN)
    assert "| unet | segmentation, ConvTranspose2d |" in page.read_text()


def test_the_torchvision_of_a_torch() -> None:
    belongs = torchvision_support.belongs
    assert belongs("0.26.0+cu130", "2.11.0") and belongs("0.28.0", "2.13.0+cpu")
    assert belongs("0.29.0", "2.14.0") and belongs("0.29.2", "2.14.1")
    assert belongs("0.29.1", "2.15.0+cu132") and belongs("0.29.2+cpu", "2.15.0")
    assert not belongs("0.28.0", "2.14.0") and not belongs("0.29.2", "2.13.0")
    assert not belongs("0.29.0", "2.15.0")  # built for torch 2.14 alone
