# SPDX-License-Identifier: BSD-3-Clause
"""The table of tiny models, and what it is written with: sizes that many share, and inputs."""

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


def tokens(length: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(5, VOCABULARY, (2, length), generator=generator)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def ids() -> Inputs:
    return {"input_ids": tokens()}


def text() -> Inputs:
    return {**ids(), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}


def pair() -> Inputs:
    return {**ids(), "decoder_input_ids": tokens(7)}


def image(size: int = 32) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": numbers(2, 3, size, size)}


def image_and_text() -> Inputs:
    return {**text(), **image()()}


def sound() -> Inputs:
    return {"input_values": numbers(2, 1600)}


def layout_inputs() -> Inputs:
    boxes = torch.randint(0, 500, (2, 12, 4), generator=torch.Generator().manual_seed(3))
    boxes[..., 2:] += boxes[..., :2]
    return {**text(), "bbox": boxes.clamp(max=999)}


# The names that most configurations share.
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 1}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# The names of GPT's successors, of state spaces, of windows and of residual networks.
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2}
MAMBA = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
}  # fmt: skip
SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
    "window_size": 4,
}  # fmt: skip
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
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


def of(
    name: str,
    head: str,
    inputs: Callable[[], Inputs],
    *shared: dict[str, Any],
    generates: bool = False,
    nested: dict[str, tuple[str, dict[str, Any]]] | None = None,
    **more: Any,
) -> Tiny:
    """The model `{name}{head}` of `{name}Config`, which has the shared sizes and more."""
    sizes = {key: size for some in (*shared, more) for key, size in some.items()}
    return Tiny(f"{name}{head}", f"{name}Config", sizes, inputs, nested or {}, generates)


def lm_of(name: str, prefix: str | None = None, **more: Any) -> Tiny:
    sizes = {**LLAMA, **ENDS, "head_dim": 16, **more}
    return Tiny(f"{prefix or name}ForCausalLM", f"{name}Config", sizes, ids, generates=True)


def text_of(name: str, head: str = "Model", **more: Any) -> Tiny:
    return of(name, head, text, BERT, ENDS, **more)


def vision_of(name: str, head: str = "Model", **more: Any) -> Tiny:
    return of(name, head, image(), VIT, **more)


TINY: dict[str, Tiny] = {
    # Encoders of text.
    "bert": text_of("Bert", "ForMaskedLM"),
    "bert_classifier": text_of("Bert", "ForSequenceClassification"),
    "roberta": text_of("Roberta", "ForSequenceClassification"),
    "albert": text_of("Albert", "ForMaskedLM", embedding_size=16),
    "deberta": text_of("Deberta", "ForMaskedLM", relative_attention=True, pos_att_type=["c2p",
        "p2c"], position_biased_input=False),
    "deberta_v2": text_of("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_buckets=8, conv_kernel_size=3, share_att_key=True),
    "electra": text_of("Electra", "ForPreTraining", embedding_size=16),
    "distilbert": of("DistilBert", "ForSequenceClassification", text, vocab_size=VOCABULARY, dim=32,
        n_layers=2, n_heads=2, hidden_dim=64),
    "mpnet": text_of("MPNet", "ForMaskedLM"),
    "mobilebert": text_of("MobileBert", embedding_size=16, intra_bottleneck_size=16,
        true_hidden_size=16),
    "squeezebert": text_of("SqueezeBert", embedding_size=32),
    "convbert": text_of("ConvBert", embedding_size=16, conv_kernel_size=3, head_ratio=1),
    "fnet": of("FNet", "ForMaskedLM", ids, BERT, ENDS),
    "funnel": of("Funnel", "Model", text, vocab_size=VOCABULARY, block_sizes=[1, 1], d_model=32,
        n_head=2, d_head=16, d_inner=64, num_decoder_layers=1),
    "xlnet": of("XLNet", "LMHeadModel", ids, vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=2,
        d_inner=64),
    "xlm": of("XLM", "WithLMHeadModel", ids, vocab_size=VOCABULARY, emb_dim=32, n_layers=2,
        n_heads=2, n_langs=1),
    "longformer": text_of("Longformer", attention_window=[4, 4]),
    "big_bird": text_of("BigBird", attention_type="original_full", block_size=4,
        num_random_blocks=1),
    "nystromformer": text_of("Nystromformer", num_landmarks=4, segment_means_seq_len=12),
    "roformer": text_of("RoFormer", embedding_size=16),
    "modernbert": text_of("ModernBert", "ForMaskedLM", local_attention=8, cls_token_id=1,
        sep_token_id=2),
    "esm": text_of("Esm", position_embedding_type="rotary", mask_token_id=3),
    "ibert": text_of("IBert"),
    "yoso": text_of("Yoso", use_expectation=True),
    "canine": of("Canine", "Model", lambda: {"input_ids": tokens(16),
        "attention_mask": torch.ones(2, 16, dtype=torch.int64)}, BERT, local_transformer_stride=4,
        downsampling_rate=2, num_hash_functions=2, num_hash_buckets=32,
        max_position_embeddings=256),
    "reformer": of("Reformer", "ModelWithLMHead", lambda: {"input_ids": tokens(16)},
        vocab_size=VOCABULARY, hidden_size=32, attention_head_size=16, num_attention_heads=2,
        feed_forward_size=64, attn_layers=["local", "lsh"], local_attn_chunk_length=4,
        lsh_attn_chunk_length=4, axial_pos_shape=(4, 4), axial_pos_embds_dim=(16, 16),
        max_position_embeddings=16, is_decoder=True, num_buckets=2, num_hashes=1, hash_seed=0,
        hidden_dropout_prob=0.0, local_attention_probs_dropout_prob=0.0),
    "perceiver": of("Perceiver", "ForMaskedLM", lambda: {"inputs": tokens(),
        "attention_mask": torch.ones(2, 12)}, vocab_size=VOCABULARY, num_latents=8, d_latents=32,
        d_model=32, num_self_attends_per_block=1, num_self_attention_heads=2,
        num_cross_attention_heads=2, qk_channels=32, v_channels=32, max_position_embeddings=12),
    "layoutlm": of("LayoutLM", "Model", layout_inputs, BERT, ENDS),
    "layoutlmv3": of("LayoutLMv3", "Model", lambda: {**layout_inputs(),
        "pixel_values": numbers(2, 3, 32, 32)}, BERT, ENDS, input_size=32, patch_size=8,
        coordinate_size=6, shape_size=4, has_relative_attention_bias=True,
        has_spatial_attention_bias=True),
    # Encoders with a decoder.
    "t5": of("T5", "ForConditionalGeneration", pair, T5, generates=True),
    "t5_gated": of("T5", "ForConditionalGeneration", pair, T5, generates=True,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": of("MT5", "ForConditionalGeneration", pair, T5, generates=True),
    "umt5": of("UMT5", "ForConditionalGeneration", pair, T5, generates=True),
    "longt5": of("LongT5", "Model", pair, T5, local_radius=4,
        encoder_attention_type="transient-global", global_block_size=4),
    "switch": of("SwitchTransformers", "ForConditionalGeneration", pair, T5, num_experts=2,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
    "bart": of("Bart", "ForConditionalGeneration", pair, SEQ2SEQ, generates=True),
    "mbart": of("MBart", "ForConditionalGeneration", pair, SEQ2SEQ),
    "pegasus": of("Pegasus", "ForConditionalGeneration", pair, SEQ2SEQ, generates=True),
    "pegasus_x": of("PegasusX", "Model", pair, SEQ2SEQ, block_size=4, num_global_tokens=4),
    "marian": of("Marian", "MTModel", pair, SEQ2SEQ, generates=True),
    "m2m_100": of("M2M100", "ForConditionalGeneration", pair, SEQ2SEQ),
    "blenderbot": of("Blenderbot", "ForConditionalGeneration", pair, SEQ2SEQ),
    "led": of("LED", "ForConditionalGeneration", pair, TWO_LENGTHS, attention_window=4,
        max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    "prophetnet": of("ProphetNet", "ForConditionalGeneration", pair, ENDS, vocab_size=VOCABULARY,
        hidden_size=32, encoder_ffn_dim=64, decoder_ffn_dim=64, num_encoder_layers=1,
        num_decoder_layers=1, num_encoder_attention_heads=2, num_decoder_attention_heads=2,
        max_position_embeddings=64),
    # Language models.
    "gpt2": of("GPT2", "LMHeadModel", ids, GPT, ENDS, generates=True, n_positions=64),
    "gpt_neo": of("GPTNeo", "ForCausalLM", ids, ENDS, generates=True, vocab_size=VOCABULARY,
        hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]],
        window_size=4, max_position_embeddings=64),
    "gpt_neox": of("GPTNeoX", "ForCausalLM", ids, BERT, ENDS, generates=True),
    "gptj": of("GPTJ", "ForCausalLM", ids, GPT, ENDS, generates=True, rotary_dim=8),
    "opt": of("OPT", "ForCausalLM", ids, BERT, ENDS, generates=True, ffn_dim=64,
        word_embed_proj_dim=16),
    "bloom": of("Bloom", "ForCausalLM", ids, ENDS, generates=True, vocab_size=VOCABULARY,
        hidden_size=32, n_layer=2, n_head=2),
    "llama": lm_of("Llama"),
    "llama_tied": lm_of("Llama", tie_word_embeddings=True),
    "mistral": lm_of("Mistral"),
    "mixtral": lm_of("Mixtral", num_local_experts=4),
    "qwen2": lm_of("Qwen2"),
    "qwen3": lm_of("Qwen3"),
    "qwen2_moe": lm_of("Qwen2Moe", num_experts=4, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, num_experts_per_tok=2),
    "qwen3_moe": lm_of("Qwen3Moe", num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2),
    "qwen3_next": lm_of("Qwen3Next", num_experts=4, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, num_experts_per_tok=2, linear_key_head_dim=16,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2,
        layer_types=["linear_attention", "full_attention"]),
    "gpt_oss": lm_of("GptOss", num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": lm_of("DeepseekV3", head_dim=8, num_key_value_heads=2, n_routed_experts=4,
        n_group=1, topk_group=1, moe_intermediate_size=16, num_experts_per_tok=2, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
        first_k_dense_replace=1),
    "gemma": lm_of("Gemma"),
    "gemma2": lm_of("Gemma2"),
    "gemma3": lm_of("Gemma3Text", "Gemma3"),
    "phi": lm_of("Phi"),
    "phi3": lm_of("Phi3"),
    "falcon": of("Falcon", "ForCausalLM", ids, BERT, ENDS, generates=True),
    "stablelm": lm_of("StableLm"),
    "olmo": lm_of("Olmo"),
    "olmo2": lm_of("Olmo2"),
    "cohere": lm_of("Cohere"),
    "granite": lm_of("Granite"),
    "starcoder2": lm_of("Starcoder2"),
    "smollm3": lm_of("SmolLM3"),
    "glm4": lm_of("Glm4"),
    "mpt": of("Mpt", "ForCausalLM", ids, vocab_size=VOCABULARY, d_model=32, n_heads=2, n_layers=2,
        max_seq_len=64),
    "mamba": of("Mamba", "ForCausalLM", ids, MAMBA, ENDS, generates=True),
    "mamba2": of("Mamba2", "ForCausalLM", ids, MAMBA, ENDS, generates=True, num_heads=4,
        head_dim=16, n_groups=1, chunk_size=8),
    "falcon_mamba": of("FalconMamba", "ForCausalLM", ids, MAMBA, ENDS),
    "jamba": lm_of("Jamba", num_experts=2, num_experts_per_tok=1, use_mamba_kernels=False,
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1),
    "rwkv": of("Rwkv", "ForCausalLM", ids, vocab_size=VOCABULARY, hidden_size=32,
        num_hidden_layers=2, context_length=32, rescale_every=0),
    "recurrent_gemma": lm_of("RecurrentGemma", num_hidden_layers=3, lru_width=32,
        attention_window_size=8),
    "lfm2": lm_of("Lfm2", layer_types=["conv", "full_attention"]),
    "xglm": of("XGLM", "ForCausalLM", ids, ENDS, vocab_size=VOCABULARY, d_model=32, ffn_dim=64,
        num_layers=2, attention_heads=2, max_position_embeddings=64),
    "codegen": of("CodeGen", "ForCausalLM", ids, ENDS, vocab_size=VOCABULARY, n_embd=64, n_layer=1,
        n_head=4, rotary_dim=8),
    "ctrl": of("CTRL", "LMHeadModel", ids, GPT, dff=64),
    # Images.
    "vit": vision_of("ViT", "ForImageClassification"),
    "deit": vision_of("DeiT", "ForImageClassification"),
    "beit": vision_of("Beit", use_relative_position_bias=True),
    "data2vec_vision": vision_of("Data2VecVision", use_shared_relative_position_bias=True),
    "dinov2": vision_of("Dinov2"),
    "swin": of("Swin", "ForImageClassification", image(), SWIN),
    "swinv2": of("Swinv2", "Model", image(), SWIN),
    "convnext": of("ConvNext", "ForImageClassification", image(), hidden_sizes=[16, 32],
        depths=[1, 1], num_stages=2),
    "resnet": of("ResNet", "ForImageClassification", image(), RESNET, num_stages=2),
    "regnet": of("RegNet", "Model", image(), RESNET, groups_width=8),
    "mobilenet_v2": of("MobileNetV2", "Model", image(), depth_multiplier=0.25, image_size=32),
    "mobilevit": of("MobileViT", "Model", image(64), hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 16], image_size=64),
    "efficientnet": of("EfficientNet", "Model", image(), width_coefficient=0.25, hidden_dim=320),
    "segformer": of("Segformer", "ForSemanticSegmentation", image(64),
        hidden_sizes=[16, 16, 32, 32], num_attention_heads=[1, 1, 2, 2], depths=[1, 1, 1, 1],
        decoder_hidden_size=16),
    "pvt": of("Pvt", "Model", image(64), image_size=64, hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
    "vit_mae": vision_of("ViTMAE", "ForPreTraining", decoder_hidden_size=32,
        decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=64,
        mask_ratio=0.5),
    "detr": of("Detr", "ForObjectDetection", image(64), d_model=32, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_queries=6, use_timm_backbone=False, use_pretrained_backbone=False,
        backbone=None, nested={"backbone_config": ("ResNetConfig", {"embedding_size": 16,
        "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "out_features": ["stage2"]})}),
    "yolos": of("Yolos", "ForObjectDetection", image(), VIT, image_size=[32, 32],
        num_detection_tokens=4),
    "dpt": of("DPT", "ForDepthEstimation", image(), VIT, num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16,
        is_hybrid=False, readout_type="project"),
    "sam": of("Sam", "Model", image(), nested={"vision_config": ("SamVisionConfig",
        {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 8, "mlp_dim": 64, "window_size": 2,
        "global_attn_indexes": [1], "num_pos_feats": 8}),
        "prompt_encoder_config": ("SamPromptEncoderConfig", {"hidden_size": 16, "image_size": 32,
        "patch_size": 8, "mask_input_channels": 4}), "mask_decoder_config": ("SamMaskDecoderConfig",
        {"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "iou_head_hidden_dim": 16})}),
    # Images and text.
    "clip": of("CLIP", "Model", image_and_text, projection_dim=16,
        nested={"text_config": ("CLIPTextConfig", {**BERT, **ENDS}),
        "vision_config": ("CLIPVisionConfig", VIT)}),
    "siglip": of("Siglip", "Model", image_and_text, nested={"text_config": ("SiglipTextConfig",
        {**BERT, **ENDS}), "vision_config": ("SiglipVisionConfig", VIT)}),
    "blip": of("Blip", "ForConditionalGeneration", image_and_text, projection_dim=16,
        nested={"text_config": ("BlipTextConfig", {**BERT, **ENDS, "encoder_hidden_size": 32}),
        "vision_config": ("BlipVisionConfig", VIT)}),
    "llava": of("Llava", "ForConditionalGeneration", lambda:
        {"input_ids": torch.cat([torch.full((2, 16), 4), tokens(6)], dim=1),
        "pixel_values": numbers(2, 3, 32, 32)}, generates=True, image_token_index=4,
        image_token_id=4, vision_feature_layer=-1, nested={"text_config": ("LlamaConfig", {**LLAMA,
        **ENDS, "head_dim": 16}), "vision_config": ("CLIPVisionConfig", VIT)}),
    "owlvit": of("OwlViT", "Model", image_and_text, projection_dim=16,
        nested={"text_config": ("OwlViTTextConfig", {**BERT, **ENDS}),
        "vision_config": ("OwlViTVisionConfig", VIT)}),
    # Sound.
    "whisper": of("Whisper", "ForConditionalGeneration", lambda:
        {"input_features": numbers(2, 8, 32), "decoder_input_ids": tokens(7)}, TWO_LENGTHS,
        num_mel_bins=8, max_source_positions=16, max_target_positions=32,
        begin_suppress_tokens=None, suppress_tokens=None),
    "speech_to_text": of("Speech2Text", "ForConditionalGeneration", lambda:
        {"input_features": numbers(2, 32, 8), "decoder_input_ids": tokens(7)}, TWO_LENGTHS,
        input_feat_per_channel=8, conv_channels=16, num_conv_layers=2, conv_kernel_sizes=(3, 3),
        max_source_positions=64, max_target_positions=32),
    "wav2vec2": of("Wav2Vec2", "ForCTC", sound, WAV2VEC),
    "hubert": of("Hubert", "Model", sound, WAV2VEC),
    "wavlm": of("WavLM", "Model", sound, WAV2VEC, num_buckets=16),
    "sew": of("SEW", "Model", sound, WAV2VEC, squeeze_factor=2),
    "data2vec_audio": of("Data2VecAudio", "Model", sound, WAV2VEC, num_conv_pos_embeddings=2,
        conv_pos_kernel_size=3),
    "wav2vec2_conformer": of("Wav2Vec2Conformer", "Model", sound, WAV2VEC),
    "speecht5": of("SpeechT5", "ForSpeechToText", lambda: {**sound(),
        "decoder_input_ids": tokens(7)}, SOUND, BOTH, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
        max_speech_positions=64, max_text_positions=32),
    "vits": of("Vits", "Model", text, vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, ffn_dim=32, flow_size=16, spectrogram_bins=17,
        prior_encoder_num_flows=1, prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1, upsample_initial_channel=16, upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
        duration_predictor_num_flows=1, duration_predictor_filter_channels=16,
        wavenet_kernel_size=3, noise_scale=0.0, noise_scale_duration=0.0),
    "audio_spectrogram_transformer": of("AST", "Model", lambda:
        {"input_values": numbers(2, 32, 16)}, PATCHES, max_length=32, num_mel_bins=16),
    "encodec": of("Encodec", "Model", lambda: {"input_values": numbers(1, 1, 480)}, num_filters=8,
        hidden_size=16, codebook_size=32, codebook_dim=16, upsampling_ratios=[4, 2],
        num_lstm_layers=1, target_bandwidths=[24.0]),
    # Series of numbers.
    "time_series_transformer": of("TimeSeriesTransformer", "Model", lambda:
        {"past_values": numbers(2, 12), "past_time_features": numbers(2, 12, 1),
        "past_observed_mask": torch.ones(2, 12), "future_values": numbers(2, 4),
        "future_time_features": numbers(2, 4, 1)}, prediction_length=4, context_length=8,
        lags_sequence=[1, 2, 3, 4], num_time_features=1, encoder_layers=1, decoder_layers=1,
        encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=32),
    "patchtst": of("PatchTST", "ForPrediction", lambda: {"past_values": numbers(2, 16, 2)},
        num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, d_model=32,
        num_attention_heads=2, num_hidden_layers=2, ffn_dim=64, prediction_length=4),
    "decision_transformer": of("DecisionTransformer", "Model", lambda: {"states": numbers(2, 5, 4),
        "actions": numbers(2, 5, 2), "rewards": numbers(2, 5, 1), "returns_to_go": numbers(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, 5), "attention_mask": torch.ones(2, 5)},
        hidden_size=32, n_layer=1, n_head=2, state_dim=4, act_dim=2),
}  # fmt: skip
