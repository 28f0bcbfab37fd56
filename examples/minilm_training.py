# SPDX-License-Identifier: BSD-3-Clause
"""Short quantization-aware training: the quantized encoder learns to be like the float one."""

import math

import torch
from rich.progress import track
from torch import nn

from baraquant import FakeQuantConfig, QATConfig
from sentence_encoder import Tokenizer

# Four-bit weights, 32 of them to a scale; eight-bit activations.
W4A8 = QATConfig(FakeQuantConfig(4, "per_group", group_size=32), FakeQuantConfig(8, "per_token"))
BATCH, LEARNING_RATE, WARM_UP = 32, 2e-4, 20


def distil(
    model: nn.Module, teacher: nn.Module, tokenizer: Tokenizer, texts: list[str], steps: int
) -> None:
    """Train a prepared model to give the embeddings of the float one."""
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
        batch = tokenizer([texts[index] for index in chosen])
        with torch.no_grad():
            wanted = teacher(**batch)
        loss = (model(**batch) - wanted).square().sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
