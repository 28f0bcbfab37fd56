# SPDX-License-Identifier: BSD-3-Clause
"""Short quantization-aware training: the quantized encoder learns to be like the float one."""

import math

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from sentence_encoder import SentenceEncoder, Tokenizer

W4A8 = baraquant.W4A8(32)  # four-bit weights, 32 of them to a factor; eight-bit activations
# Chosen by the cosine on modules that neither trained nor were measured.
BATCH, LEARNING_RATE, WARM_UP = 32, 5e-5, 20


def distil(
    model: SentenceEncoder,
    teacher: SentenceEncoder,
    tokenizer: Tokenizer,
    texts: list[str],
    steps: int,
) -> None:
    """Train a prepared model to give the embeddings of the float one, and the layers before them.

    Args:
        model: The student.
        teacher: The float model.
        tokenizer: Theirs.
        texts: Drawn from at random, always in the same order.
        steps: Of so many batches of 32 texts.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # the teacher has none
    for step in track(range(steps), "training", disable=steps == 0, transient=True):
        warm_up = min(1.0, (step + 1) / WARM_UP)
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * warm_up * decay
        chosen = torch.randint(len(texts), (BATCH,), generator=generator).tolist()
        loss = _distance(model, teacher, tokenizer([texts[index] for index in chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _distance(model: SentenceEncoder, teacher: SentenceEncoder, batch: dict[str, Tensor]) -> Tensor:
    """Return the squared error of the embeddings plus that of the layers, relative to these."""
    with torch.no_grad():
        wanted = teacher.layers(**batch)
    got = model.layers(**batch)
    is_token = batch["attention_mask"].bool()
    error = torch.stack(
        [
            F.mse_loss(own[is_token], other[is_token]) / other[is_token].square().mean()
            for own, other in zip(got, wanted, strict=True)
        ]
    ).mean()
    own, other = (model.pool(layers[-1], batch["attention_mask"]) for layers in (got, wanted))
    return error + (own - other).square().sum(dim=1).mean()
