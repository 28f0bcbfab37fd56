# SPDX-License-Identifier: BSD-3-Clause
"""The models that the tests of `reconstruct_` share, with data, and a call that is short."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from tests.support.optional_packages import package


class Residual(nn.Module):
    """What a network of convolutions repeats; what it holds besides is not for training alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm, self.dropout = nn.BatchNorm2d(channels), nn.Dropout(0.5)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(x + self.dropout(self.second(y)))


class Text(nn.Module):
    """An embedding, an LSTM, an attention and a linear layer, in no container."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(20, 16), nn.LSTM(16, 16, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(tokens))
        x, _ = self.attention(x, x, x)
        y: Tensor = self.head(x)
        return y


class Unusual(nn.Module):
    """Layers that no block can learn: called twice, never called, tied, computed."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.twice, self.never = (nn.Linear(16, 16) for _ in range(3))
        self.computed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.embedding, self.tied = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.tied.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.plain(self.embedding(tokens))
        x = self.computed(self.twice(torch.relu(self.twice(x))))
        y: Tensor = self.tied(x)
        return y


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)
    )


def convolutions() -> nn.Module:
    blocks = nn.Sequential(Residual(8), Residual(8))
    head = [nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(4 * 12 * 12, 5)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), blocks, *head)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def llama() -> nn.Module:
    package("transformers")
    from tests.support.tiny_transformers.build import build, liven

    return liven(build("llama"))


def _rows(features: int) -> Tensor:
    mix = torch.randn(features, features, generator=torch.Generator().manual_seed(3))
    return torch.randn(64, features) @ mix / features**0.5


MODELS: dict[str, Any] = {
    "mlp": (mlp, lambda: _rows(32)),
    "convolutions": (convolutions, lambda: torch.randn(4, 3, 8, 8)),
    "transformer": (transformer, lambda: torch.randn(4, 6, 16)),
    "text": (Text, lambda: torch.randint(0, 20, (4, 6))),
    "unusual": (Unusual, lambda: torch.randint(0, 20, (4, 6))),
    "llama": (llama, lambda: torch.randint(5, 64, (4, 16))),
}


def made(name: str, count: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a name, and batches for it."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    batches = [batch() for _ in range(count)]
    return model, [one.to(dtype) if one.is_floating_point() else one for one in batches]


def reconstructed(model: nn.Module, config: Any, batches: Any, **options: Any) -> Any:
    """A copy of the model that was reconstructed, and the report."""
    own = copy.deepcopy(model)
    options = {"steps": 6, "progress": False, **options}
    return own, baraquant.reconstruct_(own, config, calibration=batches, **options)


@torch.no_grad()
def outputs(model: nn.Module, batches: Any) -> list[Tensor]:
    model.eval()
    found = [model(one) for one in batches]
    return [one if isinstance(one, Tensor) else one.logits for one in found]


def error(model: nn.Module, wanted: list[Tensor], batches: Any) -> float:
    """The squared error of a model's outputs, relative to the square of the wanted ones."""
    pairs = list(zip(outputs(model, batches), wanted, strict=True))
    total = sum(float((got - one).double().square().sum()) for got, one in pairs)
    return total / sum(float(one.double().square().sum()) for one in wanted)
