# SPDX-License-Identifier: BSD-3-Clause
"""Folders against the package compressed-tensors: it reads ours, and we read all that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import baraquant
from baraquant import export
from tests.support.compressed_folders import (
    IDS,
    KINDS,
    block,
    decompressed_by_package,
    write_by_package,
)
from tests.support.optional_packages import package
from tests.support.pytorch_products import products_of_pytorch

package("compressed_tensors")
pytestmark = pytest.mark.exhaustive


def int_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: m.weight for n, m in model.named_modules() if hasattr(m, "weight_scale")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_reads_what_the_package_writes(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = write_by_package(block(dtype), tmp_path / "theirs", kind, ["Linear"], ["o_proj"])
    ours = export.from_compressed_tensors(block(dtype, seed=1), tmp_path / "theirs")
    weights = int_weights(ours)
    assert weights.keys() == {"q_proj", "k_proj", "v_proj"}
    for path, weight in weights.items():
        # The package dequantizes in the dtype of the scale, baraquant in float32: one rounding.
        assert torch.equal(weight, theirs.get_submodule(path).weight), path
    assert torch.equal(ours.o_proj.weight, theirs.o_proj.weight)
    if KINDS[kind][1] is None:
        with products_of_pytorch():
            assert torch.equal(ours(IDS), theirs(IDS))
        return
    # Its dynamic scales are amax / 127.5, so some integers of the inputs differ by one.
    error = (ours(IDS) - theirs(IDS)).abs().max() / theirs(IDS).abs().max()
    assert error < (0.02 if dtype == torch.float32 else 0.04)


@pytest.mark.parametrize("kind", ["int4 group", "int8 weights"])
def test_reads_embeddings_of_the_package(kind: str, tmp_path: Path) -> None:
    targets = ["Linear", "Embedding"]
    theirs = write_by_package(block(), tmp_path / "theirs", kind, targets, [])
    ours = export.from_compressed_tensors(block(seed=1), tmp_path / "theirs")
    assert isinstance(ours.embed, baraquant.nn.QuantizedEmbedding)
    with products_of_pytorch():
        assert torch.equal(ours(IDS), theirs(IDS))


# No format has factors of groups: such layers leave as int8, bit for bit.
FACTORS = baraquant.TensorConfig(4, baraquant.PerGroup(32), symmetric=False, group_factors=True)
STATIC = baraquant.TensorConfig(8, "per_tensor", dynamic=False)
SCHEMES = {
    "W8A8": baraquant.W8A8(),
    "W8A8 asymmetric": baraquant.W8A8(symmetric=False),
    "W8A8Static": baraquant.W8A8Static(),
    "W8A8Static asymmetric": baraquant.W8A8Static(symmetric=False),
    "W8A16": baraquant.W8A16(),
    "W4A16": baraquant.W4A16(32),
    "W4A16 channel": baraquant.W4A16(None),
    "W4A16 asymmetric": baraquant.W4A16(32, symmetric=False),
    "W4A16 channel asymmetric": baraquant.W4A16(None, symmetric=False),
    "W4A8": baraquant.W4A8(32, group_factors=False),
    "W4A8 channel": baraquant.W4A8(None),
    "W4A8 factors": baraquant.W4A8(32, group_factors=True),
    "ternary": baraquant.QuantConfig(
        baraquant.TensorConfig(2, "per_tensor", ternary=True),
        baraquant.TensorConfig(8, "per_token"),
    ),
    "W4A8 factors static": baraquant.QuantConfig(FACTORS, STATIC, "min_max"),
} | {
    f"W{bits}A16": baraquant.QuantConfig(baraquant.TensorConfig(bits, baraquant.PerGroup(32)))
    for bits in (2, 3, 5, 6, 7)
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_package_reads_ours(scheme: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """It decompresses to exactly our weights, and from the folder we get our outputs."""
    model = block(dtype)
    config = {nn.Linear: SCHEMES[scheme], nn.Embedding: None}
    baraquant.quantize_(model, config, calibration=[IDS])
    wanted = model(IDS)
    folder = export.to_compressed_tensors(model, tmp_path / "ours", serve=None)
    theirs = decompressed_by_package(folder, block(dtype, seed=1))
    for path, weight in int_weights(model).items():
        got = theirs.get_submodule(path).weight
        if got.dtype == torch.float32 != dtype:  # it computes in the scale's dtype, float32
            got = got.to(dtype)
        assert torch.equal(weight, got), path
    fresh = export.from_compressed_tensors(block(dtype, seed=1), folder)
    assert torch.equal(fresh(IDS), wanted)


def test_several_schemes_in_one_model(tmp_path: Path) -> None:
    model = block()
    config = {
        "q_proj": baraquant.W8A8(), "k_proj": baraquant.W4A16(32), "v_proj": None, "o_proj":
        baraquant.W4A16(16, symmetric=False), nn.Embedding: baraquant.W8A16(),
    }  # fmt: skip
    baraquant.quantize_(model, config)
    folder = export.to_compressed_tensors(model, tmp_path / "ours", serve=None)
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    formats = {one["format"] for one in settings["config_groups"].values()}
    assert settings["format"] == "mixed-precision"
    assert formats == {"int-quantized", "pack-quantized"}
    theirs = decompressed_by_package(folder, block(seed=1))
    for path, weight in int_weights(model).items():
        assert torch.equal(weight, theirs.get_submodule(path).weight), path
    fresh = export.from_compressed_tensors(block(seed=1), folder)
    assert torch.equal(fresh(IDS), model(IDS))
