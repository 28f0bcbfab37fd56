# SPDX-License-Identifier: BSD-3-Clause
"""Architectures of transformers that nobody here wrote, tiny and with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

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
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
LLAMA = {**BERT, "num_key_value_heads": 1}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    **ENDS,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
WAV2VEC = {
    **BERT,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
MOE = {**LLAMA, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}


def _lm(name: str, prefix: str | None = None, **more: Any) -> Tiny:
    sizes = {**LLAMA, **ENDS, "head_dim": 16, **more}
    return Tiny(f"{prefix or name}ForCausalLM", f"{name}Config", sizes, ids, generates=True)


def _text(name: str, head: str = "Model", **more: Any) -> Tiny:
    return Tiny(f"{name}{head}", f"{name}Config", {**BERT, **ENDS, **more}, text)


def _vision(name: str, head: str = "Model", **more: Any) -> Tiny:
    return Tiny(f"{name}{head}", f"{name}Config", {**VIT, **more}, image())


def _layout() -> Inputs:
    boxes = torch.randint(0, 500, (2, 12, 4), generator=torch.Generator().manual_seed(3))
    boxes[..., 2:] += boxes[..., :2]
    return {**text(), "bbox": boxes.clamp(max=999)}


def _whisper() -> Inputs:
    return {"input_features": numbers(2, 8, 32), "decoder_input_ids": tokens(7)}


def _speech_to_text() -> Inputs:
    return {"input_features": numbers(2, 32, 8), "decoder_input_ids": tokens(7)}


def _series() -> Inputs:
    return {
        "past_values": numbers(2, 12),
        "past_time_features": numbers(2, 12, 1),
        "past_observed_mask": torch.ones(2, 12),
        "future_values": numbers(2, 4),
        "future_time_features": numbers(2, 4, 1),
    }


def _llava() -> Inputs:
    ids = torch.cat([torch.full((2, 16), 4), tokens(6)], dim=1)
    return {"input_ids": ids, "pixel_values": numbers(2, 3, 32, 32)}


TINY: dict[str, Tiny] = {
    # Encoders of text.
    "bert": _text("Bert", "ForMaskedLM"),
    "bert_classifier": _text("Bert", "ForSequenceClassification"),
    "roberta": _text("Roberta", "ForSequenceClassification"),
    "albert": _text("Albert", "ForMaskedLM", embedding_size=16),
    "deberta": _text(
        "Deberta",
        "ForMaskedLM",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_biased_input=False,
    ),
    "deberta_v2": _text(
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        conv_kernel_size=3,
        share_att_key=True,
    ),
    "electra": _text("Electra", "ForPreTraining", embedding_size=16),
    "distilbert": Tiny(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        text,
    ),
    "mpnet": _text("MPNet", "ForMaskedLM"),
    "mobilebert": _text(
        "MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16
    ),
    "squeezebert": _text("SqueezeBert", embedding_size=32),
    "convbert": _text("ConvBert", embedding_size=16, conv_kernel_size=3, head_ratio=1),
    "fnet": Tiny("FNetForMaskedLM", "FNetConfig", {**BERT, **ENDS}, ids),
    "funnel": Tiny(
        "FunnelModel",
        "FunnelConfig",
        {
            "vocab_size": VOCABULARY,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 2,
            "d_head": 16,
            "d_inner": 64,
            "num_decoder_layers": 1,
        },
        text,
    ),
    "xlnet": Tiny(
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64},
        ids,
    ),
    "xlm": Tiny(
        "XLMWithLMHeadModel",
        "XLMConfig",
        {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 2, "n_langs": 1},
        ids,
    ),
    "longformer": _text("Longformer", attention_window=[4, 4]),
    "big_bird": _text("BigBird", attention_type="original_full", block_size=4, num_random_blocks=1),
    "nystromformer": _text("Nystromformer", num_landmarks=4, segment_means_seq_len=12),
    "roformer": _text("RoFormer", embedding_size=16),
    "modernbert": _text(
        "ModernBert", "ForMaskedLM", local_attention=8, cls_token_id=1, sep_token_id=2
    ),
    "esm": _text("Esm", position_embedding_type="rotary", mask_token_id=3),
    "ibert": _text("IBert"),
    "yoso": _text("Yoso", use_expectation=True),
    "canine": Tiny(
        "CanineModel",
        "CanineConfig",
        {
            **BERT,
            "local_transformer_stride": 4,
            "downsampling_rate": 2,
            "num_hash_functions": 2,
            "num_hash_buckets": 32,
            "max_position_embeddings": 256,
        },
        lambda: {"input_ids": tokens(16), "attention_mask": torch.ones(2, 16, dtype=torch.int64)},
    ),
    "reformer": Tiny(
        "ReformerModelWithLMHead",
        "ReformerConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "attention_head_size": 16,
            "num_attention_heads": 2,
            "feed_forward_size": 64,
            "attn_layers": ["local", "lsh"],
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 4,
            "axial_pos_shape": (4, 4),
            "axial_pos_embds_dim": (16, 16),
            "max_position_embeddings": 16,
            "is_decoder": True,
            "num_buckets": 2,
            "num_hashes": 1,
            "hash_seed": 0,
            "hidden_dropout_prob": 0.0,
            "local_attention_probs_dropout_prob": 0.0,
        },
        lambda: {"input_ids": tokens(16)},
    ),
    "perceiver": Tiny(
        "PerceiverForMaskedLM",
        "PerceiverConfig",
        {
            "vocab_size": VOCABULARY,
            "num_latents": 8,
            "d_latents": 32,
            "d_model": 32,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "qk_channels": 32,
            "v_channels": 32,
            "max_position_embeddings": 12,
        },
        lambda: {"inputs": tokens(), "attention_mask": torch.ones(2, 12)},
    ),
    "layoutlm": Tiny("LayoutLMModel", "LayoutLMConfig", {**BERT, **ENDS}, _layout),
    "layoutlmv3": Tiny(
        "LayoutLMv3Model",
        "LayoutLMv3Config",
        {
            **BERT,
            **ENDS,
            "input_size": 32,
            "patch_size": 8,
            "coordinate_size": 6,
            "shape_size": 4,
            "has_relative_attention_bias": True,
            "has_spatial_attention_bias": True,
        },
        lambda: {**_layout(), "pixel_values": numbers(2, 3, 32, 32)},
    ),
    # Encoders with a decoder.
    "t5": Tiny("T5ForConditionalGeneration", "T5Config", T5, pair, generates=True),
    "t5_gated": Tiny(
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        pair,
        generates=True,
    ),
    "mt5": Tiny("MT5ForConditionalGeneration", "MT5Config", T5, pair, generates=True),
    "umt5": Tiny("UMT5ForConditionalGeneration", "UMT5Config", T5, pair, generates=True),
    "longt5": Tiny(
        "LongT5Model",
        "LongT5Config",
        {**T5, "local_radius": 4, "encoder_attention_type": "transient-global", "global_block_size": 4},
        pair,
    ),
    "switch": Tiny(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        {**T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        pair,
    ),
    "bart": Tiny("BartForConditionalGeneration", "BartConfig", SEQ2SEQ, pair, generates=True),
    "mbart": Tiny("MBartForConditionalGeneration", "MBartConfig", SEQ2SEQ, pair),
    "pegasus": Tiny(
        "PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ, pair, generates=True
    ),
    "pegasus_x": Tiny(
        "PegasusXModel", "PegasusXConfig", {**SEQ2SEQ, "block_size": 4, "num_global_tokens": 4}, pair
    ),
    "marian": Tiny("MarianMTModel", "MarianConfig", SEQ2SEQ, pair, generates=True),
    "m2m_100": Tiny("M2M100ForConditionalGeneration", "M2M100Config", SEQ2SEQ, pair),
    "blenderbot": Tiny("BlenderbotForConditionalGeneration", "BlenderbotConfig", SEQ2SEQ, pair),
    "led": Tiny(
        "LEDForConditionalGeneration",
        "LEDConfig",
        {
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        pair,
    ),
    "prophetnet": Tiny(
        "ProphetNetForConditionalGeneration",
        "ProphetNetConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "num_encoder_attention_heads": 2,
            "num_decoder_attention_heads": 2,
            "max_position_embeddings": 64,
            **ENDS,
        },
        pair,
    ),
    # Language models.
    "gpt2": Tiny(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
        | ENDS,
        ids,
        generates=True,
    ),
    "gpt_neo": Tiny(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
            **ENDS,
        },
        ids,
        generates=True,
    ),
    "gpt_neox": Tiny(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", {**BERT, **ENDS}, ids, generates=True
    ),
    "gptj": Tiny(
        "GPTJForCausalLM",
        "GPTJConfig",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 8}
        | ENDS,
        ids,
        generates=True,
    ),
    "opt": Tiny(
        "OPTForCausalLM",
        "OPTConfig",
        {**BERT, **ENDS, "ffn_dim": 64, "word_embed_proj_dim": 16},
        ids,
        generates=True,
    ),
    "bloom": Tiny(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 2, **ENDS},
        ids,
        generates=True,
    ),
    "llama": _lm("Llama"),
    "llama_tied": _lm("Llama", tie_word_embeddings=True),
    "mistral": _lm("Mistral"),
    "mixtral": _lm("Mixtral", num_local_experts=4),
    "qwen2": _lm("Qwen2"),
    "qwen3": _lm("Qwen3"),
    "qwen2_moe": _lm(
        "Qwen2Moe",
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts_per_tok=2,
    ),
    "qwen3_moe": _lm("Qwen3Moe", num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2),
    "qwen3_next": _lm(
        "Qwen3Next",
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts_per_tok=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        layer_types=["linear_attention", "full_attention"],
    ),
    "gpt_oss": _lm("GptOss", num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": _lm(
        "DeepseekV3",
        head_dim=8,
        num_key_value_heads=2,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=16,
        num_experts_per_tok=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=1,
    ),
    "gemma": _lm("Gemma"),
    "gemma2": _lm("Gemma2"),
    "gemma3": _lm("Gemma3Text", "Gemma3"),
    "phi": _lm("Phi"),
    "phi3": _lm("Phi3"),
    "falcon": Tiny("FalconForCausalLM", "FalconConfig", {**BERT, **ENDS}, ids, generates=True),
    "stablelm": _lm("StableLm"),
    "olmo": _lm("Olmo"),
    "olmo2": _lm("Olmo2"),
    "cohere": _lm("Cohere"),
    "granite": _lm("Granite"),
    "starcoder2": _lm("Starcoder2"),
    "smollm3": _lm("SmolLM3"),
    "glm4": _lm("Glm4"),
    "mpt": Tiny(
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
        ids,
    ),
    "mamba": Tiny(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}
        | ENDS,
        ids,
        generates=True,
    ),
    "mamba2": Tiny(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 1,
            "chunk_size": 8,
            **ENDS,
        },
        ids,
        generates=True,
    ),
    "falcon_mamba": Tiny(
        "FalconMambaForCausalLM",
        "FalconMambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}
        | ENDS,
        ids,
    ),
    "jamba": _lm(
        "Jamba",
        num_experts=2,
        num_experts_per_tok=1,
        use_mamba_kernels=False,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
    ),
    "rwkv": Tiny(
        "RwkvForCausalLM",
        "RwkvConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 32},
        ids,
    ),
    "recurrent_gemma": _lm(
        "RecurrentGemma", num_hidden_layers=3, lru_width=32, attention_window_size=8
    ),
    "lfm2": _lm("Lfm2", layer_types=["conv", "full_attention"]),
    "xglm": Tiny(
        "XGLMForCausalLM",
        "XGLMConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 64, "num_layers": 2}
        | {"attention_heads": 2, "max_position_embeddings": 64}
        | ENDS,
        ids,
    ),
    "codegen": Tiny(
        "CodeGenForCausalLM",
        "CodeGenConfig",
        {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 1, "n_head": 4, "rotary_dim": 8}
        | ENDS,
        ids,
    ),
    "ctrl": Tiny(
        "CTRLLMHeadModel",
        "CTRLConfig",
        {"vocab_size": VOCABULARY, "n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 2},
        ids,
    ),
    # Images.
    "vit": _vision("ViT", "ForImageClassification"),
    "deit": _vision("DeiT", "ForImageClassification"),
    "beit": _vision("Beit", use_relative_position_bias=True),
    "data2vec_vision": _vision("Data2VecVision", use_shared_relative_position_bias=True),
    "dinov2": _vision("Dinov2"),
    "swin": Tiny(
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        image(),
    ),
    "swinv2": Tiny(
        "Swinv2Model",
        "Swinv2Config",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        image(),
    ),
    "convnext": Tiny(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
        image(),
    ),
    "resnet": Tiny(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
        image(),
    ),
    "regnet": Tiny(
        "RegNetModel",
        "RegNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
        image(),
    ),
    "mobilenet_v2": Tiny(
        "MobileNetV2Model", "MobileNetV2Config", {"depth_multiplier": 0.25, "image_size": 32}, image()
    ),
    "mobilevit": Tiny(
        "MobileViTModel",
        "MobileViTConfig",
        {
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 16],
            "image_size": 64,
        },
        image(64),
    ),
    "efficientnet": Tiny(
        "EfficientNetModel", "EfficientNetConfig", {"width_coefficient": 0.25, "hidden_dim": 320}, image()
    ),
    "segformer": Tiny(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [16, 16, 32, 32],
            "num_attention_heads": [1, 1, 2, 2],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 16,
        },
        image(64),
    ),
    "pvt": Tiny(
        "PvtModel",
        "PvtConfig",
        {"image_size": 64, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
        | {"num_attention_heads": [1, 1, 2, 2]},
        image(64),
    ),
    "vit_mae": _vision(
        "ViTMAE",
        "ForPreTraining",
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
        mask_ratio=0.5,
    ),
    "detr": Tiny(
        "DetrForObjectDetection",
        "DetrConfig",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_queries": 6,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
        },
        image(64),
        nested={
            "backbone_config": (
                "ResNetConfig",
                {
                    "embedding_size": 16,
                    "hidden_sizes": [16, 32],
                    "depths": [1, 1],
                    "num_stages": 2,
                    "out_features": ["stage2"],
                },
            )
        },
    ),
    "yolos": Tiny(
        "YolosForObjectDetection",
        "YolosConfig",
        {**VIT, "image_size": [32, 32], "num_detection_tokens": 4},
        image(),
    ),
    "dpt": Tiny(
        "DPTForDepthEstimation",
        "DPTConfig",
        {
            **VIT,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
            "is_hybrid": False,
            "readout_type": "project",
        },
        image(),
    ),
    "sam": Tiny(
        "SamModel",
        "SamConfig",
        {},
        image(32),
        nested={
            "vision_config": (
                "SamVisionConfig",
                {
                    "hidden_size": 32,
                    "output_channels": 16,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "image_size": 32,
                    "patch_size": 8,
                    "mlp_dim": 64,
                    "window_size": 2,
                    "global_attn_indexes": [1],
                    "num_pos_feats": 8,
                },
            ),
            "prompt_encoder_config": (
                "SamPromptEncoderConfig",
                {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
            ),
            "mask_decoder_config": (
                "SamMaskDecoderConfig",
                {
                    "hidden_size": 16,
                    "mlp_dim": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "iou_head_hidden_dim": 16,
                },
            ),
        },
    ),
    # Images and text.
    "clip": Tiny(
        "CLIPModel",
        "CLIPConfig",
        {"projection_dim": 16},
        image_and_text,
        nested={"text_config": ("CLIPTextConfig", {**BERT, **ENDS}), "vision_config": ("CLIPVisionConfig", VIT)},
    ),
    "siglip": Tiny(
        "SiglipModel",
        "SiglipConfig",
        {},
        image_and_text,
        nested={
            "text_config": ("SiglipTextConfig", {**BERT, **ENDS}),
            "vision_config": ("SiglipVisionConfig", VIT),
        },
    ),
    "blip": Tiny(
        "BlipForConditionalGeneration",
        "BlipConfig",
        {"projection_dim": 16},
        image_and_text,
        nested={
            "text_config": ("BlipTextConfig", {**BERT, **ENDS, "encoder_hidden_size": 32}),
            "vision_config": ("BlipVisionConfig", VIT),
        },
    ),
    "llava": Tiny(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {"image_token_index": 4, "image_token_id": 4, "vision_feature_layer": -1},
        _llava,
        nested={
            "text_config": ("LlamaConfig", {**LLAMA, **ENDS, "head_dim": 16}),
            "vision_config": ("CLIPVisionConfig", VIT),
        },
        generates=True,
    ),
    "owlvit": Tiny(
        "OwlViTModel",
        "OwlViTConfig",
        {"projection_dim": 16},
        image_and_text,
        nested={
            "text_config": ("OwlViTTextConfig", {**BERT, **ENDS}),
            "vision_config": ("OwlViTVisionConfig", VIT),
        },
    ),
    # Sound.
    "whisper": Tiny(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 32,
            "begin_suppress_tokens": None,
            "suppress_tokens": None,
        },
        _whisper,
    ),
    "speech_to_text": Tiny(
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        {
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "num_conv_layers": 2,
            "conv_kernel_sizes": (3, 3),
            "max_source_positions": 64,
            "max_target_positions": 32,
        },
        _speech_to_text,
    ),
    "wav2vec2": Tiny("Wav2Vec2ForCTC", "Wav2Vec2Config", WAV2VEC, sound()),
    "hubert": Tiny("HubertModel", "HubertConfig", WAV2VEC, sound()),
    "wavlm": Tiny("WavLMModel", "WavLMConfig", {**WAV2VEC, "num_buckets": 16}, sound()),
    "sew": Tiny("SEWModel", "SEWConfig", {**WAV2VEC, "squeeze_factor": 2}, sound()),
    "data2vec_audio": Tiny(
        "Data2VecAudioModel",
        "Data2VecAudioConfig",
        {**WAV2VEC, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
        sound(),
    ),
    "wav2vec2_conformer": Tiny("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", WAV2VEC, sound()),
    "speecht5": Tiny(
        "SpeechT5ForSpeechToText",
        "SpeechT5Config",
        {
            **{k: v for k, v in WAV2VEC.items() if k != "layerdrop"},
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
            "max_speech_positions": 64,
            "max_text_positions": 32,
        },
        lambda: {"input_values": numbers(2, 1600), "decoder_input_ids": tokens(7)},
    ),
    "vits": Tiny(
        "VitsModel",
        "VitsConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "flow_size": 16,
            "spectrogram_bins": 17,
            "prior_encoder_num_flows": 1,
            "prior_encoder_num_wavenet_layers": 1,
            "posterior_encoder_num_wavenet_layers": 1,
            "upsample_initial_channel": 16,
            "upsample_rates": [4, 4],
            "upsample_kernel_sizes": [8, 8],
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1, 3]],
            "duration_predictor_num_flows": 1,
            "duration_predictor_filter_channels": 16,
            "wavenet_kernel_size": 3,
            "noise_scale": 0.0,
            "noise_scale_duration": 0.0,
        },
        text,
    ),
    "audio_spectrogram_transformer": Tiny(
        "ASTModel",
        "ASTConfig",
        {**{k: v for k, v in VIT.items() if k != "image_size"}, "max_length": 32, "num_mel_bins": 16},
        lambda: {"input_values": numbers(2, 32, 16)},
    ),
    "encodec": Tiny(
        "EncodecModel",
        "EncodecConfig",
        {
            "num_filters": 8,
            "hidden_size": 16,
            "codebook_size": 32,
            "codebook_dim": 16,
            "upsampling_ratios": [4, 2],
            "num_lstm_layers": 1,
            "target_bandwidths": [24.0],
        },
        lambda: {"input_values": numbers(1, 1, 480)},
    ),
    # Series of numbers.
    "time_series_transformer": Tiny(
        "TimeSeriesTransformerModel",
        "TimeSeriesTransformerConfig",
        {
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2, 3, 4],
            "num_time_features": 1,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "d_model": 32,
        },
        _series,
    ),
    "patchtst": Tiny(
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "ffn_dim": 64,
            "prediction_length": 4,
        },
        lambda: {"past_values": numbers(2, 16, 2)},
    ),
    "decision_transformer": Tiny(
        "DecisionTransformerModel",
        "DecisionTransformerConfig",
        {"hidden_size": 32, "n_layer": 1, "n_head": 2, "state_dim": 4, "act_dim": 2},
        lambda: {
            "states": numbers(2, 5, 4),
            "actions": numbers(2, 5, 2),
            "rewards": numbers(2, 5, 1),
            "returns_to_go": numbers(2, 5, 1),
            "timesteps": torch.arange(5).expand(2, 5),
            "attention_mask": torch.ones(2, 5),
        },
    ),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """The model in evaluation. On the meta device, under `torch.device("meta")`."""
    import transformers

    tiny = TINY[name]
    nested = {
        key: getattr(transformers, config)(**sizes) for key, (config, sizes) in tiny.nested.items()
    }
    config = getattr(transformers, tiny.config)(**tiny.sizes, **nested)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model: nn.Module = getattr(transformers, tiny.model)(config)
    return model.eval()


def liven(model: nn.Module) -> nn.Module:
    """Weights as large as those of trained models: each layer keeps the size of its input.

    The usual initial weights are so small that a residual path hides what layers compute.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter.std() > 0:
                fan_in = parameter[0].numel()
                parameter *= fan_in**-0.5 / parameter.std()
    return model


def tensors(output: Any) -> list[torch.Tensor]:
    """All floating tensors of an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        return [t for value in output.values() for t in tensors(value)]
    if isinstance(output, list | tuple):
        return [t for value in output for t in tensors(value)]
    return []


def outputs(model: nn.Module, inputs: Inputs, seed: int = 1) -> list[torch.Tensor]:
    """What the model makes of the inputs; its own random numbers are the same in every call."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return tensors(model(**inputs))


def relative_error(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest relative error of the outputs, each measured by its own norm."""
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        if b.norm() > 0:
            worst = max(worst, float((a.double() - b.double()).norm() / b.double().norm()))
    return worst
