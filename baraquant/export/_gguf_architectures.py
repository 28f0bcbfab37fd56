# SPDX-License-Identifier: BSD-3-Clause
"""What GGUF files say of a model beside its tensors: one row for each architecture.

GGUF has one name for an architecture, and programs that read it know what the name implies: which
activation, whether rows are permuted, and so on. A configuration that differs from what the name
implies cannot be stored. It is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SILU = ("silu", "swish")
GELU = ("gelu_pytorch_tanh",)


@dataclass(frozen=True)
class Architecture:
    """A kind of model.

    Attributes:
        name: What GGUF calls it.
        activations: The activations that the name implies, as transformers calls them.
        permutes: Whether the rows of q and k are stored in another order: pairs of features that
            are rotated together lie side by side in the file, and half a head apart in
            transformers.
        norm_offset: What is added to the weights of norms: Gemma's layers add 1 to theirs.
        check: Returns what the name does not cover in a configuration, or None.
        write: Writes further keys: ``write(writer, config)``.
    """

    name: str
    activations: tuple[str, ...] = SILU
    permutes: bool = False
    norm_offset: float = 0.0
    check: Callable[[Any], str | None] = lambda config: None
    write: Callable[[Any, Any], None] = lambda writer, config: None


def _why_not_window(config: Any) -> str | None:
    window = getattr(config, "sliding_window", None)
    is_used = getattr(config, "use_sliding_window", window is not None)
    if is_used and window is not None and window < config.max_position_embeddings:
        return (
            f"sliding_window={window}, which GGUF has no key for in this architecture; set "
            "config.sliding_window to None, or config.max_position_embeddings to the window"
        )
    return None


def _why_not_gemma2(config: Any) -> str | None:
    if _has_full_attention_other_than(config, every=2):
        return "layer_types other than alternating sliding_attention and full_attention"
    return _why_not_scalar(config, layers_of_27b=46)


def _why_not_scalar(config: Any, layers_of_27b: int) -> str | None:
    scalar = config.head_dim
    if config.num_hidden_layers == layers_of_27b:  # its readers divide by another number
        scalar = config.hidden_size // config.num_attention_heads
    if config.query_pre_attn_scalar != scalar:
        return f"query_pre_attn_scalar={config.query_pre_attn_scalar}, not {scalar}"
    return None


def _has_full_attention_other_than(config: Any, every: int) -> bool:
    """Whether other layers than each so many-th have full attention, or the others no window."""
    expected = [
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer in range(config.num_hidden_layers)
    ]
    return list(config.layer_types) != expected


def _write_gemma(writer: Any, config: Any) -> None:
    if config.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _why_not_gemma3(config: Any) -> str | None:
    if config.attn_logit_softcapping is not None or config.final_logit_softcapping is not None:
        return "a soft cap of logits"
    if getattr(config, "use_bidirectional_attention", False):
        return "use_bidirectional_attention=True"
    if _has_full_attention_other_than(config, every=6):
        return "layer_types other than five times sliding_attention, then full_attention"
    local = config.rope_parameters.get("sliding_attention") or {}
    if local.get("rope_theta", 10000.0) != 10000.0 or local.get("rope_type") != "default":
        return f"the rope parameters {local} of sliding_attention, not rope_theta=10000"
    return _why_not_scalar(config, layers_of_27b=62)


# By transformers' model_type. Mistral's files are llama's: without a window it is the same model.
ARCHITECTURES = {
    "llama": Architecture("llama", permutes=True),
    "mistral": Architecture("llama", permutes=True, check=_why_not_window),
    "qwen2": Architecture("qwen2", check=_why_not_window),
    "qwen3": Architecture("qwen3", check=_why_not_window),
    "gemma": Architecture("gemma", GELU, norm_offset=1.0),
    "gemma2": Architecture(
        "gemma2", GELU, norm_offset=1.0, check=_why_not_gemma2, write=_write_gemma
    ),
    # Gemma 3 has no soft caps: its window alone is written.
    "gemma3_text": Architecture(
        "gemma3", GELU, norm_offset=1.0, check=_why_not_gemma3, write=_write_gemma
    ),
}


def architecture_of(caller: str, model: nn.Module) -> Architecture:
    """Return the row of a model.

    Raises:
        TypeError: It is not a model of transformers.
        ValueError: GGUF has no name for what it computes.
    """
    config: Any = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    if not isinstance(model_type, str):
        raise TypeError(
            f"{caller}: expected a model of transformers, whose config names an architecture, but "
            f"got a {type(model).__name__}"
        )
    if model_type not in ARCHITECTURES:
        raise ValueError(
            f"{caller}: expected an architecture among {', '.join(ARCHITECTURES)}, but got "
            f"{model_type!r}"
        )
    embeddings = getattr(model, "get_output_embeddings", lambda: None)()
    if embeddings is None:
        raise ValueError(
            f"{caller}: expected a language model with a head (AutoModelForCausalLM), but got a "
            f"{type(model).__name__} without one"
        )
    row = ARCHITECTURES[model_type]
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    reason = row.check(config) or _why_not_rope(config)
    if activation not in row.activations:
        reason = f"the activation {activation!r}, not {row.activations[0]!r}"
    if reason is not None:
        raise ValueError(
            f"{caller}: expected a configuration that GGUF's {row.name!r} covers, but got {reason}"
        )
    return row


def write_config(writer: Any, config: Any, row: Architecture) -> None:
    """Write the keys of a configuration."""
    name = getattr(config, "_name_or_path", "") or config.model_type
    # For the name "mistral" transformers looks up an architecture that the package gguf lacks.
    name = "Mistral" if name == "mistral" else name
    heads, head_dim = config.num_attention_heads, head_dim_of(config)
    writer.add_name(name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    rope = rope_of(config)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] == "linear":
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    row.write(writer, config)


def head_dim_of(config: Any) -> int:
    """Return the number of features of an attention head."""
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def rope_of(config: Any) -> dict[str, Any]:
    """Return the parameters of the rotary embedding, of full attention where there are several."""
    rope = getattr(config, "rope_parameters", None)
    if rope is None:  # transformers 4
        scaling = getattr(config, "rope_scaling", None) or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        return {"rope_theta": config.rope_theta, **scaling, "rope_type": kind}
    full = rope.get("full_attention", rope)
    return {"rope_theta": 10000.0, "rope_type": "default", **full}


def rope_factors(config: Any) -> Tensor | None:
    """Return the divisors of the rotary frequencies, ``[head_dim / 2]``; None: all are 1.

    This is Llama 3.1's rule: long waves are slowed down by ``factor``, short ones stay, and between
    the two the divisor changes gradually.
    """
    rope = rope_of(config)
    if rope["rope_type"] != "llama3":
        return None
    size = head_dim_of(config)
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    waves = 2 * math.pi * float(rope["rope_theta"]) ** exponents
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / waves
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - share) / factor + share)).float()


def _why_not_rope(config: Any) -> str | None:
    rope = rope_of(config)
    kind = rope["rope_type"]
    if kind not in ("default", "linear", "llama3"):
        return f"the rope type {kind!r}, not default, linear or llama3"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"partial_rotary_factor={rope['partial_rotary_factor']}"
    return None
