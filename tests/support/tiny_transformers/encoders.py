# SPDX-License-Identifier: BSD-3-Clause
"""Tiny encoders of text."""

from __future__ import annotations

import torch

from tests.support.tiny_transformers.parts import (
    BERT,
    ENDS,
    VOCABULARY,
    Tiny,
    ids,
    layout_inputs,
    numbers,
    text,
    text_of,
    tokens,
)

ENCODERS: dict[str, Tiny] = {
    # Encoders of text.
    "bert": text_of("Bert", "ForMaskedLM"),
    "bert_classifier": text_of("Bert", "ForSequenceClassification"),
    "roberta": text_of("Roberta", "ForSequenceClassification"),
    "albert": text_of("Albert", "ForMaskedLM", embedding_size=16),
    "deberta": text_of(
        "Deberta",
        "ForMaskedLM",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_biased_input=False,
    ),
    "deberta_v2": text_of(
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        conv_kernel_size=3,
        share_att_key=True,
    ),
    "electra": text_of("Electra", "ForPreTraining", embedding_size=16),
    "distilbert": Tiny(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        text,
    ),
    "mpnet": text_of("MPNet", "ForMaskedLM"),
    "mobilebert": text_of(
        "MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16
    ),
    "squeezebert": text_of("SqueezeBert", embedding_size=32),
    "convbert": text_of("ConvBert", embedding_size=16, conv_kernel_size=3, head_ratio=1),
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
    "longformer": text_of("Longformer", attention_window=[4, 4]),
    "big_bird": text_of(
        "BigBird", attention_type="original_full", block_size=4, num_random_blocks=1
    ),
    "nystromformer": text_of("Nystromformer", num_landmarks=4, segment_means_seq_len=12),
    "roformer": text_of("RoFormer", embedding_size=16),
    "modernbert": text_of(
        "ModernBert", "ForMaskedLM", local_attention=8, cls_token_id=1, sep_token_id=2
    ),
    "esm": text_of("Esm", position_embedding_type="rotary", mask_token_id=3),
    "ibert": text_of("IBert"),
    "yoso": text_of("Yoso", use_expectation=True),
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
    "layoutlm": Tiny("LayoutLMModel", "LayoutLMConfig", {**BERT, **ENDS}, layout_inputs),
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
        lambda: {**layout_inputs(), "pixel_values": numbers(2, 3, 32, 32)},
    ),
}
