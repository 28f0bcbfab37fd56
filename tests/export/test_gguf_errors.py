# SPDX-License-Identifier: BSD-3-Clause
"""What GGUF cannot hold is refused by name, and nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import PerGroup, QuantConfig, TensorConfig
from tests.export.tiny_decoders import quantized, tiny, tokens
from tests.support.models.made import prepared
from tests.support.optional_packages import package

package("gguf")
package("transformers")
pytestmark = pytest.mark.exhaustive

Q4 = baraquant.W4A16(32)


def refused(
    model: Any, folder: Path, match: str, kind: type[Exception] = ValueError, **options: Any
) -> None:
    with pytest.raises(kind, match=match):
        baraquant.export.to_gguf(model, folder / "model.gguf", **options)
    assert list(folder.iterdir()) == []


LAYERS: dict[str, tuple[Any, str]] = {
    "asymmetric": (baraquant.W4A16(32, symmetric=False),
        "embed_tokens: expected symmetric weights"),
    "3 bits": (QuantConfig(TensorConfig(3, PerGroup(32))), "embed_tokens: expected 4 or 8 bits"),
    "6 bits": (QuantConfig(TensorConfig(6)), "embed_tokens: expected 4 or 8 bits .* but got 6"),
    "groups of 16": (baraquant.W4A16(16),
        "embed_tokens: expected a scale for a multiple of 32 inputs"),
    "dynamic": (baraquant.W8A8(), r"q_proj: expected a floating input, but got int8 \(dynamic\)"),
    "groups, dynamic": (baraquant.W4A8(32, group_factors=False),
        "q_proj: expected a floating input, but got int8"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(LAYERS))
def test_layers(case: str, tmp_path: Path) -> None:
    scheme, match = LAYERS[case]
    refused(quantized(tiny("llama"), scheme), tmp_path, match)


def test_static_and_smooth(tmp_path: Path) -> None:
    model = tiny("llama")
    rules = {nn.Embedding: None, nn.Linear: baraquant.W8A8Static()}
    baraquant.quantize_(model, rules, calibration=[tokens()])
    refused(model, tmp_path, r"expected a floating input, but got int8 \(static\)")
    model = quantized(tiny("llama"), baraquant.W8A8())
    model.model.layers[1].mlp.up_proj.smooth = torch.full((64,), 2.0)
    refused(model, tmp_path, "layers.1.mlp.up_proj: expected no smoothing", float_inputs=True)


def test_scales(tmp_path: Path) -> None:
    model = quantized(tiny("llama"), Q4, half=False)
    refused(
        model, tmp_path, 'embed_tokens: expected scales that are exact in float16.*scale_dtype="fl'
    )
    model = quantized(tiny("llama"), Q4)
    for value in (1e6, 1e-9, 0.1):
        model.model.layers[1].mlp.up_proj.weight_scale[3, 1] = value
        refused(model, tmp_path, "layers.1.mlp.up_proj: expected scales that are exact in float16")


def test_sizes(tmp_path: Path) -> None:
    model = tiny("llama", intermediate_size=80)
    refused(quantized(model, baraquant.W8A16()), tmp_path, "down_proj: expected a multiple of 32")


CONFIGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": ("llama", {"hidden_act": "gelu"}, "'llama' covers, but got the activation 'gelu"),
    "rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4,
        "factor": 2.0}}, "got the rope type 'dynamic'"),
    "window": ("mistral", {"sliding_window": 8}, "got sliding_window=8"),
    "gemma2 scalar": ("gemma2", {"query_pre_attn_scalar": 64}, "got query_pre_attn_scalar=64"),
    "gemma3 layers": ("gemma3", {"layer_types": ["full_attention", "full_attention"]},
        "got layer_types other than five times"),
    "gemma3 cap": ("gemma3", {"final_logit_softcapping": 30.0}, "got a soft cap of logits"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CONFIGS))
def test_configurations(case: str, tmp_path: Path) -> None:
    name, options, match = CONFIGS[case]
    refused(quantized(tiny(name, **options), Q4), tmp_path, match)


def other_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=96, n_positions=32)
    return quantized(GPT2LMHeadModel(config), Q4)


def extra_tensor() -> Any:
    model = quantized(tiny("llama"), Q4)
    model.model.layers[0].gain = nn.Parameter(torch.ones(2, 2))
    return model


def double() -> Any:
    model = quantized(tiny("llama"), Q4)
    model.model.norm.double()
    return model


MODELS: dict[str, tuple[Callable[[], Any], str, type[Exception]]] = {
    "floating": (lambda: tiny("llama"), "without a quantized layer", ValueError),
    "prepared": (lambda: prepared(tiny("llama"), Q4),
        "it is prepared for training; call baraquant.qat.convert_", ValueError),
    "no module": (lambda: {"a": 1}, "expected model to be a Module, but got dict", TypeError),
    "not transformers": (lambda: quantized(nn.Sequential(nn.Linear(32, 4)), Q4),
        "expected a model of transformers", TypeError),
    "unknown": (other_model, "expected an architecture among llama, .* but got 'gpt2'", ValueError),
    "no head": (lambda: quantized(tiny("llama"), Q4).model,
        "expected a language model with a head .* but got a LlamaModel", ValueError),
    "extra tensor": (extra_tensor, "layers.0.gain: expected a tensor that GGUF", ValueError),
    "float64": (double, "model.norm.weight: expected float32, float16 or bfloat16", ValueError),
}  # fmt: skip


@pytest.mark.parametrize("case", list(MODELS))
def test_models(case: str, tmp_path: Path) -> None:
    make, match, kind = MODELS[case]
    refused(make(), tmp_path, match, kind)


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized(tiny("llama"), Q4)
    refused(model, tmp_path, "expected float_inputs to be a bool", TypeError, float_inputs=1)
    with pytest.raises(OSError, match="expected a folder that can be written to"):
        baraquant.export.to_gguf(model, tmp_path / "missing" / "model.gguf")
    with pytest.raises(IsADirectoryError, match="expected a file"):
        baraquant.export.to_gguf(model, tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(model, tmp_path, r'install it with: pip install "baraquant\[gguf\]"', ImportError)


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = quantized(tiny("llama"), Q4), tmp_path / "model.gguf"
    path.write_bytes(b"old")
    monkeypatch.setattr("baraquant.export.gguf._bytes", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        baraquant.export.to_gguf(model, path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]
