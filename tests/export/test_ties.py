# SPDX-License-Identifier: BSD-3-Clause
"""Tied, separate and shared weights through every file and back."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant.export import from_compressed_tensors, to_compressed_tensors, to_onnx
from tests.export.onnx_runs import run
from tests.export.tiny_decoders import tiny, tokens
from tests.support.optional_packages import package

package("huggingface_hub")
IDS = torch.arange(64)


class Decoder(nn.Module):
    def __init__(self, weights: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.middle = nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        if weights == "tied":
            self.head.weight = self.embed.weight
        elif weights == "shared":
            self.head.weight = nn.Parameter(self.embed.weight.data)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.middle(self.embed(ids)))


QUANTIZED: dict[str, Any] = {
    "both": {"embed": baraquant.W8A16(), "head": baraquant.W8A8()},
    "embedding": {"embed": baraquant.W8A16()},
    "head": {"head": baraquant.W8A8()},
    "neither": {},
}


def in_folder(model: nn.Module, path: Path, fresh: nn.Module, floats: bool = False) -> nn.Module:
    to_compressed_tensors(model, path, serve=None, float_embeddings=floats)
    return from_compressed_tensors(fresh, path)


def in_file(model: nn.Module, path: Path, fresh: nn.Module) -> nn.Module:
    baraquant.save(model, path)
    baraquant.load_(fresh, path)
    return fresh


WAYS: dict[str, Callable[..., nn.Module]] = {"folder": in_folder, "file": in_file}
WAYS["folder of floating embeddings"] = partial(in_folder, floats=True)


def decoder(weights: str, quantized: str) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder(weights).eval()
    rules = {"middle": baraquant.W8A8(), **QUANTIZED[quantized]}
    baraquant.quantize_(model, rules, progress=False)
    return model


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("into", ["tied", "separate", "shared"])
@pytest.mark.parametrize("quantized", list(QUANTIZED))
@pytest.mark.parametrize("weights", ["tied", "separate", "shared"])
def test_our_files(weights: str, quantized: str, into: str, way: str, tmp_path: Path) -> None:
    model = decoder(weights, quantized)
    is_two = (weights, quantized) == ("separate", "neither")
    is_two |= (quantized, way) == ("embedding", "folder of floating embeddings")
    if is_two and into == "tied":  # the file has two floating values for one tensor of the model
        with pytest.raises(ValueError, match=r"(head|embed)\.weight: expected .*(tie|share)s"):
            WAYS[way](model, tmp_path / "it", Decoder(into).eval())
        return
    read = WAYS[way](model, tmp_path / "it", Decoder(into).eval())
    assert torch.equal(read(IDS), model(IDS))


@pytest.mark.parametrize(
    ("weights", "quantized"),
    [("tied", "both"), ("separate", "embedding"), ("shared", "head"), ("tied", "neither")],
)
def test_onnx(weights: str, quantized: str, tmp_path: Path) -> None:
    package("onnxruntime")
    package("onnxscript")
    model = decoder(weights, quantized)
    to_onnx(model, (IDS,), tmp_path / "it.onnx")
    got = run(tmp_path / "it.onnx", IDS, default=True)
    torch.testing.assert_close(got, model(IDS).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("quantized", list(QUANTIZED))
@pytest.mark.parametrize("weights", ["tied", "separate", "shared", "tied by hand"])
def test_models_of_transformers(weights: str, quantized: str, tmp_path: Path) -> None:
    """What the folder says of ties fits its tensors, so that any reader gets the same model."""
    package("transformers")
    model = tiny("llama" if weights == "tied by hand" else "llama tied")
    if weights == "tied by hand":
        model.lm_head.weight = model.model.embed_tokens.weight
    if weights in ("separate", "shared"):
        values = model.lm_head.weight.data
        model.lm_head.weight = nn.Parameter(2 * values if weights == "separate" else values)
    paths = {"embed": "model.embed_tokens", "head": "lm_head"}
    rules = {paths[path]: scheme for path, scheme in QUANTIZED[quantized].items()}
    baraquant.quantize_(model, {"*.o_proj": baraquant.W8A8(), **rules}, progress=False)
    to_compressed_tensors(model, tmp_path / "it", serve=None)
    config = type(model.config).from_pretrained(tmp_path / "it")
    if quantized == "head":  # in servers it is no Linear
        (group,) = config.quantization_config["config_groups"].values()
        assert group["targets"] == ["lm_head", "Linear"]
    assert config.dtype == torch.float32 and (tmp_path / "it" / "generation_config.json").exists()
    fresh = type(model)(config).eval()
    read = from_compressed_tensors(fresh, tmp_path / "it")
    assert torch.equal(read(tokens()).logits, model(tokens()).logits)
