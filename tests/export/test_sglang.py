# SPDX-License-Identifier: BSD-3-Clause
"""What SGLang would compute otherwise is an error with a name, and what it computes is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import QuantConfig, TensorConfig
from baraquant.export import to_compressed_tensors
from tests.support.compressed_folders import quantized
from tests.support.optional_packages import package

package("huggingface_hub")
PACKED = {"scale_dtype": "bfloat16"}


@pytest.mark.parametrize(
    "config",
    [baraquant.W8A8(), baraquant.W4A16(32, **PACKED), baraquant.W8A16(**PACKED)],
    ids=["W8A8", "W4A16", "W8A16"],
)
def test_it_takes(config: Any, tmp_path: Path) -> None:
    assert to_compressed_tensors(
        quantized(config, torch.bfloat16), tmp_path / "served", serve="sglang"
    ).is_dir()


REFUSED: dict[str, tuple[Any, str]] = {
    "static": (baraquant.W8A8Static(), "static_inputs: q_proj: SGLang ignores the static scale"),
    "static with zero point": (baraquant.W8A8Static(symmetric=False), "static_inputs: q_proj"),
    "zero point": (baraquant.W8A8(symmetric=False), "input_zero_points: q_proj: SGLang rounds"),
    "groups of integers": (baraquant.W4A8(32, group_factors=False), "sglang_kernels: q_proj"),
    "packed zero points": (baraquant.W4A16(32, symmetric=False, **PACKED),
        "sglang_kernels: q_proj: SGLang has no kernel"),
    "five bits": (QuantConfig(TensorConfig(5), **PACKED), "sglang_kernels: q_proj"),
    "rounded scales": (baraquant.W4A16(32), "rounded_scales: q_proj"),
    "formats": ({"o_proj": baraquant.W4A16(32, **PACKED), nn.Linear: baraquant.W8A8(),
        nn.Embedding: None}, "one_format: expected layers of one format"),
    "fused schemes": ({"q_proj": baraquant.W8A8(), "k_proj": baraquant.W8A8()},
        "fused_schemes: SGLang computes"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_it_is_refused(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    model = quantized(config, torch.bfloat16)
    with pytest.raises(ValueError, match=message) as raised:
        to_compressed_tensors(model, tmp_path / "served", serve="sglang")
    assert not list(tmp_path.iterdir())
    rule = str(raised.value).split(": ")[1]
    others = {"static_inputs", "input_zero_points", "sglang_kernels"} - {rule}
    to_compressed_tensors(model, tmp_path / "x", serve="sglang", allow=[rule, *others])


def test_float32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sixteen_bits: q_proj: SGLang computes"):
        model = quantized()
        to_compressed_tensors(model, tmp_path / "served", serve="sglang")
