# SPDX-License-Identifier: BSD-3-Clause
"""Tiny language models of transformers, quantized with scales that are float16 values."""

from typing import Any

import torch
from torch import nn

import baraquant

VOCABULARY = 96
COMMON: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
# What transformers' GGUF reader takes from its own defaults must have these values in the models.
OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "llama tied": {"tie_word_embeddings": True, "rope_theta": 5e4},
    "mistral": {"sliding_window": 4096, "head_dim": 32},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 128, "tie_word_embeddings": True},
    "phi3": {"vocab_size": 32064, "tie_word_embeddings": False},  # its padding token is 32000
    "nemotron": {"tie_word_embeddings": False},
    "lfm2": {"num_hidden_layers": 3, "full_attn_idxs": [1], "block_multiple_of": 32},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 32},
    "gemma3": {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 32},
}


def tiny(name: str, **options: Any) -> Any:
    """A float32 model of random weights, in evaluation mode."""
    import transformers

    kind = name.split()[0].capitalize()
    config = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")
    model = getattr(transformers, f"{kind}ForCausalLM")
    torch.manual_seed(0)
    made = model(config(**{**COMMON, **OPTIONS[name], **options}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:  # norms and biases that are not all alike
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made.eval()


def quantized(model: nn.Module, config: Any, *, half: bool = True) -> Any:
    """Quantize a model; with ``half`` its scales become float16 values."""
    baraquant.quantize_(model, config)
    if half:
        for module in model.modules():
            if hasattr(module, "weight_scale"):
                module.weight_scale.copy_(module.weight_scale.half().float())
    return model


def tokens() -> torch.Tensor:
    return torch.arange(40).remainder(VOCABULARY).mul(7).remainder(VOCABULARY).view(2, 20)
