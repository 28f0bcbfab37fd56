# SPDX-License-Identifier: BSD-3-Clause
"""Learned factors beside searched ones on the handwritten digits: what training gains by them."""

from __future__ import annotations

import copy
import statistics

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import W4A8
from baraquant.nn import FakeQuantizedLinear
from baraquant.qat import convert_, prepare_

HIDDEN, SEEDS = 16, (0, 1, 2)


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


def train(model: nn.Module, epochs: int, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x, y = digits()
    generator = torch.Generator().manual_seed(seed)
    parts = len(torch.arange(len(x)).split(64))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * parts)
    model.train()
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
            decay.step()


def float_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = (64, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10)
    first, second, third = (nn.Linear(*size) for size in sizes)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
    train(model, 40, torch.optim.Adam(model.parameters(), 2e-3), seed)
    return model


def loss_of(model: nn.Module) -> float:
    x, y = digits()
    model.eval()
    with torch.no_grad():
        prepared = model(x)
        convert_(model)
        assert torch.equal(model(x), prepared)
    return F.cross_entropy(prepared, y).item()


def tuned(model: nn.Sequential, how: str, seed: int) -> float:
    """The loss of the converted model, after training with factors of this kind."""
    model = copy.deepcopy(model)
    prepare_(model, W4A8(HIDDEN, learned=how == "learned"))
    for layer in model if how == "searched" else ():
        if isinstance(layer, FakeQuantizedLinear):
            layer.weight_fake_quant = layer.weight_fake_quant.fitted(layer.rows_of_weight())
    train(model, 20, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9), seed)
    return loss_of(model)


@pytest.mark.exhaustive
def test_learned_factors_reach_a_lower_loss_than_searched_ones() -> None:
    """Both start from the same factors. The factors of each step's weights are better still."""
    x, y = digits()
    losses: dict[str, list[float]] = {}
    for seed in SEEDS:
        model = float_model(seed)
        for how in ("learned", "searched", "of each step"):
            losses.setdefault(how, []).append(tuned(model, how, seed))
        baraquant.quantize_(model, W4A8(HIDDEN), progress=False)
        losses.setdefault("not trained", []).append(F.cross_entropy(model(x), y).item())
    mean = {how: statistics.mean(values) for how, values in losses.items()}
    for learned, searched, before in zip(
        losses["learned"], losses["searched"], losses["not trained"], strict=True
    ):
        assert learned < searched < before
    assert mean["learned"] < 0.97 * mean["searched"]
    assert mean["learned"] < 1.1 * mean["of each step"]
