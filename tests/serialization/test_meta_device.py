# SPDX-License-Identifier: BSD-3-Clause
"""`load` into a model on the meta device: buffers are as the constructor makes them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8
from baraquant.qat import convert_, prepare_
from tests.support.models.one_layer import TRAINED

LENGTH, WIDTH = 12, 16


class Rotary(nn.Module):
    """Frequencies that are computed, as in every language model of today."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = 1.0 / 10000 ** (torch.arange(0, WIDTH, 2, dtype=torch.int64).float() / WIDTH)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.original = self.inv_freq

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[1])[:, None] * self.inv_freq
        angle = torch.cat([angle, angle], -1)
        return x * angle.cos() + x.roll(WIDTH // 2, -1) * angle.sin()


class Positions(nn.Module):
    """Position ids as BERT keeps them, and a causal mask as GPT-2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(LENGTH, WIDTH)
        self.register_buffer("ids", torch.arange(LENGTH).expand((1, -1)), persistent=False)
        mask = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool))
        self.register_buffer("mask", mask[None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[1]
        y = x + self.table(self.ids[:, :rows])
        scores = (y @ y.mT).masked_fill(~self.mask[:, :rows, :rows], -math.inf)
        return scores.softmax(-1) @ y


class Sinusoids(nn.Module):
    """A table written by hand into an empty tensor, as Whisper's and Marian's."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.zeros(LENGTH, WIDTH)
        steps = torch.arange(LENGTH)[:, None] * torch.exp(-torch.arange(0, WIDTH, 2) / WIDTH)
        table[:, 0::2], table[:, 1::2] = steps.sin(), steps.cos()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class Plain(nn.Module):
    """Tensors that are no buffers at all: attributes and lists of them."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.linspace(0.5, 1.5, WIDTH)
        self.several = [torch.full((WIDTH,), 0.25), torch.arange(WIDTH) / WIDTH]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.slopes + sum(self.several)


class Normalised(nn.Module):
    """Buffers that are in the state dict: a mean, a variance, a count."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("offset", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT + self.offset


class Random(nn.Module):
    """A random buffer in no state dict: no constructor makes the same one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(WIDTH, WIDTH) / WIDTH**0.5, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.directions


PARTS: dict[str, Callable[[], nn.Module]] = {
    "rotary": Rotary,
    "positions": Positions,
    "sinusoids": Sinusoids,
    "plain": Plain,
    "normalised": Normalised,
    "random": Random,
}


class Network(nn.Module):
    def __init__(self, part: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH, dtype=dtype)
        self.part = part()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.layer(self.part(self.embedding(tokens)))
        return y


TOKENS = torch.randint(0, 20, (2, 9), generator=torch.Generator().manual_seed(0))


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def stored(part: str, path, scheme: str = "w8a8") -> Tensor:
    """Writes a file of integers, and returns what its model computes."""
    torch.manual_seed(0)
    model = Network(PARTS[part])
    model(TOKENS)  # a BatchNorm's statistics move
    prepare_(model, TRAINED[scheme])
    with torch.no_grad():
        model.train()(TOKENS)
    wanted = model.eval()(TOKENS)
    convert_(model)
    baraquant.save(model, path)
    assert torch.equal(model(TOKENS), wanted)
    return wanted.detach()


def complete(model: nn.Module) -> None:
    assert not [n for n, t in model.named_buffers() if t.is_meta]
    assert not [n for n, t in model.named_parameters() if t.is_meta]


@pytest.mark.parametrize("scheme", ["w8a8", "static", "w4_group"])
@pytest.mark.parametrize("part", PARTS)
def test_a_model_on_meta(part: str, scheme: str, tmp_path) -> None:
    """The guide's way: the bits of the saved model, or for plain attributes a clear error."""
    wanted = stored(part, path := tmp_path / "model.safetensors", scheme)
    empty = on_meta(lambda: Network(PARTS[part]))
    if part == "plain":  # out of reach of a state dict: nobody may get a model that cannot run
        with pytest.raises(
            ValueError, match=r"part\.\w+: .* is on the meta device, and is no buffer"
        ):
            baraquant.load_(empty, path)
        return
    loaded = baraquant.load_(empty, path).eval()
    complete(loaded)
    assert torch.equal(loaded(TOKENS), wanted)


@pytest.mark.parametrize("outside", ["cpu", "meta"])
@pytest.mark.parametrize("part", PARTS)
def test_a_function(part: str, outside: str, tmp_path) -> None:
    wanted = stored(part, path := tmp_path / "model.safetensors")
    with torch.device(outside):
        loaded = baraquant.load_(lambda: Network(PARTS[part]), path)
    complete(loaded)
    assert torch.equal(loaded.eval()(TOKENS), wanted)
    loaded = (
        baraquant.load_(lambda: on_meta(lambda: Network(PARTS[part])), path)
        if (part != "plain")
        else loaded
    )
    assert torch.equal(loaded.eval()(TOKENS), wanted)


def test_a_changed_buffer_outside_the_state_dict(tmp_path) -> None:
    """One that was changed after construction has the changed values."""
    torch.manual_seed(0)
    model = Network(Rotary).eval()
    model.part.inv_freq.mul_(0.5)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, path := tmp_path / "model.safetensors")
    loaded = baraquant.load_(on_meta(lambda: Network(Rotary)), path).eval()
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_the_callers_random_numbers_stay(tmp_path) -> None:
    """Building a model on the side does not move the global generator when given a meta model."""
    stored("rotary", path := tmp_path / "model.safetensors")
    empty = on_meta(lambda: Network(Rotary))
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    baraquant.load_(empty, path)
    assert torch.equal(torch.rand(3), wanted)
