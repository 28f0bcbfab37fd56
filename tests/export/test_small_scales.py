# SPDX-License-Identifier: BSD-3-Clause
"""Scales beyond the range of float16 in an ONNX file: they are kept, or named."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant.export._layers import integer_layer
from tests.export.onnx_runs import constants, error_of, exported, run
from tests.support.optional_packages import package


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
    package("onnxruntime")
    package("onnxscript")
    model = layer(torch.float16, 1e-7)
    baraquant.quantize_(model, scheme, progress=False)
    x = 1e4 * torch.rand(4, 64).half()
    path = exported(model, (x,), tmp_path)
    read = run(path, x, default=True)
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
