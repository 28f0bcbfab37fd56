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

    source = saved(tmp_path / "float", "llama")
    file = source / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.ones(3)}, file, {"format": "pt"})
    config = ours.BaraquantConfig(baraquant.W8A16())
    model = transformers.LlamaForCausalLM.from_pretrained(source, quantization_config=config)
    assert "LlamaForCausalLM has no place" in model.hf_quantizer.report.left_out["mtp"]
    assert "mtp" in str(model.hf_quantizer.report)
    with pytest.warns(UserWarning, match="save_pretrained: .*are not written: mtp;"):
        model.save_pretrained(tmp_path / "it")


SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 96}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
EXPERTS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 64, "head_dim": 32},
    "DeepseekV3": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "q_lora_rank": 32}
    | {"moe_intermediate_size": 64, "first_k_dense_replace": 1, "kv_lora_rank": 32}
    | {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32},
}


@pytest.mark.parametrize("name", list(EXPERTS))
def test_one_scheme_says_the_share_of_floating_experts(name: str, tmp_path: Path) -> None:
    kind = getattr(transformers, f"{name}ForCausalLM", None)
    if kind is None or transformers.__version__ < "5":
        pytest.skip("experts are linear layers before transformers 5")
    import baraquant.transformers as ours

    config = getattr(transformers, f"{name}Config")(**SIZES, **EXPERTS[name])
    kind(config).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"experts .* floating: \d+ % of the parameters"):
        kind.from_pretrained(tmp_path, quantization_config=ours.BaraquantConfig(baraquant.W8A16()))
