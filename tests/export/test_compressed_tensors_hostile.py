# SPDX-License-Identifier: BSD-3-Clause
"""Folders that are cut off, lie or are foreign: an error that names the place, no change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from baraquant import export
from tests.support.checks.refused import refused
from tests.support.compressed_folders import (
    Edit,
    block,
    configured,
    cut,
    group,
    quantized,
    tensors,
)
from tests.support.optional_packages import package

package("huggingface_hub")
pytestmark = pytest.mark.exhaustive


def text(content: str) -> Edit:
    return lambda folder: (folder / "config.json").write_text(content)


FOLDERS: dict[str, tuple[Edit, str]] = {
    "truncated": (cut, "model.safetensors: expected .* bytes of data, but .* cut off"),
    "no config": (lambda f: (f / "config.json").unlink(), "No such file .*config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "No such file .*model.safe"),
    "a config that is no JSON": (text("{"), "expected config.json to be JSON"),
    "a list for a config": (text("[]"), "expected config.json with a quantization_config"),
    "a floating model": (text("{}"), "the folder holds a floating model"),
    "a pickle": (lambda f: (f / "model.safetensors").write_bytes(b"PK\x03\x04" + b"\xff" * 99),
        "expected a safetensors file, but it is a zip archive"),
    "another method": (configured(lambda c: c.update(quant_method="gptq")),
        "expected quant_method to be compressed-tensors, but got 'gptq'"),
    "no groups": (configured(lambda c: c.update(config_groups={})), "at least one group"),
    "a cache": (configured(lambda c: c.update(kv_cache_scheme={"a": 1})), "no kv_cache_scheme"),
    "rotations": (configured(lambda c: c.update(transform_config={"a": 1})), "no transform_config"),
    "not compressed": (configured(lambda c: c.update(quantization_status="frozen")),
        "expected the status compressed, but it is 'frozen'"),
    "a bad expression": (configured(lambda c: c.update(ignore=["re:("])), "not an expression"),
    "floats": (group(lambda g: g["weights"].update(type="float")), "expected integers, but type"),
    "another format": (group(lambda g: g.update(format="nvfp4-pack-quantized")), "nvfp4"),
    "sixteen bits": (group(lambda g: g["weights"].update(num_bits=16)), r"lie in \[2, 8\]"),
    "bits in words": (group(lambda g: g["weights"].update(num_bits="8")), r"lie in \[2, 8\]"),
    "reordered columns": (group(lambda g: g["weights"].update(actorder="group")), "in their order"),
    "blocks": (group(lambda g: g["weights"].update(block_structure=[2, 2])),
        "expected no block_structure"),
    "quantized outputs": (group(lambda g: g.update(output_activations={"num_bits": 8})),
        "expected floating outputs"),
    "inputs by channel": (group(lambda g: g["input_activations"].update(strategy="channel")),
        "expected one static scale, or dynamic ones"),
    "a size without groups": (group(lambda g: g["weights"].update(group_size=32)), "group_size"),
    "a scheme that the tensors do not have": (group(lambda g: g["weights"].update(strategy="group",
        group_size=32)), r"weight_scale: expected the shape \[64, 2\], but got \[64, 1\]"),
    "packed but not stored so": (group(lambda g: g.update(format="pack-quantized")),
        "q_proj: expected a tensor weight_packed for"),
    "a target of nothing": (group(lambda g: g.update(targets=["Nothing"])), "no target of its"),
    "a target of a norm": (group(lambda g: g.update(targets=["norm"])), "no quantized LayerNorm"),
    "a layer that is not named": (configured(lambda c: c.update(ignore=["k_proj"])),
        "k_proj.weight: .* is quantized in the folder, but no target of config_groups names it"),
    "a missing scale": (tensors(lambda t: t.pop("v_proj.weight_scale")),
        "v_proj: expected a tensor weight_scale for"),
    "a missing norm": (tensors(lambda t: t.pop("norm.bias")), "norm.bias: expected it in"),
    "a missing bias": (tensors(lambda t: t.pop("q_proj.bias")), "q_proj: expected a bias"),
    "a tensor too many": (tensors(lambda t: t.update(extra=torch.ones(1))),
        "extra: the folder has it, but the model"),
    "reordered columns in tensors": (tensors(lambda t: t.update({"q_proj.weight_g_idx":
        torch.ones(64, dtype=torch.int32)})), "weight_g_idx .*columns were reordered"),
    "another shape": (tensors(lambda t: t.update({"q_proj.weight": torch.ones(64, 32,
        dtype=torch.int8)})), r"q_proj.weight: expected the shape \[64, 64\], but got \[64, 32\]"),
    "another dtype": (tensors(lambda t: t.update({"q_proj.weight": torch.ones(64, 64)})),
        "q_proj.weight: expected torch.int8, but got torch.float32"),
    "a scale of zero": (tensors(lambda t: t["q_proj.weight_scale"].zero_()),
        "q_proj: weight_scale: expected finite numbers > 0"),
    "a scale of NaN": (tensors(lambda t: t["q_proj.weight_scale"].fill_(float("nan"))),
        "q_proj: weight_scale: expected finite numbers > 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(case: str, tmp_path: Path) -> None:
    edit, message = FOLDERS[case]
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out")
    edit(folder)
    errors = (ValueError, OSError)
    refused(export.from_compressed_tensors, message, block(seed=1), folder, error=errors)


def lying_index(change: Callable[[dict[str, str]], object]) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    return edit


INDEXES: dict[str, tuple[Edit, str]] = {
    "a missing shard": (lambda folder: sorted(folder.glob("*.safetensors"))[0].unlink(),
        "No such file .*model-00001-of"),
    "a path": (lying_index(lambda m: m.update({"norm.bias": "../x.safetensors"})),
        "norm.bias: expected the name of a file"),
    "another shard": (lying_index(lambda m: m.update({"norm.bias":
        "model-00001-of-00003.safetensors"})),
        "expected the tensors of the file, but norm.bias is in the"),
    "a tensor of none": (lying_index(lambda m: m.update({"x": m["norm.bias"]})),
        "x is in the index only"),
    "a tensor left out": (lying_index(lambda m: m.pop("norm.bias")),
        "norm.bias is in the file only"),
    "no map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "expected an object weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_indexes(case: str, tmp_path: Path) -> None:
    edit, message = INDEXES[case]
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out", max_shard_size="16KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    export.from_compressed_tensors(block(seed=1), folder)
    edit(folder)
    with pytest.raises((ValueError, OSError), match=message):
        export.from_compressed_tensors(block(seed=1), folder)


def test_a_tensor_that_is_missing(tmp_path: Path) -> None:
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out")
    tensors(lambda state: state.pop("embed.weight"))(folder)
    message = "out: embed.weight: expected it in the folder, but it is missing; allow_missing=True"
    for model in (block(seed=1), lambda: block(seed=1)):
        with pytest.raises(ValueError, match=message):
            export.from_compressed_tensors(model, folder)
    fresh = block(seed=1)
    weight = fresh.embed.weight
    export.from_compressed_tensors(fresh, folder, allow_missing=True)
    assert fresh.embed.weight is weight and type(fresh.q_proj) is not nn.Linear
    with pytest.raises(ValueError, match=message):  # a function leaves no values to keep
        export.from_compressed_tensors(lambda: block(seed=1), folder, allow_missing=True)
    tensors(lambda state: state.pop("q_proj.weight_scale"))(folder)
    with pytest.raises(ValueError, match="out: q_proj: expected a tensor weight_scale"):
        export.from_compressed_tensors(block(seed=1), folder, allow_missing=True)


@pytest.mark.exhaustive
def test_models_that_do_not_fit(tmp_path: Path) -> None:
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out")
    with pytest.raises(TypeError, match="expected model to be a Module"):
        export.from_compressed_tensors(None, folder)
    with pytest.raises(ValueError, match="no target of its config_groups matches"):
        export.from_compressed_tensors(nn.LayerNorm(3), folder)
    with pytest.raises(ValueError, match="it is quantized already; build a new one"):
        export.from_compressed_tensors(quantized(), folder)
    with pytest.raises(ValueError, match=r"convert the model first: model.to\(torch.float32\)"):
        export.from_compressed_tensors(block(torch.bfloat16), folder)
    with pytest.raises(NotADirectoryError, match="expected a folder, but"):
        export.from_compressed_tensors(block(), tmp_path / "none")
