# SPDX-License-Identifier: BSD-3-Clause
"""Models that a folder or its server cannot hold, and places that cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import export
from tests.support.compressed_folders import IDS, block, quantized
from tests.support.models.made import prepared
from tests.support.models.made import quantized as made
from tests.support.optional_packages import package

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
    granularity = baraquant.PerGroup(group_size)
    weight = baraquant.TensorConfig(bits, granularity, symmetric)
    model = quantized(baraquant.QuantConfig(weight), torch.float16)
    for module in model.modules():
        if hasattr(module, "qweight"):
            module.weight_scale = module.weight_scale.half().float()
    return model


MODELS: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "no module": (lambda: 3, "expected model to be a Module, but got int", {}),
    "float": (block, "without a quantized layer; call baraquant.quantize_", {}),
    "prepared": (lambda: prepared(block(), baraquant.W8A8()),
        "expected converted layers, but it is prepared for training; call", {}),
    "smoothing": (lambda: made(block(), baraquant.SmoothQuant(), IDS),
        "o_proj: its input is divided by a smoothing factor", {}),
    "rotated": (lambda: quantized(baraquant.W8A8(rotate=16)),
        r"q_proj: .*its input is rotated \(rotate=16\).*without rotate", {}),
    "convolutions alone": (lambda: made(nn.Sequential(nn.Conv2d(3, 4, 3)), baraquant.W8A16()),
        "expected a quantized Linear or Embedding, but 0", {}),
    "fused schemes": (lambda: quantized({"q_proj": baraquant.W8A8(), "k_proj": baraquant.W8A16()}),
        "fused_schemes: vLLM computes q_proj int8", {}),
    "fused with a float one": (lambda: quantized({"q_proj": baraquant.W8A8(), "k_proj":
        baraquant.W8A8()}), "fused_schemes: .* v_proj float", {}),
    "fused scales": (lambda: static({"q_proj": 0.1}),
        "fused_input_scale: q_proj, k_proj, v_proj have the input scales 0.1, .*tie_fused_scales",
        {}),
    "no kernel": (lambda: quantized(baraquant.W4A8(32, group_factors=False)),
        "kernels: q_proj: vLLM has no kernel for int4 group", {}),
    "odd sizes": (lambda: made(nn.Sequential(nn.Linear(24, 24)), baraquant.W8A8()),
        r"shapes: 0: .* multiples of 16 .*\[24, 24\]", {}),
    "groups of 16": (lambda: float16_w4a16(16), "shapes: q_proj: .* groups of 32, 64 or 128", {}),
    "three bits": (lambda: float16_w4a16(bits=3), "widths: q_proj: vLLM's Marlin", {}),
    "float32 around packed": (lambda: quantized(baraquant.W4A16(32)),
        "half_models: q_proj: vLLM computes packed weights in bfloat16", {}),
    "rounded scales": (lambda: quantized(baraquant.W4A16(32), torch.bfloat16),
        "rounded_scales: q_proj: the server rounds its scales to bfloat16.*scale_dtype='bfloat16'",
        {}),
    "zero points for transformers": (lambda: float16_w4a16(symmetric=False),
        "packed_zero_points: q_proj: transformers cannot load", {"serve": "transformers"}),
    "integer scales": (lambda: quantized(dtype=torch.bfloat16),
        "integer_scales: q_proj: transformers rounds its scales to bfloat16",
        {"serve": "transformers"}),
    "a server unknown": (quantized, "expected serve to be 'vllm', 'sglang', 'transformers'",
        {"serve": "x"}),
    "a rule unknown": (quantized, "expected allow to name rules of kernels", {"allow": ["x"]}),
    "data on meta": (meta, "norm.weight: expected a plain tensor with data", {}),
    "unpacked attention": (lambda: made(nn.TransformerEncoderLayer(32, 2, 64), baraquant.W8A8()),
        "self_attn: expected layers with the names", {}),
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
    make, message, options = MODELS[case]
    model = make()
    with pytest.raises((ValueError, TypeError, NotADirectoryError), match=message):
        export.to_compressed_tensors(model, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def off_by_one() -> tuple[float, int]:
    """A scale and a zero point that vLLM on CUDA rebuilds wrongly for all of 4 ulps around."""
    from baraquant.export.compressed_tensors.checks import nudged_scale

    generator = torch.Generator().manual_seed(0)
    for _ in range(20000):
        scale = torch.rand((), generator=generator) * 0.1 + 1e-3
        zero = torch.randint(-128, 128, (), generator=generator)
        if nudged_scale(scale, zero) is None:
            return float(scale), int(zero)
    raise AssertionError("there is none")


@pytest.mark.exhaustive
def test_a_zero_point_that_the_server_would_change(tmp_path: Path) -> None:
    scale, zero = off_by_one()
    paths = ("q_proj", "k_proj", "v_proj", "o_proj")
    model = static(dict.fromkeys(paths, scale), False, zero)
    with pytest.raises(ValueError, match="static_zero_point: q_proj: vLLM on CUDA would rebuild"):
        export.to_compressed_tensors(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    export.to_compressed_tensors(model, tmp_path / "out", allow=["static_zero_point"])


def test_rules_can_be_allowed(tmp_path: Path) -> None:
    model = quantized(baraquant.W4A16(32))
    rules = ["half_models", "rounded_scales"]
    folder = export.to_compressed_tensors(model, tmp_path / "out", allow=rules)
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


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
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = package("huggingface_hub")

    def fail(tensors: Any, folder: Path, **kwargs: Any) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "save_torch_state_dict", fail)
    with pytest.raises(OSError, match="No space left"):
        export.to_compressed_tensors(quantized(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    "config",
    [baraquant.W8A8(), baraquant.W4A16(32, **PACKED), baraquant.W8A16(**PACKED)],
    ids=["W8A8", "W4A16", "W8A16"],
)
def test_sglang_takes(config: Any, tmp_path: Path) -> None:
    assert export.to_compressed_tensors(
        quantized(config, torch.bfloat16), tmp_path / "served", serve="sglang"
    ).is_dir()


SGLANG: dict[str, tuple[Any, str]] = {
    "static": (baraquant.W8A8Static(), "static_inputs: q_proj: SGLang ignores the static scale"),
    "static with zero point": (baraquant.W8A8Static(symmetric=False), "static_inputs: q_proj"),
    "zero point": (baraquant.W8A8(symmetric=False), "input_zero_points: q_proj: SGLang rounds"),
    "groups of integers": (baraquant.W4A8(32, group_factors=False), "sglang_kernels: q_proj"),
    "packed zero points": (baraquant.W4A16(32, symmetric=False, **PACKED),
        "sglang_kernels: q_proj: SGLang has no kernel"),
    "five bits": (baraquant.QuantConfig(baraquant.TensorConfig(5), **PACKED),
        "sglang_kernels: q_proj"),
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
        model = quantized()
        export.to_compressed_tensors(model, tmp_path / "served", serve="sglang")
