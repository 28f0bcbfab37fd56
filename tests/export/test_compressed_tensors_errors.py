# SPDX-License-Identifier: BSD-3-Clause
"""Models that a folder or its server cannot hold, and places that cannot be written.

Folders that are cut off, lie or are foreign: an error that names the place, no change.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import export
from baraquant.export.compressed_tensors.checks import nudged_scale
from tests.support import compressed_folders
from tests.support.checks.refused import refused
from tests.support.compressed_folders import IDS, Edit, block, configured, group, quantized, tensors
from tests.support.models.made import prepared
from tests.support.models.made import quantized as made
from tests.support.optional_packages import package
from tests.support.schemes import described

package("huggingface_hub")


def static(scales: dict[str, float], symmetric: bool = True, zero_point: int = 0) -> nn.Module:
    model = quantized(baraquant.W8A8Static(symmetric=symmetric))
    for path, scale in scales.items():
        layer = model.get_submodule(path)
        layer.act_scale = torch.tensor(scale)
        if not symmetric:
            layer.act_zero_point = torch.tensor(zero_point, dtype=torch.int32)
    return model


def meta() -> nn.Module:
    model = quantized()
    model.norm.to("meta")
    return model


def conv1d() -> nn.Module:
    package("transformers")
    from transformers.pytorch_utils import Conv1D

    return nn.Sequential(Conv1D(32, 32), nn.Linear(32, 32))


def float16_w4a16(group_size: int = 32, symmetric: bool = True, bits: int = 4) -> nn.Module:
    zero_point = "symmetric" if symmetric else "asymmetric"
    config = described(f"int{bits} per_group({group_size}) {zero_point}", scale_dtype="float16")
    return quantized(config, torch.float16)


MODELS: dict[str, tuple[Any, ...]] = {
    "no module": (lambda: 3, "expected model to be a Module, but got int"),
    "float": (block, "without a quantized layer; call baraquant.quantize_"),
    "prepared": (lambda: prepared(block(), baraquant.W8A8()),
        "expected converted layers, but it is prepared for training; call"),
    "smoothing": (lambda: made(block(), baraquant.SmoothQuant(), IDS),
        "o_proj: its input is divided by a smoothing factor"),
    "rotated": (lambda: quantized(baraquant.W8A8(rotate=16)),
        r"q_proj: .*its input is rotated \(rotate=16\).*without rotate"),
    "convolutions alone": (lambda: made(nn.Sequential(nn.Conv2d(3, 4, 3)), baraquant.W8A16()),
        "expected a quantized Linear or Embedding, but 0"),
    "fused schemes": (lambda: quantized({"q_proj": baraquant.W8A8(), "k_proj": baraquant.W8A16()}),
        "fused_schemes: vLLM computes q_proj int8"),
    "fused with a float one": (lambda: quantized({"q_proj": baraquant.W8A8(), "k_proj":
        baraquant.W8A8()}), "fused_schemes: .* v_proj float"),
    "fused scales": (lambda: static({"q_proj": 0.1}),
        "fused_input_scale: q_proj, k_proj, v_proj have the input scales 0.1, .*tie_fused_scales"),
    "no kernel": (lambda: quantized(baraquant.W4A8(32, group_factors=False)),
        "kernels: q_proj: vLLM has no kernel for int4 group"),
    "odd sizes": (lambda: made(nn.Sequential(nn.Linear(24, 24)), baraquant.W8A8()),
        r"shapes: 0: .* multiples of 16 .*\[24, 24\]"),
    "groups of 16": (lambda: float16_w4a16(16), "shapes: q_proj: .* groups of 32, 64 or 128"),
    "three bits": (lambda: float16_w4a16(bits=3), "widths: q_proj: vLLM's Marlin"),
    "float32 around packed": (lambda: quantized(baraquant.W4A16(32)),
        "half_models: q_proj: vLLM computes packed weights in bfloat16"),
    "rounded scales": (lambda: quantized(baraquant.W4A16(32), torch.bfloat16),
        "rounded_scales: q_proj: the server rounds its scales to bfloat16.*scale_dtype='bfloat16'"),
    "zero points for transformers": (lambda: float16_w4a16(symmetric=False),
        "packed_zero_points: q_proj: transformers cannot load", {"serve": "transformers"}),
    "integer scales": (lambda: quantized(dtype=torch.bfloat16),
        "integer_scales: q_proj: transformers rounds its scales to bfloat16",
        {"serve": "transformers"}),
    "server": (quantized, "expected serve to be 'vllm', 'sglang', 'transformers'", {"serve": "x"}),
    "a rule unknown": (quantized, "expected allow to name rules of kernels", {"allow": ["x"]}),
    "data on meta": (meta, "norm.weight: expected a plain tensor with data"),
    "unpacked attention": (lambda: made(nn.TransformerEncoderLayer(32, 2, 64), baraquant.W8A8()),
        "self_attn: expected layers with the names"),
    "Conv1D": (lambda: made(conv1d(), baraquant.W8A16()),
        "0: the format has no integers for a Conv1D, .* use baraquant.save", {"serve": None}),
    "Conv1D of integers": (lambda: made(conv1d(), baraquant.W8A8()),
        "0: the format has no integers for a Conv1D, .* use baraquant.save", {"serve": None}),
    "a tokenizer that is none": (quantized, "expected tokenizer to have", {"tokenizer": 1}),
    "a source that is none": (quantized, "expected source to be a folder", {"source": "none"}),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", MODELS)
def test_models(case: str, tmp_path: Path) -> None:
    make, message, *options = MODELS[case]
    model = make()
    with pytest.raises((ValueError, TypeError, NotADirectoryError), match=message):
        export.to_compressed_tensors(model, tmp_path / "out", **dict(*options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_zero_point_that_the_server_would_change(tmp_path: Path) -> None:
    """It rebuilds it wrongly for all of 4 ulps around the scale."""
    random = torch.Generator().manual_seed(0)

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        scale = torch.rand((), generator=random) * 0.1 + 1e-3
        return scale, torch.randint(-128, 128, (), generator=random)

    pairs = (drawn() for _ in range(20000))
    scale, zero = next(pair for pair in pairs if nudged_scale(*pair) is None)
    paths = ("q_proj", "k_proj", "v_proj", "o_proj")
    model = static(dict.fromkeys(paths, float(scale)), False, int(zero))
    with pytest.raises(ValueError, match="static_zero_point: q_proj: vLLM on CUDA would rebuild"):
        export.to_compressed_tensors(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    export.to_compressed_tensors(model, tmp_path / "out", allow=["static_zero_point"])


def test_rules_can_be_allowed(tmp_path: Path) -> None:
    model = quantized(baraquant.W4A16(32))
    rules = ["half_models", "rounded_scales"]
    folder = export.to_compressed_tensors(model, tmp_path / "out", allow=rules)
    assert {p.name for p in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.exhaustive
def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="is a folder that is not empty; remove it"):
        export.to_compressed_tensors(model, tmp_path / "full")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file; remove it"):
        export.to_compressed_tensors(model, tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="expected a folder that can be written to"):
        export.to_compressed_tensors(model, tmp_path / "none" / "out")

    def refuse(*args: Any, **kwargs: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match=r"can be written to, but .*: Permission denied"):
        export.to_compressed_tensors(model, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


@pytest.mark.exhaustive
def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    model, write = quantized(), export.to_compressed_tensors
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"huggingface_hub is not installed; .*baraquant\[hf\]"):
        write(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


PACKED = {"scale_dtype": "bfloat16"}


@pytest.mark.parametrize("config", ["int8, int8 per_token", "int4 per_group(32)", "int8"])
def test_sglang_takes(config: str, tmp_path: Path) -> None:
    options = PACKED if "," not in config else {}
    model = quantized(described(config, **options), torch.bfloat16)
    assert export.to_compressed_tensors(model, tmp_path / "it", serve="sglang").is_dir()


SGLANG: dict[str, tuple[Any, str]] = {
    "static": (baraquant.W8A8Static(), "static_inputs: q_proj: SGLang ignores the static scale"),
    "static with zero point": (baraquant.W8A8Static(symmetric=False), "static_inputs: q_proj"),
    "zero point": (baraquant.W8A8(symmetric=False), "input_zero_points: q_proj: SGLang rounds"),
    "groups of integers": (baraquant.W4A8(32, group_factors=False), "sglang_kernels: q_proj"),
    "packed zero points": (baraquant.W4A16(32, symmetric=False, **PACKED),
        "sglang_kernels: q_proj: SGLang has no kernel"),
    "five bits": (described("int5", **PACKED), "sglang_kernels: q_proj"),
    "rounded scales": (baraquant.W4A16(32), "rounded_scales: q_proj"),
    "formats": ({"o_proj": baraquant.W4A16(32, **PACKED), nn.Linear: baraquant.W8A8(),
        nn.Embedding: None}, "one_format: expected layers of one format"),
    "fused schemes": ({"q_proj": baraquant.W8A8(), "k_proj": baraquant.W8A8()},
        "fused_schemes: SGLang computes"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SGLANG))
def test_what_sglang_computes_otherwise(name: str, tmp_path: Path) -> None:
    config, message = SGLANG[name]
    model = quantized(config, torch.bfloat16)
    with pytest.raises(ValueError, match=message) as raised:
        export.to_compressed_tensors(model, tmp_path / "served", serve="sglang")
    assert not list(tmp_path.iterdir())
    rule = str(raised.value).split(": ")[1]
    others = {"static_inputs", "input_zero_points", "sglang_kernels"} - {rule}
    export.to_compressed_tensors(model, tmp_path / "x", serve="sglang", allow=[rule, *others])


def test_sglang_takes_sixteen_bits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sixteen_bits: q_proj: SGLang computes"):
        export.to_compressed_tensors(quantized(), tmp_path / "served", serve="sglang")


# --- folders that are read ------------------------------------------------------------------------


def text(content: str) -> Edit:
    return lambda folder: (folder / "config.json").write_text(content)


FOLDERS: dict[str, tuple[Edit, str]] = {
    "cut": (compressed_folders.cut, "model.safetensors: expected .* bytes of data, but .* cut off"),
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


def lying_index(change: Callable[[dict[str, str]], object]) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    return edit


SHARDED: dict[str, tuple[Edit, str]] = {
    "a missing shard": (lambda folder: sorted(folder.glob("*.safetensors"))[0].unlink(),
        "No such file .*model-00001-of"),
    "a path": (lying_index(lambda m: m.update({"norm.bias": "../x.safetensors"})),
        "norm.bias: expected the name of a file"),
    "another shard": (lying_index(lambda m: m.update({"norm.bias":
        "model-00001-of-00003.safetensors"})),
        "expected the tensors of the file, but norm.bias is in the"),
    "of none": (lying_index(lambda m: m.update({"x": m["norm.bias"]})), "x is in the index only"),
    "left out": (lying_index(lambda m: m.pop("norm.bias")), "norm.bias is in the file only"),
    "no map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "expected an object weight_map"),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", FOLDERS | SHARDED)
def test_folders(case: str, tmp_path: Path) -> None:
    edit, message = (FOLDERS | SHARDED)[case]
    options = {"max_shard_size": "16KB"} if case in SHARDED else {}
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out", **options)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (case in SHARDED)
    export.from_compressed_tensors(block(seed=1), folder)
    edit(folder)
    errors = (ValueError, OSError)
    refused(export.from_compressed_tensors, message, block(seed=1), folder, error=errors)


@pytest.mark.exhaustive
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
