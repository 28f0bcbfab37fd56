# SPDX-License-Identifier: BSD-3-Clause
"""save_pretrained, and use_for_compressed_tensors: folders of several writers and readers.

What stays floating, or is not written, is said.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import baraquant
from baraquant import nn as bnn
from tests.hf import models
from tests.hf.models import TOKENS, build, load, logits, quantized, read_by_us, saved, transformers
from tests.support.compressed_folders import KINDS, tensors, write_by_package
from tests.support.optional_packages import package
from tests.support.pytorch_products import products_of_pytorch
from tests.support.tiny_transformers import build as tiny

pytest.importorskip("transformers")
from baraquant.transformers import BaraquantConfig, use_for_compressed_tensors
from baraquant.transformers._versions import IS_5

WEIGHTS: dict[str, Any] = {
    "W8A16": baraquant.W8A16(),
    "W4A16": baraquant.W4A16(32),
    "W4A16 per channel": baraquant.W4A16(None),
    "W3A16": baraquant.W3A16(32),
    "dictionary": {"*layer*.0.*": baraquant.W8A16(), nn.Linear: baraquant.W4A16(32)},
    "embeddings": {nn.Embedding: baraquant.W8A16(), nn.Linear: baraquant.W8A16()},
}
INTEGERS: dict[str, Any] = {
    "W8A8": baraquant.W8A8(),
    "W8A8 asymmetric": baraquant.W8A8(symmetric=False),
    "W4A8": baraquant.W4A8(None),
}
# transformers cannot load what it writes itself: packed zero points get another shape.
OURS_ALONE: dict[str, Any] = {
    "W4A16 asymmetric": baraquant.W4A16(32, symmetric=False),
    "W2A16": baraquant.W2A16(32),
}
EVERY = models.every_other(WEIGHTS | INTEGERS | OURS_ALONE, "embeddings")


def test_file_is_compressed_tensors(tmp_path: Path) -> None:
    model = quantized("llama", tmp_path / "float", baraquant.W8A8())
    model.save_pretrained(tmp_path / "served")
    config = json.loads((tmp_path / "served" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["format"] == "int-quantized"
    assert config["ignore"] == ["model.embed_tokens", "lm_head"]
    assert torch.equal(logits(read_by_us("llama", tmp_path / "served")), logits(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scheme", "name", "dtype"), EVERY, ids=str)
def test_readers(scheme: str, name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Ours gives the same bits; transformers the same weights, and numbers but for a rounding."""
    chosen = {**WEIGHTS, **INTEGERS, **OURS_ALONE}[scheme]
    model = quantized(name, tmp_path / "float", chosen, dtype)
    model.save_pretrained(tmp_path / "served", max_shard_size="60KB")
    read = read_by_us(name, tmp_path / "served", dtype=dtype)
    assert torch.equal(logits(read), logits(model))
    read.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(read_by_us(name, tmp_path / "again", dtype=dtype)), logits(model))
    if scheme in OURS_ALONE or dtype != torch.float32:
        return
    package("compressed_tensors")
    theirs = load(name, tmp_path / "served")
    with products_of_pytorch():
        outputs, wanted = logits(theirs), logits(model)
    if scheme in WEIGHTS:  # else inputs are rounded, there by another rule
        assert torch.equal(outputs, wanted)
    assert (outputs - wanted).norm() < 0.1 * wanted.norm()
    for path in model.hf_quantizer.report.changed:
        got = theirs.get_submodule(path).weight
        assert torch.equal(got, model.get_submodule(path).weight), path


def test_models_quantized_by_hand_are_still_refused(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "float")
    baraquant.quantize_(model, baraquant.W8A8())
    for one in (model, copy.deepcopy(model)):
        with pytest.raises(RuntimeError, match="to_compressed_tensors"):
            one.save_pretrained(tmp_path / "served")
    assert [path.parent.name for path in tmp_path.rglob("*.safetensors")] == ["float"]


def saved_with(name: str, folder: Path) -> Path:
    add = tensors(lambda state: state.update({name: torch.ones(3)}))
    add(saved(folder, "llama"))
    return folder


@pytest.mark.parametrize("part", ["mtp.fc", "model.layers.2.norm"])
def test_tensors_that_the_class_does_not_know(part: str, tmp_path: Path) -> None:
    source = saved_with(f"{part}.weight", tmp_path / "float")
    for other in ("consolidated", "adapter_model"):  # other weights than the model's
        save_file({"other.weight": torch.ones(3)}, source / f"{other}.safetensors")
    model = transformers.LlamaForCausalLM.from_pretrained(source)
    baraquant.quantize_(model, {torch.nn.Linear: baraquant.W8A8()}, progress=False)
    name = part.removesuffix(".fc").removesuffix(".norm")
    with pytest.warns(UserWarning, match=f"are not written: {name};"):
        folder = baraquant.export.to_compressed_tensors(model, tmp_path / "it", serve=None)
    assert f"`{name}`" in (folder / "README.md").read_text()


def test_loaded_and_saved_again(tmp_path: Path) -> None:
    """The report of ``from_pretrained`` names them, and ``save_pretrained`` warns."""
    source = saved_with("mtp.fc.weight", tmp_path / "float")
    config = BaraquantConfig(baraquant.W8A16())
    model = transformers.LlamaForCausalLM.from_pretrained(source, quantization_config=config)
    assert "LlamaForCausalLM has no place" in model.hf_quantizer.report.left_out["mtp"]
    assert "mtp" in str(model.hf_quantizer.report)
    with pytest.warns(UserWarning, match="save_pretrained: .*are not written: mtp;"):
        model.save_pretrained(tmp_path / "it")


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_one_scheme_says_the_share_of_floating_experts(name: str, tmp_path: Path) -> None:
    if transformers.__version__ < "5":
        pytest.skip("experts are linear layers before transformers 5")
    model = tiny.build(name)
    model.save_pretrained(tmp_path)
    config = BaraquantConfig(baraquant.W8A16())
    with pytest.warns(UserWarning, match=r"experts .* floating: \d+ % of the parameters"):
        type(model).from_pretrained(tmp_path, quantization_config=config)


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
        return bnn.StaticQuantizedLinear
    if kind.startswith("int8 token"):
        return bnn.QuantizedLinear
    return bnn.WeightOnlyLinear if kind.startswith("int8") else bnn.WeightOnlyInt4Linear


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_kinds_of_the_package(name: str, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    package("compressed_tensors")
    theirs = written(name, tmp_path / "x", kind, dtype)
    model = read_by_us(name, tmp_path / "x", dtype=dtype)
    layers = {p: m for p, m in model.named_modules() if isinstance(m, bnn.HoldsIntegers)}
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
    model = read_by_us("llama", tmp_path / "x", quantization_config=options)
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
    assert type(base.layers[0].mlp.up_proj) is bnn.QuantizedLinear


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["tied_llama", "opt", "bert"])
def test_embeddings_of_integers(name: str, tmp_path: Path) -> None:
    """Only this reader loads them; equal ends share their integers again."""
    model = load(name, saved(tmp_path / "float", name))
    baraquant.quantize_(model, {nn.Embedding: baraquant.W8A16(), nn.Linear: baraquant.W8A16()})
    baraquant.export.to_compressed_tensors(model, tmp_path / "x", serve=None)
    read: Any = read_by_us(name, tmp_path / "x")
    assert torch.equal(logits(read), logits(model))
    assert read.get_input_embeddings().qweight is read.get_output_embeddings().qweight
    assert "weight_packed" in str(load_file(tmp_path / "x" / "model.safetensors").keys())
