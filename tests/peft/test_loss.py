# SPDX-License-Identifier: BSD-3-Clause
"""An adapter over integers learns what it learns over the bfloat16 model."""

from __future__ import annotations

import copy
import functools
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from tests.peft.models import peft, quantized

pytestmark = pytest.mark.exhaustive
WIDTH, HIDDEN, CLASSES, SEEDS = 32, 64, 8, (0, 1, 2)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(),
        nn.Linear(HIDDEN, CLASSES),
    )  # fmt: skip


@functools.cache
def task(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and classes to train on, and to test on; the second task bends the first."""
    teacher = network(100)
    if name == "second":
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in teacher.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.5 * parameter.std() * noise
    x = torch.randn(6144, WIDTH, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        classes = (teacher(x) * 40).softmax(-1).argmax(-1)
    return x[:4096], classes[:4096], x[4096:], classes[4096:]


def fit(model: nn.Module, name: str, steps: int, rate: float, seed: int) -> float:
    """Train in batches of 128 rows; the loss on the rows kept for testing."""
    x, classes, test_x, test_classes = task(name)
    dtype = torch.bfloat16
    generator = torch.Generator().manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=generator)
        loss = F.cross_entropy(model(x[rows].to(dtype)).float(), classes[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        return float(F.cross_entropy(model(test_x.to(dtype)).float(), test_classes))


@functools.cache
def trained_base() -> nn.Module:
    """A bfloat16 model that has learnt the first task."""
    model = network(1)

    class Wide(nn.Module):
        """Trains in float32 on the same batches."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.model(x.float())
            return y

    assert fit(Wide(), "first", 250, 5e-3, 0) < 1.0
    return model.bfloat16()


@functools.cache
def losses(scheme: Any) -> list[float]:
    """Of an adapter for each seed, over the base in a scheme; None is the bfloat16 base."""
    result = []
    for seed in SEEDS:
        base = copy.deepcopy(trained_base())
        if scheme is not None:
            quantized(base, scheme)
        torch.manual_seed(seed)
        config = peft.LoraConfig(target_modules=["0", "2", "4"], r=8, lora_alpha=16)
        result.append(fit(peft.get_peft_model(base, config), "second", 150, 5e-3, seed))
    return result


@pytest.mark.parametrize(
    "scheme",
    [baraquant.W8A8(), baraquant.W8A8(symmetric=False), baraquant.W8A16()],
    ids=["int8", "int8 asymmetric", "weights of 8 bits"],
)
def test_reaches_the_loss_of_the_float_base(scheme: Any) -> None:
    floating, integers = losses(None), losses(scheme)
    _, _, test_x, test_classes = task("second")
    with torch.no_grad():
        before = float(F.cross_entropy(trained_base()(test_x.bfloat16()).float(), test_classes))
    assert max(floating) < 0.7 * before, "the adapters have something to learn"
    spread = max(floating) - min(floating)
    gap = statistics.mean(integers) - statistics.mean(floating)
    assert abs(gap) < 0.3 * spread, (floating, integers)


def test_four_bits_lose_little() -> None:
    """An adapter mends most of what 4 bits cost: the gap is a small part of what is learnt."""
    floating, integers = losses(None), losses(baraquant.W4A16(group_size=32))
    gap = statistics.mean(integers) - statistics.mean(floating)
    assert gap < 0.1 * statistics.mean(floating)


def test_the_comparison_notices_a_bad_base() -> None:
    """An adapter over a base that has learnt nothing stays behind by more than the spread."""
    floating = losses(None)
    base = quantized(network(2).bfloat16(), baraquant.W8A8())
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["0", "2", "4"], r=8, lora_alpha=16)
    bad = fit(peft.get_peft_model(base, config), "second", 150, 5e-3, 0)
    assert bad - statistics.mean(floating) > max(floating) - min(floating)
