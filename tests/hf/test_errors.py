# SPDX-License-Identifier: BSD-3-Clause
"""Wrong arguments, and folders that are damaged or contradict themselves."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

import baraquant
from tests.hf.models import build, load, logits, quantized, read_by_us, saved, transformers
from tests.support.compressed_folders import Edit, configured, cut, group, tensors

pytest.importorskip("transformers")
from baraquant.transformers import BaraquantConfig, use_for_compressed_tensors
from baraquant.transformers._versions import IS_5

ARGUMENTS: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    (("W8A8",), TypeError, "expected config to be a QuantConfig"), ((baraquant.W8A8,), TypeError,
    r"the function W8A8; write W8A8\(\)"), ((None,), TypeError, "QuantConfig"), (({},), ValueError,
    "an empty dictionary"), (({"*": 8},), TypeError, r"'\*'"), (({3: baraquant.W8A8()},), TypeError,
    "pattern of paths"), ((baraquant.W8A8Static(),), ValueError,
    "a static input.*baraquant.quantize_"), (({"*": baraquant.W8A8Static()},), ValueError,
    "calibration"), ((baraquant.SmoothQuant(),), ValueError, "SmoothQuant.*calibration="),
    ((baraquant.AWQ(baraquant.W4A16()),), ValueError, "but got AWQ.*calibration="),
    ((baraquant.GPTQ(baraquant.W4A16()),), ValueError, "but got GPTQ.*calibration="),
    ((baraquant.W8A8(), "lm_head"), TypeError, "list of names.*but got str"), ((baraquant.W8A8(),
    [3]), TypeError, "modules_to_not_convert.*3"), ((baraquant.W8A8(), [""]), TypeError,
    "modules_to_not_convert"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "text"), ARGUMENTS)
def test_arguments_of_the_config(arguments: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        BaraquantConfig(*arguments)


def test_arguments_of_the_switch() -> None:
    for name in ("on", "allow_missing"):
        with pytest.raises(TypeError, match=f"expected {name} to be a bool, but got int"):
            use_for_compressed_tensors(**{name: 1})  # type: ignore[arg-type]


LOADING: list[tuple[Any, str]] = [
    (BaraquantConfig(baraquant.W8A8(), ["lm_had"]), "'lm_had' matches none"),
    (BaraquantConfig(baraquant.W8A8(), ["model("]), "matches none"),
    (BaraquantConfig({"decoder.*": baraquant.W8A8()}), r"'decoder\.\*' to match a layer"),
    (BaraquantConfig(baraquant.W4A16(48)), "48"),
    (BaraquantConfig(baraquant.W8A8(), ["model", "lm_head"]), "Linear"),
    (BaraquantConfig({nn.Conv2d: baraquant.W8A16()}), "Conv2d to match a layer"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("config", "text"), LOADING)
def test_configs_that_do_not_fit_the_model(config: Any, text: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama")
    with pytest.raises(ValueError, match=text):
        load("llama", folder, quantization_config=config)


@pytest.mark.exhaustive
def test_models_that_cannot_be_loaded(tmp_path: Path) -> None:
    model, options = build("llama"), {"quantization_config": BaraquantConfig(baraquant.W8A8())}
    folder, places = saved(tmp_path / "llama", "llama"), {"model": "disk", "lm_head": "cpu"}
    with pytest.raises(ValueError, match="device_map of devices"):
        load("llama", folder, device_map=places, **options)
    model.model.layers[1].mlp.up_proj.weight.data[2, 3] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj: expected a finite"):
        load("llama", tmp_path / "nan", **options)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(tmp_path / "none")
    with pytest.raises(ValueError, match="ResNetModel has none"):
        transformers.ResNetModel.from_pretrained(tmp_path / "none", **options)


@pytest.mark.exhaustive
def test_folders_of_other_states(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors", reason="transformers reads such a folder with it")
    folder = served(tmp_path)
    with pytest.raises(ValueError, match="quantized with CompressedTensorsConfig"):
        load("llama", folder, quantization_config=BaraquantConfig(baraquant.W8A8()))
    with (
        use_for_compressed_tensors(),
        pytest.raises(ValueError, match=r"it holds a floating model.*BaraquantConfig"),
    ):
        options = transformers.CompressedTensorsConfig()
        load("llama", tmp_path / "float", quantization_config=options)
    file, own = tmp_path / "float" / "config.json", {"quant_method": "baraquant"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": own}))
    with pytest.raises(ValueError, match=r"quant_method 'baraquant'.*save_pretrained"):
        load("llama", tmp_path / "float")


def served(folder: Path, scheme: Any = None) -> Path:
    model = load("llama", saved(folder / "float", "llama"))
    baraquant.quantize_(model, {"lm_head": None, nn.Linear: scheme or baraquant.W4A16(32)})
    return baraquant.export.to_compressed_tensors(model, folder / "served", serve=None)


def test_a_tensor_that_is_missing(tmp_path: Path) -> None:
    """transformers itself would make one of its own, with a warning."""
    folder = served(tmp_path)
    tensors(lambda state: state.pop("model.embed_tokens.weight"))(folder)
    message = r"from_pretrained: served: model.embed_tokens.weight: .*missing; .*allow_missing"
    with use_for_compressed_tensors(), pytest.raises(ValueError, match=message):
        load("llama", folder)
    with use_for_compressed_tensors(allow_missing=True):
        model = load("llama", folder)
    assert not model.model.embed_tokens.weight.is_meta


Q = "model.layers.1.self_attn.q_proj"
HOSTILE: dict[str, tuple[Edit, str]] = {
    "asymmetric": (group(lambda g: g["weights"].update(symmetric=False)),
        "weight_zero_point.*it is missing"),
    "ignored": (configured(lambda c: c["ignore"].append(Q)),
        f"{Q}: the folder holds a quantized layer"),
    "scale missing": (tensors(lambda t: t.pop(f"{Q}.weight_scale")),
        f"{Q}.weight_scale: expected it in the folder"),
    "scale of another shape": (tensors(lambda t: t.update({f"{Q}.weight_scale": torch.ones(3)})),
        f"{Q}.weight_scale: expected the shape"),
    "floating integers": (tensors(lambda t: t.update({f"{Q}.weight_packed":
        t[f"{Q}.weight_packed"].float()})), f"{Q}.weight_packed: expected torch.int32"),
    "another shape inside": (tensors(lambda t: t.update({f"{Q}.weight_shape":
        torch.tensor([64, 65])})), f"{Q}.weight_shape: expected"),
    "truncated": (cut, "cut off|incomplete metadata"),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", HOSTILE)
def test_folders_that_lie(case: str, tmp_path: Path) -> None:
    folder = served(tmp_path)
    damage, text = HOSTILE[case]
    damage(folder)
    # transformers 4.57 opens the files before it asks anybody.
    kinds = (ValueError, SafetensorError)
    with use_for_compressed_tensors(), pytest.raises(kinds, match=text):
        load("llama", folder)


@pytest.mark.skipif(not IS_5, reason="transformers 4 does not say which files it reads")
def test_files_of_two_saves(tmp_path: Path) -> None:
    """transformers writes config.json and each shard in place: our readers refuse a mixture."""
    for name in ("old", "new"):
        model = quantized("llama", tmp_path / "float", baraquant.W8A8())
        model.save_pretrained(tmp_path / name, max_shard_size="40KB")
    shards = sorted(file.name for file in (tmp_path / "new").glob("*.safetensors"))
    assert len(shards) > 2
    mixed = shutil.copytree(tmp_path / "old", tmp_path / "mixed")
    read_by_us("llama", mixed)
    for name in ("config.json", *shards):
        shutil.copyfile(tmp_path / "new" / name, mixed / name)
        if name == shards[-1]:
            break
        for read in (
            lambda: read_by_us("llama", mixed),
            lambda: baraquant.export.from_compressed_tensors(build("llama"), mixed),
        ):
            with pytest.raises(ValueError, match=r"model-0000.*\(baraquant_save: .*interrupted"):
                read()
    assert torch.equal(logits(read_by_us("llama", mixed)), logits(model))
    baraquant.export.from_compressed_tensors(build("llama"), mixed)
