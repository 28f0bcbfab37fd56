# SPDX-License-Identifier: BSD-3-Clause
"""Models of language and of sound, from the configurations of transformers."""

from tests.support.tiny_transformers.models import ENDS, GPT, LLAMA, ids, lm_of, numbers, of
from tests.zoo.architecture import Architecture, each, known, table

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
    known("gpt_bigcode", "decoder, one key for all heads", of("GPTBigCode", "ForCausalLM", ids, GPT,
        ENDS, generates=True, n_positions=64)),
    known("openai_gpt", "decoder of Conv1D", of("OpenAIGPT", "LMHeadModel", ids, GPT,
        n_positions=64)),
    # Mixtures of experts.
    *each("experts", "mixtral", "qwen3_moe", is_discrete=True),
    known("gpt_oss", "experts with biases", is_discrete=True),
    known("deepseek_v3", "experts, latent attention", is_discrete=True),
    # Its router becomes float32 when it is first called, and is written so.
    known("switch", "experts, encoder and decoder", is_discrete=True, refused=(("*", "bfloat16",
        "expected a model of torch.float32, as in the file"),)),
    known("olmoe", "experts", lm_of("Olmoe", num_experts=4, num_experts_per_tok=2),
        is_discrete=True),
    known("granite_moe", "experts", of("GraniteMoe", "ForCausalLM", ids, LLAMA, ENDS,
        generates=True, num_local_experts=4, num_experts_per_tok=2), is_discrete=True),
    # State spaces and other recurrences.
    *each("state space", "mamba", "mamba2", "falcon_mamba"),
    known("rwkv", "recurrence"),
    known("recurrent_gemma", "recurrence and attention"),
    known("lfm2", "convolutions and attention"),
    known("jamba", "state space, attention, experts", is_discrete=True),
    known("bamba", "state space and attention", of("Bamba", "ForCausalLM", ids, LLAMA, ENDS,
        generates=True, attn_layer_indices=[1], mamba_n_heads=4, mamba_d_state=8,
        mamba_chunk_size=8)),
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
    known("speecht5_hifigan", "sound, vocoder of ConvTranspose1d", of("SpeechT5HifiGan", "", lambda:
        {"spectrogram": numbers(2, 12, 8)}, model_in_dim=8, upsample_initial_channel=16,
        upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]])),
    # Series of numbers.
    known("patchtst", "series of numbers"),
)  # fmt: skip
