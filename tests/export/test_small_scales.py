# SPDX-License-Identifier: BSD-3-Clause
"""Scales beyond the range of float16 in each file: they are kept, or refused by name."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant.export import from_compressed_tensors, to_compressed_tensors, to_gguf
from baraquant.export._layers import integer_layer
from tests.export.onnx_runs import constants, error_of, exported
from tests.export.tiny_decoders import tiny
from tests.support.optional_packages import package

# 127 of it: weights that bfloat16 has, and float16 has not.
SCALES = {"smallest": 7.9e-33, "largest": 1e6}


def layer(dtype: torch.dtype, first: float) -> nn.Sequential:
    """A layer in whose first eight rows the largest weight is ``first``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32)).eval()
    with torch.no_grad():
        model[0].weight[:8] *= first / model[0].weight[:8].abs().amax(1, keepdim=True)
        model[0].bias.zero_()
    return model.to(dtype)


@pytest.mark.parametrize("scheme", [baraquant.W8A16(), baraquant.W4A16(32)], ids=["8", "4"])
def test_onnx_keeps_small_scales(scheme: Any, tmp_path: Path) -> None:
    """By default onnxruntime makes products of float16, whose scales are 0 there."""
    onnxruntime = package("onnxruntime")
    package("onnxscript")
    model = layer(torch.float16, 1e-7)
    baraquant.quantize_(model, scheme, progress=False)
    x = 1e4 * torch.rand(4, 64).half()
    path = exported(model, (x,), tmp_path)
    session = onnxruntime.InferenceSession(path)
    name = session.get_inputs()[0].name
    read = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
    found = integer_layer("0", model[0], "test")
    scale = found.grouped_scale.repeat_interleave(64 // found.grouped_scale.shape[1], 1)
    exact = x.double() @ (found.qweight.double() * scale.double()).t()
    for rows in (slice(0, 8), slice(8, 32)):
        assert error_of(read[:, rows].double(), exact[:, rows]) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_onnx_has_float32_scales(dtype: torch.dtype, tmp_path: Path) -> None:
    package("onnxscript")
    model = layer(dtype, 1e-7)
    baraquant.quantize_(model, baraquant.W4A16(32), progress=False)
    path = exported(model, (torch.rand(4, 64, dtype=dtype),), tmp_path)
    assert constants(path)["0.qweight_scales"] == ("FLOAT", (32, 2))


@pytest.mark.parametrize("first", [1e-7, 1.0])
def test_onnx_names_rounded_scales(first: float, tmp_path: Path) -> None:
    onnx = package("onnx")
    package("onnxscript")
    model = layer(torch.float16, first)
    baraquant.quantize_(model, baraquant.W4A16(32), progress=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = exported(model, (torch.rand(4, 64).half(),), tmp_path, style="qdq")
    said = any("scales of 1 weights (0) to float16" in str(one.message) for one in caught)
    noted = [one.key for one in onnx.load(path).metadata_props]
    assert said == ("baraquant.scales" in noted) == (first < 1)
    assert "baraquant.accuracy_level" in noted


@pytest.mark.parametrize("scale", list(SCALES))
def test_gguf_refuses_by_name(scale: str, tmp_path: Path) -> None:
    package("gguf")
    package("transformers")
    model = tiny("llama")
    path = "model.layers.0.self_attn.v_proj"
    with torch.no_grad():
        model.get_submodule(path).weight.fill_(127 * SCALES[scale])
    baraquant.quantize_(model, {path: baraquant.W8A16()}, progress=False)
    with pytest.raises(ValueError, match=rf"{path}: expected scales that are exact in float16"):
        to_gguf(model, tmp_path / "it.gguf")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("scale", list(SCALES))
def test_float16_scales(scale: str) -> None:
    """``scale_dtype`` takes the smallest float16 for 0 and refuses what is too large."""
    model = layer(torch.float32, 127 * SCALES[scale])
    scheme = baraquant.W8A16(scale_dtype="float16")
    if scale == "largest":
        with pytest.raises(ValueError, match=r"0: .*a finite float16.*65504"):
            baraquant.quantize_(model, scheme, progress=False)
        return
    baraquant.quantize_(model, scheme, progress=False)
    assert float(model[0].weight_scale.min()) == 2.0**-24


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_folder_keeps_or_refuses(dtype: torch.dtype, scale: str, tmp_path: Path) -> None:
    package("huggingface_hub")
    model = layer(dtype, 1.0)
    baraquant.quantize_(model, baraquant.W8A16(), progress=False)
    model[0].weight_scale[:8] = SCALES[scale]
    with pytest.raises(ValueError, match="rounded_scales: 0: the server rounds its scales"):
        to_compressed_tensors(model, tmp_path / "served", serve="vllm")
    to_compressed_tensors(model, tmp_path / "kept", serve=None)
    read = from_compressed_tensors(layer(dtype, 1.0), tmp_path / "kept")
    assert torch.equal(read[0].weight_scale, model[0].weight_scale)
    assert math.isclose(float(read[0].weight_scale[0]), SCALES[scale], rel_tol=1e-6)
