# SPDX-License-Identifier: BSD-3-Clause
"""A training step of a whole model of Llama's shape, for the variants that it is trained in.

The linear layers of its blocks are quantized; its embedding and its head stay floating. The
vocabulary has 32,000 tokens: the loss of more would outweigh the blocks.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# isort: split
from baraquant import W4A8
from baraquant.qat import prepare_
from benchmarks.llama import SHAPES, Shape, llama, random_ids
from benchmarks.peers import GROUP_SIZE
from benchmarks.training_block import (
    OWN_INT8,
    OWN_INT8_INPUT,
    OWN_W8A8,
    Variant,
    torchao_preparation,
    variants,
)
from benchmarks.training_step import Step

VOCABULARY = 32_000
OWN_W4A8 = f"baraquant W4A8 groups of {GROUP_SIZE}"


def shape_of(width: int) -> Shape:
    """The sizes of the model of a width."""
    known = {shape.width: shape for shape in SHAPES.values()}
    if width not in known:
        raise ValueError(f"expected the width of a model, among {sorted(known)}, but got {width}")
    shape = known[width]
    return replace(shape, vocabulary=min(shape.vocabulary, VOCABULARY), tied=False)


def llama_variants(baseline: str) -> list[Variant]:
    """All that are compared; ``baseline`` is the name of the model that is not quantized."""
    torchao = "torchao W8A8 asymmetric"
    shared = (baseline, OWN_W8A8, OWN_INT8_INPUT, OWN_INT8, f"{OWN_INT8} stochastic", torchao)
    grouped = f"torchao W4A8 groups of {GROUP_SIZE}"
    return [
        *(variant for variant in variants(baseline) if variant.name in shared),
        Variant(OWN_W4A8, lambda blocks: prepare_(blocks, W4A8(GROUP_SIZE))),
        Variant(grouped, torchao_preparation(GROUP_SIZE), needs="torchao"),
    ]


class LlamaStep(Step):
    """A step whose input are token ids, and whose output is the loss of the next tokens."""

    @classmethod
    def of(cls, variant: Variant, device: torch.device, dtype: torch.dtype, shape: list[int],
           compiled: bool = False) -> "LlamaStep":  # fmt: skip
        """The step of a variant for ``[batch, tokens, width]``; the same for all."""
        model = llama(shape_of(shape[-1]), device, dtype)
        ids = random_ids(model, *shape[:2])
        variant.prepare(model.model.layers)
        if compiled:
            for layer in model.model.layers:
                layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False)
        options = {"capturable": True} if device.type == "cuda" else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, **options)
        return cls(model.train(), lambda ids: loss_of(model, ids), ids, None, optimizer)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """The mean cross-entropy of each next token."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()  # [batch, tokens, vocabulary]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
