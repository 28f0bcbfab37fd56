# SPDX-License-Identifier: BSD-3-Clause
"""Models of torch.nn alone, as tutorials have them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.support.tiny_transformers.models import VOCABULARY, numbers, tokens
from tests.zoo.architecture import Architecture, table


class Tagger(nn.Module):
    """A label for each word: an embedding, a recurrence in both directions, a linear layer."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 32)
        self.recurrence = kind(32, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.labels = nn.Linear(48, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.labels(self.recurrence(self.words(words))[0])


class UNet(nn.Module):
    """Down to a half of the size and up again, by ConvTranspose2d, with a bridge."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = self._two(3, 16), self._two(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Sequential(self._two(32, 16), nn.Conv2d(16, 3, 1))

    @staticmethod
    def _two(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        up = self.up(self.down(nn.functional.max_pool2d(first, 2)))
        return self.last(torch.cat([first, up], dim=1))


class Translator(nn.Module):
    """PyTorch's own Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 32)
        self.transformer = nn.Transformer(32, 2, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.transformer(self.words(source), self.words(target)))


def of(name: str, family: str, make: Callable[[], nn.Module], **inputs: Tensor) -> Architecture:
    return Architecture(name, family, lambda _: make(), lambda: dict(inputs), "torch")


TORCH: dict[str, Architecture] = table(
    of("lstm_tagger", "recurrence, LSTM", lambda: Tagger(nn.LSTM), words=tokens()),
    of("gru_tagger", "recurrence, GRU", lambda: Tagger(nn.GRU), words=tokens()),
    of("unet", "segmentation, ConvTranspose2d", UNet, x=numbers(2, 3, 16, 16)),
    of("transformer", "encoder and decoder, attention of torch.nn", Translator, source=tokens(),
        target=tokens(7)),
)  # fmt: skip
