# SPDX-License-Identifier: BSD-3-Clause
"""What stays floating, or is not written, is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import baraquant
from tests.hf.models import saved, transformers
from tests.support.compressed_folders import tensors
from tests.support.optional_packages import package
from tests.support.tiny_transformers import build as tiny

package("huggingface_hub")


def saved_with(name: str, folder: Path) -> Path:
    """A folder with a tensor more."""
    add = tensors(lambda state: state.update({name: torch.ones(3)}))
    add(saved(folder, "llama"))
    return folder


@pytest.mark.parametrize("part", ["mtp.fc", "model.layers.2.norm"])
def test_tensors_that_the_class_does_not_know(part: str, tmp_path: Path) -> None:
    source = saved_with(f"{part}.weight", tmp_path / "float")
    for other in ("consolidated", "adapter_model"):  # other weights than the model's
        save_file({"other.weight": torch.ones(3)}, source / f"{other}.safetensors")
    model = transformers.LlamaForCausalLM.from_pretrained(source)
    baraquant.quantize_(model, {torch.nn.Linear: baraquant.W8A8()}, progress=False)
    name = part.removesuffix(".fc").removesuffix(".norm")
    with pytest.warns(UserWarning, match=f"are not written: {name};"):
        folder = baraquant.export.to_compressed_tensors(model, tmp_path / "it", serve=None)
    assert f"`{name}`" in (folder / "README.md").read_text()


def test_loaded_and_saved_again(tmp_path: Path) -> None:
    """The report of ``from_pretrained`` names them, and ``save_pretrained`` warns."""
    import baraquant.transformers as ours

    source = saved_with("mtp.fc.weight", tmp_path / "float")
    config = ours.BaraquantConfig(baraquant.W8A16())
    model = transformers.LlamaForCausalLM.from_pretrained(source, quantization_config=config)
    assert "LlamaForCausalLM has no place" in model.hf_quantizer.report.left_out["mtp"]
    assert "mtp" in str(model.hf_quantizer.report)
    with pytest.warns(UserWarning, match="save_pretrained: .*are not written: mtp;"):
        model.save_pretrained(tmp_path / "it")


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_one_scheme_says_the_share_of_floating_experts(name: str, tmp_path: Path) -> None:
    if transformers.__version__ < "5":
        pytest.skip("experts are linear layers before transformers 5")
    import baraquant.transformers as ours

    model = tiny.build(name)
    model.save_pretrained(tmp_path)
    config = ours.BaraquantConfig(baraquant.W8A16())
    with pytest.warns(UserWarning, match=r"experts .* floating: \d+ % of the parameters"):
        type(model).from_pretrained(tmp_path, quantization_config=config)
