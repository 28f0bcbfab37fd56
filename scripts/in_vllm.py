# SPDX-License-Identifier: BSD-3-Clause
"""Runs in vLLM's own environment: loads a folder, and writes what it computes as JSON.

Usage: ``python in_vllm.py generate|embed FOLDER DTYPE PROMPTS.json OUTPUT.json``. The prompts are
lists of token ids. `generate` gives the log-probability of every prompt token after the first, in
its place; `embed` the pooled embedding of each prompt.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Before vLLM is imported, which reads them.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


def log_probabilities(output: Any) -> list[float]:
    """The log-probability of each token of a prompt, given those before it."""
    tokens = output.prompt_token_ids
    found = zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
    return [entry[token].logprob for token, entry in found]


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams, __version__

    # With AMX, vLLM's layers of symmetric int8 take another kernel, which computes in 16 bits only
    # and ignores static scales. The one that every CPU has is checked.
    torch.cpu._is_amx_tile_supported = lambda: False
    task, folder, dtype, prompts, result = sys.argv[1:]
    runner = "pooling" if task == "embed" else "generate"
    llm = LLM(
        model=folder,
        runner=runner,
        dtype=dtype,
        skip_tokenizer_init=task != "embed",
        enforce_eager=True,
        max_model_len=64,
    )
    inputs = [{"prompt_token_ids": ids} for ids in json.loads(Path(prompts).read_text())]
    if task == "embed":
        values = [list(output.outputs.embedding) for output in llm.embed(inputs)]
    else:
        sampling = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        values = [log_probabilities(output) for output in llm.generate(inputs, sampling)]
    Path(result).write_text(json.dumps({"vllm": __version__, "values": values}))


if __name__ == "__main__":
    main()
