# SPDX-License-Identifier: BSD-3-Clause
"""use_for_compressed_tensors: what the package compressed-tensors writes, in baraquant's layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import baraquant
from baraquant.nn import (
    HoldsIntegers,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyInt4Linear,
    WeightOnlyLinear,
)
from tests.hf.models import TOKENS, build, load, logits, saved, transformers
from tests.support.compressed_folders import KINDS, write_by_package
from tests.support.optional_packages import package

pytest.importorskip("transformers")
from baraquant.transformers import use_for_compressed_tensors
from baraquant.transformers._versions import IS_5


def written(name: str, folder: Path, kind: str, dtype: torch.dtype) -> nn.Module:
    """A folder that the package wrote; returns its model with the dequantized weights."""
    model = build(name, dtype)
    package_model = write_by_package(model, folder, kind, ["Linear"], ["lm_head"])
    given = json.loads((folder / "config.json").read_text())
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | given
    (folder / "config.json").write_text(json.dumps(config))
    return package_model


def kind_of(kind: str) -> type[nn.Module]:
    if "static" in kind:
        return StaticQuantizedLinear
    if kind.startswith("int8 token"):
        return QuantizedLinear
    return WeightOnlyLinear if kind.startswith("int8") else WeightOnlyInt4Linear


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_kinds_of_the_package(name: str, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    package("compressed_tensors")
    theirs = written(name, tmp_path / "x", kind, dtype)
    with use_for_compressed_tensors():
        model = load(name, tmp_path / "x", dtype=dtype)
    layers = {p: m for p, m in model.named_modules() if isinstance(m, HoldsIntegers)}
    assert len(layers) == 14
    assert {type(layer) for layer in layers.values()} == {kind_of(kind)}
    for path, layer in layers.items():
        assert torch.equal(layer.weight, theirs.get_submodule(path).weight), path
    assert logits(model).dtype == dtype


def test_the_switch_and_the_way_back(tmp_path: Path) -> None:
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING as QUANTIZERS

    theirs = QUANTIZERS["compressed-tensors"]
    with use_for_compressed_tensors():
        ours = QUANTIZERS["compressed-tensors"]
        assert ours is not theirs
        with use_for_compressed_tensors(False):
            assert QUANTIZERS["compressed-tensors"] is theirs
        assert QUANTIZERS["compressed-tensors"] is ours
    assert QUANTIZERS["compressed-tensors"] is theirs
    use_for_compressed_tensors()
    use_for_compressed_tensors()
    use_for_compressed_tensors(False)
    assert QUANTIZERS["compressed-tensors"] is theirs


@pytest.mark.exhaustive
def test_dequantize_goes_to_transformers(tmp_path: Path) -> None:
    package("compressed_tensors")
    theirs = written("llama", tmp_path / "x", "int4 group", torch.float32)
    name = {"dequantize": True} if IS_5 else {"run_compressed": False}
    options = transformers.CompressedTensorsConfig(**name)
    with use_for_compressed_tensors():
        model = load("llama", tmp_path / "x", quantization_config=options)
    projection = model.model.layers[0].mlp.up_proj
    assert type(projection) is nn.Linear
    assert torch.equal(projection.weight, theirs.model.layers[0].mlp.up_proj.weight)


@pytest.mark.exhaustive
def test_base_model_of_a_folder_with_a_head(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    model = load("llama", saved(tmp_path / "float", "llama"))
    baraquant.quantize_(model, {"*": baraquant.W8A8()})
    baraquant.export.to_compressed_tensors(model, folder, serve=None, float_embeddings=True)
    with use_for_compressed_tensors():
        base = transformers.AutoModel.from_pretrained(folder)
    assert torch.equal(base(TOKENS).last_hidden_state, model.model(TOKENS).last_hidden_state)
    assert type(base.layers[0].mlp.up_proj) is QuantizedLinear


@pytest.mark.exhaustive
def test_static_model_from_calibration(tmp_path: Path) -> None:
    model = load("llama", saved(tmp_path / "float", "llama"))
    for symmetric in (True, False):
        copy = load("llama", tmp_path / "float")
        scheme = {"lm_head": None, nn.Linear: baraquant.W8A8Static(symmetric=symmetric)}
        baraquant.quantize_(copy, scheme, calibration=lambda m: m(TOKENS), progress=False)
        folder = tmp_path / str(symmetric)
        baraquant.export.to_compressed_tensors(copy, folder, serve=None)
        with use_for_compressed_tensors():
            read = load("llama", folder)
        assert torch.equal(logits(read), logits(copy))
        assert not torch.equal(logits(read), logits(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["tied_llama", "opt", "bert"])
def test_embeddings_of_integers(name: str, tmp_path: Path) -> None:
    """Only this reader loads them; equal ends share their integers again."""
    model = load(name, saved(tmp_path / "float", name))
    baraquant.quantize_(model, {nn.Embedding: baraquant.W8A16(), nn.Linear: baraquant.W8A16()})
    baraquant.export.to_compressed_tensors(model, tmp_path / "x", serve=None)
    with use_for_compressed_tensors():
        read: Any = load(name, tmp_path / "x")
    assert torch.equal(logits(read), logits(model))
    assert read.get_input_embeddings().qweight is read.get_output_embeddings().qweight
    assert "weight_packed" in str(load_file(tmp_path / "x" / "model.safetensors").keys())
