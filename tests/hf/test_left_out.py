# SPDX-License-Identifier: BSD-3-Clause
"""What stays floating, or is not written, is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import baraquant
from tests.hf.models import saved, transformers
from tests.support.optional_packages import package

package("huggingface_hub")


@pytest.mark.parametrize("part", ["mtp.fc", "model.layers.2.norm"])
def test_tensors_that_the_class_does_not_know(part: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "float", "llama")
    file = source / "model.safetensors"
    save_file({**load_file(file), f"{part}.weight": torch.ones(3)}, file, {"format": "pt"})
    model = transformers.LlamaForCausalLM.from_pretrained(source)
    baraquant.quantize_(model, {torch.nn.Linear: baraquant.W8A8()}, progress=False)
    name = part.removesuffix(".fc").removesuffix(".norm")
    with pytest.warns(UserWarning, match=f"are not written: {name};"):
        folder = baraquant.export.to_compressed_tensors(model, tmp_path / "it", serve=None)
    assert f"`{name}`" in (folder / "README.md").read_text()


def test_one_scheme_says_the_share_of_floating_experts(tmp_path: Path) -> None:
    if not hasattr(transformers, "MixtralForCausalLM") or transformers.__version__ < "5":
        pytest.skip("experts are linear layers before transformers 5")
    import baraquant.transformers as ours

    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 96}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(**sizes, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    load = transformers.MixtralForCausalLM.from_pretrained
    with pytest.warns(UserWarning, match=r"experts .* floating: \d+ % of the parameters"):
        load(tmp_path, quantization_config=ours.BaraquantConfig(baraquant.W8A16()))
