# SPDX-License-Identifier: BSD-3-Clause
"""Models of Llama's shape with random weights, and a step of decoding one token for each row.

They are transformers' own, made from a configuration: nothing is fetched.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

# Tokens that the cache has room for, and those of the prompt that are in it while one is decoded.
CONTEXT, PROMPT = 512, 64
# Of a model with fewer layers: its head would else outweigh them.
VOCABULARY = 4096
ATTENTION, NO_ATTENTION = "sdpa", "no attention"


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 128_256
    tied: bool = False


SHAPES = {
    "tiny": Shape(256, 512, 2, 4, 2, 512),
    "100m": Shape(768, 2048, 12, 12, 4, 32_000, tied=True),
    "1b": Shape(2048, 8192, 16, 32, 8, tied=True),  # as Llama 3.2
    "8b": Shape(4096, 14336, 32, 32, 8),  # as Llama 3.1
}


def parse_model(text: str) -> Shape:
    """The sizes of ``8b``, or of its first 8 layers with a vocabulary of 4096, ``8b/8``."""
    match = re.fullmatch(r"(\w+)(?:/([1-9]\d*))?", text)
    if match is None or match[1] not in SHAPES or int(match[2] or 1) > SHAPES[match[1]].layers:
        raise ValueError(
            f"expected one of {list(SHAPES)}, or fewer layers of it, such as 8b/8, but got {text!r}"
        )
    shape = SHAPES[match[1]]
    if match[2] is None:
        return shape
    return replace(shape, layers=int(match[2]), vocabulary=min(shape.vocabulary, VOCABULARY))


def llama(shape: Shape, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A model with random weights from a seed, ready for inference."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.width // shape.heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=shape.tied,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    return model.eval()


def random_ids(model: nn.Module, rows: int, tokens: int) -> Tensor:
    """Token ids ``[rows, tokens]`` on the device of a model."""
    size, device = model.config.vocab_size, model.device
    return torch.randint(0, size, (rows, tokens), device=device)


def no_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Takes the place of attention: returns the queries ``[rows, heads, tokens, size]``."""
    return query.transpose(1, 2).contiguous(), None


class Decoder:
    """Decodes one token for each row, again and again at the same place of a static cache.

    Args:
        model: The model, which reads the prompt.
        forward: Its forward, or what was compiled of it.
        rows: How many sequences are decoded.
        attends: False leaves attention out, and shows the time that all else takes.
    """

    def __init__(
        self, model: nn.Module, forward: Callable[..., Any], rows: int, attends: bool = True
    ) -> None:
        from transformers import AttentionInterface, StaticCache

        AttentionInterface.register(NO_ATTENTION, no_attention)
        self.forward, self.config = forward, model.config
        self.attention = ATTENTION if attends else NO_ATTENTION
        self.cache = StaticCache(config=model.config, max_cache_len=CONTEXT)
        parameters = inspect.signature(type(model).forward).parameters
        # Versions of transformers differ in names, and in who knows the place in the cache.
        cache = {"cache" if "cache" in parameters else "past_key_values": self.cache}
        place = torch.tensor([PROMPT], device=model.device)
        mask = torch.zeros(rows, 1, 1, CONTEXT, dtype=torch.bool, device=model.device)
        mask[..., : PROMPT + 1] = True
        self.arguments: dict[str, Any] = {
            "input_ids": random_ids(model, rows, 1),
            "position_ids": place.expand(rows, 1).contiguous(),
            "attention_mask": mask,
            "use_cache": True,
            **cache,
        }
        if "cache_position" in parameters:
            self.arguments["cache_position"] = place
        prompt = random_ids(model, rows, PROMPT)
        model(input_ids=prompt, use_cache=True, logits_to_keep=1, **cache)

    def step(self) -> Tensor:
        """The logits ``[rows, 1, vocabulary]`` of the next token."""
        self.config._attn_implementation = self.attention
        try:
            return self.forward(**self.arguments).logits
        finally:
            self.config._attn_implementation = ATTENTION

    def rewind(self) -> None:
        """Sets the place back to the end of the prompt, where the cache counts itself."""
        for layer in self.cache.layers:
            count = getattr(layer, "cumulative_length", None)
            if count is not None:
                count.fill_(PROMPT)
