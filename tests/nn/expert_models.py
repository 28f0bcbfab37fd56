# SPDX-License-Identifier: BSD-3-Clause
"""Tiny experts of transformers, one of each form, with tokens and a routing for them."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import W4A16, W8A8, W8A8Static
from baraquant.configs import Config
from baraquant.nn import FakeQuantizedExperts
from tests.support import cases
from tests.support.schemes import all_described, described

EXPERTS, HIDDEN, INNER, TOP_K, TOKENS = 4, 16, 12, 2, 9
CONFIG: dict[str, Any] = {
    **dict.fromkeys(("num_experts", "num_local_experts"), EXPERTS),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts"), EXPERTS),
    **dict.fromkeys(("hidden_size", "moe_hidden_size"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), INNER),
    **dict.fromkeys(("hidden_act", "mlp_hidden_act", "hidden_activation"), "silu"),
    "_experts_implementation": "eager",
}
CONFIG |= {"post_norm_eps": 1e-6, "swiglu_limit": 1.0, "swiglu_alpha": 1.7, "moe_latent_size": None}
# The package of each, and its class: what is special about it.
_KINDS = {
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


def _exists(kind: str) -> bool:
    """Whether the transformers that is installed has the kind; older ones lack some."""
    try:
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    except ImportError:
        return False
    found = getattr(module, _KINDS[kind], None)
    # Two are known by their names, the others declare the interface.
    by_name = ("step3p7", "llama4")
    return found is not None and (kind in by_name or hasattr(found.forward, "__wrapped__"))


KINDS = {kind: name for kind, name in _KINDS.items() if _exists(kind)}


def existing(*kinds: str) -> list[str]:
    return [kind for kind in kinds if kind in KINDS]


def experts(kind: str = "mixtral", dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """Return experts of a kind, with random parameters; skips the test where there are none."""
    if kind not in KINDS:
        pytest.skip(f"the transformers that is installed has no {_KINDS[kind]}")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    made: nn.Module = getattr(module, KINDS[kind])(SimpleNamespace(**CONFIG | changes))
    generator = cases.generator(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if not parameter.is_meta:
                values = torch.randn(parameter.shape, generator=generator) * 0.5
                parameter.copy_(values + (1.0 if "norm" in name else 0.0))
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
    if kind == "llama4":
        return (torch.cat([tokens(dtype), tokens(dtype, 3)])[: 4 * EXPERTS],)
    return (tokens(dtype), *routing(dtype))


CONFIGS: dict[str, Config] = {
    "w8a8": W8A8(), "w8a8 asymmetric": W8A8(symmetric=False), "w8a8 static": W8A8Static(),
    "w8a8 static asymmetric": W8A8Static("moving_average", symmetric=False),
    "per tensor": described("int8 per_tensor, int8 per_tensor"),
    "learned": described("int4 learned, int8 per_tensor asymmetric learned"),
    "groups": W4A16(4),
    "asymmetric groups": described("int4 per_group(4) asymmetric, int8 per_token"),
    "observed groups": described("int4 per_group(4) static, int8 per_tensor learned"),
    **all_described(
        "int4, int8 per_token", "int8 per_tensor static, int8 per_token",
        "int6 static, int8 per_tensor asymmetric", "int4 per_tensor learned, int8 per_tensor "
        "learned", "int8", "int4 asymmetric, int8 per_tensor static", "int8, int8 per_group(4)",
        "int4 per_group(4) asymmetric learned",
    ),
    "w8a8 bfloat16": W8A8(scale_dtype="bfloat16"),
    "tensor float16": described("int8 per_tensor asymmetric", scale_dtype="float16"),
    "groups float16": described("int4 per_group(4) asymmetric, int8 per_token",
        scale_dtype="float16"),
    "observed bfloat16": described("int6 static, int8 per_token", scale_dtype="bfloat16"),
    "learned bfloat16": described("int4 learned, int8 per_tensor learned", scale_dtype="bfloat16"),
}  # fmt: skip
SOME = ("w8a8", "w8a8 static asymmetric", "asymmetric groups")


def prepared(kind: str = "mixtral", config: str = "w8a8", dtype: Any = torch.float32) -> Any:
    """Return experts in evaluation that have seen a batch in training."""
    module = FakeQuantizedExperts.from_float(experts(kind, dtype), CONFIGS[config])
    module.train()(*inputs(kind, dtype))
    return module.eval()
