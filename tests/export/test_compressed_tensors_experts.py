# SPDX-License-Identifier: BSD-3-Clause
"""Mixtures of experts: a layer for each expert and projection, as in files of transformers."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import baraquant
from baraquant import export
from baraquant.nn import QuantizedExperts
from tests.support.optional_packages import package
from tests.support.schemes import all_described
from tests.support.tiny_transformers import build as tiny
from tests.zoo.architectures_text import TEXT

package("transformers")
package("huggingface_hub")
pytest.importorskip("transformers.core_model_loading", reason="transformers 4 has no such experts")

SCHEMES: dict[str, Any] = all_described(
    "int8, int8 per_token", "int8, int8 per_token asymmetric",
    "int8, int8 per_tensor asymmetric static", "int8", "int4 per_group(8)",
    "int4 per_group(8) asymmetric", "int4 per_group(8), int8 per_token",
)  # fmt: skip
NAMES = {"mixtral": 2, "qwen3_moe": 2, "deepseek_v3": 1, "jamba": 1}  # layers of experts
SHORT = ("qwen3_moe", "int8, int8 per_token")
CASES = [
    pytest.param(*case, marks=() if case == SHORT else pytest.mark.exhaustive)
    for case in itertools.product(NAMES, SCHEMES)
]


def model_of(name: str, scheme: Any, seed: int = 0) -> nn.Module:
    """A model whose linear layers and experts are quantized, but not its ends."""
    model = tiny.liven(tiny.build(name, seed))
    ends = {"lm_head": None, nn.Embedding: None}
    inputs = tiny.TINY[name].inputs()
    rules = scheme if isinstance(scheme, dict) else {"*": scheme}
    baraquant.quantize_(model, {**ends, **rules}, calibration=[inputs], progress=False)
    return model


def written(model: nn.Module, folder: Path) -> Path:
    return export.to_compressed_tensors(model, folder, serve=None)


def experts_of(model: nn.Module) -> dict[str, QuantizedExperts]:
    return {n: m for n, m in model.named_modules() if isinstance(m, QuantizedExperts)}


def same(model: nn.Module, other: nn.Module, name: str) -> bool:
    inputs = TEXT[name].inputs()
    pairs = zip(tiny.outputs(model, inputs), tiny.outputs(other, inputs), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_round_trip(name: str, scheme: str, tmp_path: Path) -> None:
    model = model_of(name, SCHEMES[scheme])
    folder = written(model, tmp_path / "out")
    read = export.from_compressed_tensors(lambda: tiny.build(name, 3), folder)
    assert same(read, model, name) and len(experts_of(read)) == NAMES[name]
    for path, experts in experts_of(model).items():
        wanted, got = experts.state_dict(), read.get_submodule(path).state_dict()
        assert list(got) == list(wanted)
        assert all(torch.equal(got[key], wanted[key]) for key in wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Integers of experts, floating experts and all else, as save_pretrained names them."""
    tiny.build(name).save_pretrained(tmp_path / "float")
    wanted = load_file(tmp_path / "float" / "model.safetensors").keys()
    ends = ("_packed", "_scale", "_shape", "_zero_point")
    for number, experts in enumerate((baraquant.W4A16(8), None)):
        model = model_of(name, {"*experts": experts, nn.Linear: baraquant.W4A16(8)})
        folder = written(model, tmp_path / str(number))
        got = load_file(folder / "model.safetensors").keys()
        assert {re.sub(f"({'|'.join(ends)})$", "", key) for key in got} == wanted
        read = export.from_compressed_tensors(tiny.build(name, 3), folder)
        assert same(read, model, name)
        assert bool(experts_of(read)) == (experts is not None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gpt_oss", "granite_moe"])
def test_experts_that_files_keep_together(name: str, tmp_path: Path) -> None:
    """They float, under the names of files, and are read back; servers are told of them."""
    row = TEXT[name]
    model = row.model(torch.float32, "cpu")
    model.save_pretrained(tmp_path / "float")
    wanted = load_file(tmp_path / "float" / "model.safetensors").keys()
    baraquant.quantize_(model, {"lm_head": None, "*experts": None, nn.Linear: baraquant.W8A8()})
    folder = written(model, tmp_path / "out")
    got = load_file(folder / "model.safetensors").keys()
    assert {key.removesuffix("_scale") for key in got} == wanted
    read = export.from_compressed_tensors(row.make(3).eval(), folder)
    assert same(read, model, name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_transformers_reads_the_same_weights(name: str, tmp_path: Path) -> None:
    transformers = package("transformers")
    package("compressed_tensors")
    model = model_of(name, baraquant.W4A16(8))
    folder = written(model, tmp_path / "out")
    options = transformers.CompressedTensorsConfig(dequantize=True)
    read = type(model).from_pretrained(folder, dtype="auto", quantization_config=options)
    for path, experts in experts_of(model).items():
        theirs = read.get_submodule(path)
        assert torch.equal(theirs.gate_up_proj, experts.gate_up_proj)
        assert torch.equal(theirs.down_proj, experts.down_proj)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_quantized_while_loading_and_saved(name: str, tmp_path: Path) -> None:
    from baraquant.transformers import BaraquantConfig

    original = tiny.liven(tiny.build(name))
    original.save_pretrained(tmp_path / "float")
    config = BaraquantConfig({"lm_head": None, nn.Embedding: None, "*": baraquant.W4A16(8)})
    options = {"quantization_config": config, "attn_implementation": "eager"}
    model = type(original).from_pretrained(tmp_path / "float", **options)
    assert experts_of(model)
    model.save_pretrained(tmp_path / "out")
    by_hand = written(model_of(name, baraquant.W4A16(8)), tmp_path / "by hand")
    wanted, got = (load_file(f / "model.safetensors") for f in (by_hand, tmp_path / "out"))
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[key], wanted[key]) for key in wanted)
    assert same(export.from_compressed_tensors(tiny.build(name, 3), tmp_path / "out"), model, name)


def test_what_servers_must_leave_floating(tmp_path: Path) -> None:
    """Their routers, and experts that float here, are linear layers there."""
    model = model_of("mixtral", {"*experts": None, nn.Linear: baraquant.W8A8()})
    config = json.loads((written(model, tmp_path / "out") / "config.json").read_text())
    ignore = config["quantization_config"]["ignore"]
    assert "model.layers.1.block_sparse_moe.gate" in ignore
    patterns = [target.removeprefix("re:") for target in ignore if target.startswith("re:")]
    expert = "model.layers.1.block_sparse_moe.experts.3.w2"
    assert any(re.match(pattern, expert) for pattern in patterns)
    assert not any(re.match(p, "model.layers.1.self_attn.q_proj") for p in patterns)


@pytest.mark.exhaustive
def test_errors_when_writing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layers.0.mlp.experts: expected experts without biases"):
        written(model_of("gpt_oss", baraquant.W8A16()), tmp_path / "out")
    static = model_of("qwen3_moe", {"*experts": baraquant.W8A8Static()})
    with pytest.raises(ValueError, match=r"kernels: .*experts.0.*vLLM has no kernel for experts"):
        export.to_compressed_tensors(static, tmp_path / "out", allow=["shapes"])
    granite = TEXT["granite_moe"].model(torch.float32, "cpu")
    baraquant.quantize_(granite, {"*experts": baraquant.W8A8()})
    with pytest.raises(ValueError, match="experts: expected experts that have layers of their own"):
        written(granite, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_no_experts_in_gguf(tmp_path: Path) -> None:
    package("gguf")
    model = model_of("qwen3_moe", {"*experts": baraquant.W8A8()})
    with pytest.raises(ValueError, match="has a weight for each expert, which only to_comp"):
        export.to_gguf(model, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("experts", [baraquant.W8A8(), None], ids=["integers", "floats"])
def test_errors_when_reading(experts: Any, tmp_path: Path) -> None:
    model = model_of("qwen3_moe", {"*experts": experts, nn.Linear: baraquant.W8A8()})
    folder = written(model, tmp_path / "out")
    file, name = folder / "model.safetensors", "model.layers.1.mlp.experts.2.up_proj.weight"
    tensors = load_file(file)
    fresh = tiny.build("qwen3_moe", 3)
    before = {key: value.clone() for key, value in fresh.state_dict().items()}
    for changed in ({}, {name: tensors[name][:-1].clone()}):
        save_file({n: t for n, t in tensors.items() if n != name} | changed, file)
        with pytest.raises(ValueError, match=r"layers.1.mlp.experts.2.up_proj"):
            export.from_compressed_tensors(fresh, folder)
    save_file(tensors, file)
    config = json.loads((folder / "config.json").read_text())
    quantization = config["quantization_config"]
    quantization["ignore"] = [t for t in quantization["ignore"] if "experts" not in t]
    quantization["ignore"].append("model.layers.1.mlp.experts.2.up_proj")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"experts.2.up_proj: expected the scheme of .*floating"):
        export.from_compressed_tensors(fresh, folder)
    assert all(torch.equal(value, before[key]) for key, value in fresh.state_dict().items())
