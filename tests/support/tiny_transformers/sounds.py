# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models of sound and of series of numbers."""

from __future__ import annotations

import torch

from tests.support.tiny_transformers.parts import (
    BOTH,
    PATCHES,
    SOUND,
    TWO_LENGTHS,
    VOCABULARY,
    WAV2VEC,
    Tiny,
    numbers,
    series_inputs,
    sound,
    speech_to_text_inputs,
    text,
    tokens,
    whisper_inputs,
)

SOUNDS: dict[str, Tiny] = {
    # Sound.
    "whisper": Tiny("WhisperForConditionalGeneration", "WhisperConfig", {**TWO_LENGTHS,
        "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32,
        "begin_suppress_tokens": None, "suppress_tokens": None}, whisper_inputs),
    "speech_to_text": Tiny("Speech2TextForConditionalGeneration", "Speech2TextConfig",
        {**TWO_LENGTHS, "input_feat_per_channel": 8, "conv_channels": 16, "num_conv_layers": 2,
        "conv_kernel_sizes": (3, 3), "max_source_positions": 64, "max_target_positions": 32},
        speech_to_text_inputs),
    "wav2vec2": Tiny("Wav2Vec2ForCTC", "Wav2Vec2Config", WAV2VEC, sound()),
    "hubert": Tiny("HubertModel", "HubertConfig", WAV2VEC, sound()),
    "wavlm": Tiny("WavLMModel", "WavLMConfig", {**WAV2VEC, "num_buckets": 16}, sound()),
    "sew": Tiny("SEWModel", "SEWConfig", {**WAV2VEC, "squeeze_factor": 2}, sound()),
    "data2vec_audio": Tiny("Data2VecAudioModel", "Data2VecAudioConfig", {**WAV2VEC,
        "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3}, sound()),
    "wav2vec2_conformer": Tiny("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", WAV2VEC,
        sound()),
    "speecht5": Tiny("SpeechT5ForSpeechToText", "SpeechT5Config", {**SOUND, **BOTH,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "max_speech_positions": 64,
        "max_text_positions": 32}, lambda: {"input_values": numbers(2, 1600),
        "decoder_input_ids": tokens(7)}),
    "vits": Tiny("VitsModel", "VitsConfig", {"vocab_size": VOCABULARY, "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32, "flow_size": 16,
        "spectrogram_bins": 17, "prior_encoder_num_flows": 1, "prior_encoder_num_wavenet_layers": 1,
        "posterior_encoder_num_wavenet_layers": 1, "upsample_initial_channel": 16,
        "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3]], "duration_predictor_num_flows": 1,
        "duration_predictor_filter_channels": 16, "wavenet_kernel_size": 3, "noise_scale": 0.0,
        "noise_scale_duration": 0.0}, text),
    "audio_spectrogram_transformer": Tiny("ASTModel", "ASTConfig", {**PATCHES, "max_length": 32,
        "num_mel_bins": 16}, lambda: {"input_values": numbers(2, 32, 16)}),
    "encodec": Tiny("EncodecModel", "EncodecConfig", {"num_filters": 8, "hidden_size": 16,
        "codebook_size": 32, "codebook_dim": 16, "upsampling_ratios": [4, 2], "num_lstm_layers": 1,
        "target_bandwidths": [24.0]}, lambda: {"input_values": numbers(1, 1, 480)}),
    # Series of numbers.
    "time_series_transformer": Tiny("TimeSeriesTransformerModel", "TimeSeriesTransformerConfig",
        {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3, 4],
        "num_time_features": 1, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "d_model": 32}, series_inputs),
    "patchtst": Tiny("PatchTSTForPrediction", "PatchTSTConfig", {"num_input_channels": 2,
        "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 32,
        "num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 64, "prediction_length": 4},
        lambda: {"past_values": numbers(2, 16, 2)}),
    "decision_transformer": Tiny("DecisionTransformerModel", "DecisionTransformerConfig",
        {"hidden_size": 32, "n_layer": 1, "n_head": 2, "state_dim": 4, "act_dim": 2},
        lambda: {"states": numbers(2, 5, 4), "actions": numbers(2, 5, 2), "rewards": numbers(2, 5,
        1), "returns_to_go": numbers(2, 5, 1), "timesteps": torch.arange(5).expand(2, 5),
        "attention_mask": torch.ones(2, 5)}),
}  # fmt: skip
