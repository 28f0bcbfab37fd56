# SPDX-License-Identifier: BSD-3-Clause
"""Tiny experts of transformers, one of each form, with tokens and a routing for them."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import cases

EXPERTS, HIDDEN, INNER, TOP_K, TOKENS = 4, 16, 12, 2, 9
CONFIG: dict[str, Any] = {
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), EXPERTS
    ),
    **dict.fromkeys(("hidden_size", "moe_hidden_size"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), INNER),
    **dict.fromkeys(("hidden_act", "mlp_hidden_act", "hidden_activation"), "silu"),
    "post_norm_eps": 1e-6,
    "swiglu_limit": 1.0,
    "swiglu_alpha": 1.7,
    "moe_latent_size": None,
    "_experts_implementation": "eager",
}
# The package of each, and its class: what is special about it.
KINDS = {
    "mixtral": "MixtralExperts",
    "qwen3_moe": "Qwen3MoeExperts",
    "deepseek_v3": "DeepseekV3Experts",
    "deepseek_v4": "DeepseekV4Experts",  # a gate of its own, which reads `limit`
    "gpt_oss": "GptOssExperts",  # transposed, biases, interleaved gate
    "openai_privacy_filter": "OpenAIPrivacyFilterExperts",  # transposed, biases
    "aria": "AriaExperts",  # transposed
    "nemotron_h": "NemotronHExperts",  # no gate
    "muse_spark": "MuseSparkExperts",  # a norm after the second product
    "step3p7": "Step3p7Experts",  # does not declare the interface
    "llama4": "Llama4TextExperts",  # tokens come sorted
}


def experts(kind: str = "mixtral", dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """Return experts of a kind, with random parameters."""
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    made: nn.Module = getattr(module, KINDS[kind])(SimpleNamespace(**CONFIG | changes))
    generator = cases.generator(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 + offset)
    return made.to(dtype)


def tokens(dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(TOKENS, HIDDEN, generator=cases.generator(seed)).to(dtype)


def routing(dtype: torch.dtype = torch.float32, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Return the experts of each token and their weights; the first expert has no token."""
    scores = torch.rand(TOKENS, EXPERTS, generator=cases.generator(seed))
    scores[:, 0] = -1.0
    weights, index = scores.topk(TOP_K)
    return index, weights.to(dtype)


def inputs(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Return what the forward of a kind takes."""
    if kind == "llama4":
        return (torch.cat([tokens(dtype), tokens(dtype, 3)])[: 4 * EXPERTS],)
    return (tokens(dtype), *routing(dtype))
