# SPDX-License-Identifier: BSD-3-Clause
"""The examples of the workflow's documentation run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

import baraquant
from baraquant import configs, nn, qat
from tests.support.docstrings import run_examples

WITHOUT = {"FakeQuantizedConv1D", "FakeQuantizedEmbedding"}
WITHOUT |= {"FakeQuantizedExperts", "QuantizedExperts"}
# What a user's own layers build on; docs/guide.md has an example of both.
BASES = {"HoldsIntegers", "QuantizesWeight"}
CLASSES = [name for name in nn.__all__ if name[0].isupper() and name not in WITHOUT | BASES]


@pytest.mark.parametrize("name", CLASSES)
def test_modules(name: str) -> None:
    run_examples(getattr(nn, name), name)


def test_functions() -> None:
    torch.manual_seed(0)
    run_examples(qat, "qat")
    run_examples(qat.prepare_, "prepare_")
    run_examples(qat.convert_, "convert_")
    run_examples(configs.TensorConfig, "TensorConfig")
    run_examples(configs.QuantConfig, "QuantConfig")
    run_examples(baraquant.quantize_, "quantize_")
    run_examples(baraquant.AWQ, "AWQ")
    run_examples(baraquant.GPTQ, "GPTQ")


def test_sensitivity() -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_examples(baraquant.sensitivity, "sensitivity")


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(baraquant.save, "save")
    run_examples(baraquant.load_, "load_")


@pytest.mark.parametrize("name", nn.__all__)
def test_everything_is_documented(name: str) -> None:
    text = getattr(nn, name).__doc__
    assert text
    if name[0].isupper() and name not in BASES:
        assert "Args:" in text or re.search(r"is as in :class:`\w+`, whose arguments it has", text)


def test_names() -> None:
    assert set(baraquant.__all__) <= set(dir(baraquant))
