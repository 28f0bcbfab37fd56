# SPDX-License-Identifier: BSD-3-Clause
"""Models of language and of sound, from the configurations of transformers."""

from tests.support.tiny_transformers.models import ENDS, LLAMA, Tiny, ids, lm_of, numbers
from tests.zoo.architecture import Architecture, each, known, of_tiny, table

EXPERTS = {"is_discrete": True}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}

TEXT: dict[str, Architecture] = table(
    # Decoders.
    *each("decoder", "llama", "llama_tied", "qwen3"),
    known("gemma3", "decoder, scaled embedding"),
    known("phi3", "decoder, packed projections"),
    *each("decoder", "falcon", "bloom", "opt"),
    known("olmo", "decoder without biases"),
    *each("decoder", "gpt_neox", "gptj"),
    known("gpt2", "decoder of Conv1D"),
    known("ctrl", "decoder"),
    of_tiny("gpt_bigcode", "decoder, one key for all heads",
        Tiny("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT | ENDS, ids, generates=True)),
    of_tiny("openai_gpt", "decoder of Conv1D",
        Tiny("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT, ids)),
    # Mixtures of experts.
    *each("experts", "mixtral", "qwen3_moe", **EXPERTS),
    known("gpt_oss", "experts with biases", **EXPERTS),
    known("deepseek_v3", "experts, latent attention", **EXPERTS),
    # Its router becomes float32 when it is first called, and is written so.
    known("switch", "experts, encoder and decoder", **EXPERTS,
        refused=(("*", "bfloat16", "expected a model of torch.float32, as in the file"),)),
    of_tiny("olmoe", "experts", lm_of("Olmoe", num_experts=4, num_experts_per_tok=2), **EXPERTS),
    of_tiny("granite_moe", "experts", Tiny("GraniteMoeForCausalLM", "GraniteMoeConfig",
        {**LLAMA, **ENDS, "num_local_experts": 4, "num_experts_per_tok": 2}, ids, generates=True),
        **EXPERTS),
    # State spaces and other recurrences.
    *each("state space", "mamba", "mamba2", "falcon_mamba"),
    known("rwkv", "recurrence"),
    known("recurrent_gemma", "recurrence and attention"),
    known("lfm2", "convolutions and attention"),
    known("jamba", "state space, attention, experts", **EXPERTS),
    of_tiny("bamba", "state space and attention", Tiny("BambaForCausalLM", "BambaConfig", {**LLAMA,
        **ENDS, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_state": 8,
        "mamba_chunk_size": 8}, ids, generates=True)),
    # Encoders.
    known("bert", "encoder"),
    *each("encoder, classifier", "bert_classifier", "roberta"),
    known("albert", "encoder, one layer many times"),
    known("deberta_v2", "encoder, relative positions"),
    known("electra", "encoder"),
    known("distilbert", "encoder, classifier"),
    known("modernbert", "encoder, rotary positions"),
    known("mobilebert", "encoder with bottlenecks"),
    known("squeezebert", "encoder of convolutions"),
    # Encoders with a decoder.
    *each("encoder and decoder", "t5", "bart", "marian", "pegasus"),
    # Sound.
    *each("sound, encoder", "wav2vec2", "wavlm"),
    known("whisper", "sound, encoder and decoder"),
    # Its table of positions grows with the inputs.
    known("speecht5", "sound, encoder and decoder", refused=(("meta", "*", "as in the model"),)),
    # Its weights are computed from directions and lengths.
    known("encodec", "sound, codec of ConvTranspose1d and LSTM", is_discrete=True, is_lively=False),
    of_tiny("speecht5_hifigan", "sound, vocoder of ConvTranspose1d",
        Tiny("SpeechT5HifiGan", "SpeechT5HifiGanConfig", {"model_in_dim": 8,
        "upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8],
        "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]]},
        lambda: {"spectrogram": numbers(2, 12, 8)})),
    # Series of numbers.
    known("patchtst", "series of numbers"),
)  # fmt: skip
