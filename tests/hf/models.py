# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models of transformers with random weights, in folders."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.optional_packages import package

transformers = package("transformers")
transformers.utils.logging.disable_progress_bar()

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
_DECODER = {**SIZES, "intermediate_size": 128, "num_key_value_heads": 2}
# The class, its configuration, and sizes; with biases, tied heads and other things that differ.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "tied_llama": ("LlamaForCausalLM", "LlamaConfig", {**_DECODER, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _DECODER),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 32}),
    "opt": ("OPTForCausalLM", "OPTConfig", {**SIZES, "ffn_dim": 128, "word_embed_proj_dim": 64,
        "dropout": 0.0}),
    "bert": ("BertForMaskedLM", "BertConfig", {**SIZES, "intermediate_size": 128}),
}  # fmt: skip
# Every model in float32, and one of them in the other dtypes.
CASES = [(name, torch.float32) for name in MODELS]
CASES += [("qwen2", torch.bfloat16), ("tied_llama", torch.float16)]
TOKENS = torch.arange(24).reshape(2, 12) * 7 % 90 + 3


def every_other(schemes: Iterable[str], always: str) -> list[tuple[str, str, torch.dtype]]:
    """Each scheme with every other case, its neighbour with the others; one with all of them."""
    return [
        (scheme, *case)
        for number, scheme in enumerate(schemes)
        for place, case in enumerate(CASES)
        if (number + place) % 2 == 0 or scheme == always
    ]


def build(name: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> nn.Module:
    """A model in evaluation, whose biases are not 0."""
    model_class, config_class, own = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**own, **sizes})
    model: nn.Module = getattr(transformers, model_class)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn(parameter.shape)
            else:
                parameter *= 5
    return model.to(dtype).eval()


def saved(
    folder: Path, name: str, dtype: torch.dtype = torch.float32, shard: str = "5GB", **sizes: Any
) -> Path:
    build(name, dtype, **sizes).save_pretrained(folder, max_shard_size=shard)
    return folder


def load(name: str, folder: Path, **options: Any) -> Any:
    """What from_pretrained of the model's class returns, by default in the dtype of the folder.

    transformers 4.57 has other defaults: float32, but float16 for a folder of compressed-tensors.
    """
    options.setdefault("dtype", "auto")
    return getattr(transformers, MODELS[name][0]).from_pretrained(folder, **options)


def quantized(name: str, folder: Path, scheme: Any, dtype: torch.dtype = torch.float32) -> Any:
    """What from_pretrained returns with a BaraquantConfig."""
    from baraquant.transformers import BaraquantConfig

    config = BaraquantConfig(scheme)
    return load(name, saved(folder, name, dtype), dtype=dtype, quantization_config=config)


def read_by_us(name: str, folder: Path, **options: Any) -> Any:
    """The same, by baraquant's reader of compressed-tensors."""
    from baraquant.transformers import use_for_compressed_tensors

    with use_for_compressed_tensors():
        return load(name, folder, **options)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(TOKENS.to(model.device)).logits
    assert bool(result.isfinite().all())
    return result
