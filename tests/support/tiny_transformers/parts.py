# SPDX-License-Identifier: BSD-3-Clause
"""What the tables of tiny models are written with: sizes that many share, and inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

VOCABULARY = 64
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Tiny:
    """One architecture: its class, its tiny configuration and inputs that it takes."""

    model: str
    config: str
    sizes: dict[str, Any]
    inputs: Callable[[], Inputs]
    nested: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    generates: bool = False


def tokens(length: int = 12, low: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(low, VOCABULARY, (2, length), generator=generator)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def text() -> Inputs:
    return {"input_ids": tokens(), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}


def ids() -> Inputs:
    return {"input_ids": tokens()}


def pair() -> Inputs:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(7)}


def image(size: int = 32) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": numbers(2, 3, size, size)}


def image_and_text() -> Inputs:
    return {**text(), "pixel_values": numbers(2, 3, 32, 32)}


def sound(length: int = 1600) -> Callable[[], Inputs]:
    return lambda: {"input_values": numbers(2, length)}


# The names that most configurations share.
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 1}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Of an encoder with a decoder; some count the positions of both.
BOTH = {
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
TWO_LENGTHS = {
    **BOTH, **ENDS, "vocab_size": VOCABULARY, "d_model": 32, "decoder_start_token_id": 2,
}  # fmt: skip
SEQ2SEQ = {**TWO_LENGTHS, "max_position_embeddings": 64}
T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1,
    "num_decoder_layers": 1, "num_heads": 2, "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
}  # fmt: skip
PATCHES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "patch_size": 8,
}  # fmt: skip
VIT = {**PATCHES, "image_size": 32}
SOUND = {
    **BERT, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
}  # fmt: skip
WAV2VEC = {**SOUND, "layerdrop": 0.0}


def lm_of(name: str, prefix: str | None = None, **more: Any) -> Tiny:
    sizes = {**LLAMA, **ENDS, "head_dim": 16, **more}
    return Tiny(f"{prefix or name}ForCausalLM", f"{name}Config", sizes, ids, generates=True)


def text_of(name: str, head: str = "Model", **more: Any) -> Tiny:
    return Tiny(f"{name}{head}", f"{name}Config", {**BERT, **ENDS, **more}, text)


def vision_of(name: str, head: str = "Model", **more: Any) -> Tiny:
    return Tiny(f"{name}{head}", f"{name}Config", {**VIT, **more}, image())


def layout_inputs() -> Inputs:
    boxes = torch.randint(0, 500, (2, 12, 4), generator=torch.Generator().manual_seed(3))
    boxes[..., 2:] += boxes[..., :2]
    return {**text(), "bbox": boxes.clamp(max=999)}


def whisper_inputs() -> Inputs:
    return {"input_features": numbers(2, 8, 32), "decoder_input_ids": tokens(7)}


def speech_to_text_inputs() -> Inputs:
    return {"input_features": numbers(2, 32, 8), "decoder_input_ids": tokens(7)}


def series_inputs() -> Inputs:
    return {
        "past_values": numbers(2, 12),
        "past_time_features": numbers(2, 12, 1),
        "past_observed_mask": torch.ones(2, 12),
        "future_values": numbers(2, 4),
        "future_time_features": numbers(2, 4, 1),
    }


def llava_inputs() -> Inputs:
    ids = torch.cat([torch.full((2, 16), 4), tokens(6)], dim=1)
    return {"input_ids": ids, "pixel_values": numbers(2, 3, 32, 32)}
