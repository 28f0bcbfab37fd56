# SPDX-License-Identifier: BSD-3-Clause
"""save_pretrained of quantized models: folders that transformers itself reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from tests.hf.models import MODELS, load, logits, saved
from tests.support.optional_packages import package
from tests.support.pytorch_products import products_of_pytorch

pytest.importorskip("transformers")
from baraquant.transformers import BaraquantConfig, use_for_compressed_tensors

WEIGHTS: dict[str, Any] = {
    "W8A16": baraquant.W8A16(),
    "W4A16": baraquant.W4A16(32),
    "W4A16 per channel": baraquant.W4A16(None),
    "dictionary": {"*layer*.0.*": baraquant.W8A16(), nn.Linear: baraquant.W4A16(32)},
    "embeddings": {nn.Embedding: baraquant.W8A16(), nn.Linear: baraquant.W8A16()},
}
INTEGERS: dict[str, Any] = {
    "W8A8": baraquant.W8A8(),
    "W8A8 asymmetric": baraquant.W8A8(symmetric=False),
    "W4A8": baraquant.W4A8(None),
}
CASES = [(name, torch.float32) for name in MODELS]
CASES += [("qwen2", torch.bfloat16), ("tied_llama", torch.float16)]
# transformers cannot load what it writes itself: packed zero points get another shape.
OURS_ALONE: dict[str, Any] = {"W4A16 asymmetric": baraquant.W4A16(32, symmetric=False)}


def quantized(name: str, folder: Path, scheme: Any, dtype: torch.dtype = torch.float32) -> Any:
    config = BaraquantConfig(scheme)
    return load(name, saved(folder, name, dtype), dtype=dtype, quantization_config=config)


def test_file_is_compressed_tensors(tmp_path: Path) -> None:
    model = quantized("llama", tmp_path / "float", baraquant.W8A8())
    model.save_pretrained(tmp_path / "served")
    config = json.loads((tmp_path / "served" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["format"] == "int-quantized"
    assert config["ignore"] == ["model.embed_tokens", "lm_head"]
    with use_for_compressed_tensors():
        read = load("llama", tmp_path / "served")
    assert torch.equal(logits(read), logits(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", WEIGHTS)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_the_same_numbers(name: str, scheme: str, tmp_path: Path) -> None:
    package("compressed_tensors")
    model = quantized(name, tmp_path / "float", WEIGHTS[scheme])
    model.save_pretrained(tmp_path / "served")
    with products_of_pytorch():
        assert torch.equal(logits(load(name, tmp_path / "served")), logits(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", INTEGERS)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_the_same_weights(name: str, scheme: str, tmp_path: Path) -> None:
    """Inputs are rounded by another rule there, so the weights are compared."""
    package("compressed_tensors")
    model = quantized(name, tmp_path / "float", INTEGERS[scheme])
    model.save_pretrained(tmp_path / "served")
    read = load(name, tmp_path / "served")
    outputs, wanted = logits(read), logits(model)
    assert (outputs - wanted).norm() < 0.1 * wanted.norm()
    for path in model.hf_quantizer.report.changed:
        assert torch.equal(read.get_submodule(path).weight, model.get_submodule(path).weight), path


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("scheme", [*WEIGHTS, *INTEGERS, *OURS_ALONE])
def test_our_reader_gives_the_same_bits(
    name: str, scheme: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    chosen = {**WEIGHTS, **INTEGERS, **OURS_ALONE}[scheme]
    model = quantized(name, tmp_path / "float", chosen, dtype)
    model.save_pretrained(tmp_path / "served", max_shard_size="60KB")
    with use_for_compressed_tensors():
        read = load(name, tmp_path / "served", dtype=dtype)
    assert torch.equal(logits(read), logits(model))
    read.save_pretrained(tmp_path / "again")
    with use_for_compressed_tensors():
        again = load(name, tmp_path / "again", dtype=dtype)
    assert torch.equal(logits(again), logits(model))


@pytest.mark.exhaustive
def test_models_quantized_by_hand_are_still_refused(tmp_path: Path) -> None:
    model = load("llama", saved(tmp_path / "float", "llama"))
    baraquant.quantize_(model, baraquant.W8A8())
    with pytest.raises(RuntimeError, match="to_compressed_tensors"):
        model.save_pretrained(tmp_path / "served")
