# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ on whole models: which layers, what it keeps, and what it goes with."""

from __future__ import annotations

import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import (
    GPTQ,
    W4A8,
    W4A16,
    W8A8,
    QuantConfig,
    SmoothQuant,
    W8A8Static,
)
from tests.support.models.outlier_models import Block, Tied, batches, seeded, unchanged
from tests.workflow.gptq.slow_gptq import (
    error_of,
    generator,
)


class Runs:
    """Batches that count how often they are gone through, and how many of them are alive."""

    def __init__(self, count: int) -> None:
        self.count, self.runs, self.most = count, 0, 0
        self._alive: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        self.runs += 1
        for index in range(self.count):
            batch = torch.randn(8, 16, generator=generator(index))
            self._alive.append(weakref.ref(batch))
            self.most = max(self.most, sum(one() is not None for one in self._alive))
            yield batch
            del batch


def test_the_model_runs_once_for_each_tensor_that_layers_read() -> None:
    data = Runs(4)
    report = baraquant.quantize_(seeded(Block), GPTQ(W8A8()), calibration=data)
    # The order; then query and key together, out, up, down.
    assert data.runs == 1 + 4
    assert data.most <= 2  # the batch, and the input of the last layer that was called
    assert set(report.changed.values()) == {"QuantizedLinear, GPTQ"} and len(report.changed) == 5


def test_a_tensor_that_changed_in_place_is_another() -> None:
    class Wired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            x += self.first(x)
            return self.second(x)

    data = Runs(2)
    baraquant.quantize_(seeded(Wired), GPTQ(W8A8()), calibration=data)
    assert data.runs == 3


def test_tied_weights_and_shared_modules() -> None:
    model, config = seeded(Tied), W4A16(8)
    ids = torch.randint(0, 20, (4, 6), generator=generator())
    report = baraquant.quantize_(model, GPTQ(config), calibration=[ids])
    assert (
        report.changed["first.up"] == "WeightOnlyInt4Linear, GPTQ" and model.first is model.second
    )
    assert report.changed["head"].endswith(
        "; rounded to nearest, as other modules share its weight"
    )
    text = "; rounded to nearest, as GPTQ is for linear layers"
    assert report.changed["embedding"] == f"QuantizedEmbedding{text}"
    nearest = seeded(Tied)
    baraquant.quantize_(nearest, config)
    assert torch.equal(model.head.qweight, nearest.head.qweight)
    assert model.head.qweight.data_ptr() == model.embedding.qweight.data_ptr()


class Every(nn.Module):
    """A layer of each family."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(11, 16), nn.Conv1d(16, 16, 3, padding=1)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.recurrent, self.head = nn.GRU(16, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.recurrent(x)[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", [W8A8(), W4A16(8), W4A8(None), W8A8Static()], ids=str)
def test_every_kind_of_layer(config: QuantConfig, tmp_path: Path) -> None:
    ids = [torch.randint(0, 11, (6, 7), generator=generator(seed)) for seed in range(3)]
    model, exact = seeded(Every), seeded(Every)
    report = baraquant.quantize_(model, GPTQ(config), calibration=ids)
    text = "; rounded to nearest, as GPTQ is for linear layers"
    for path, what in report.changed.items():
        assert what.endswith(text if path in ("table", "conv") else ", GPTQ"), (path, what)
    parts = [f"attention.{part}_proj" for part in ("q", "k", "v", "out")]
    assert {*parts, "head", "recurrent.cells.l0.ih", "recurrent.cells.l0.hh"} < set(report.changed)
    assert error_of(model, exact, ids[0]) < 0.3
    wanted = model(ids[0])
    baraquant.save(model, tmp_path / "model.safetensors")
    loaded = baraquant.load_(Every(), tmp_path / "model.safetensors").eval()
    assert torch.equal(loaded(ids[0]), wanted)


def test_a_layer_that_takes_up_the_smoothing_of_the_next() -> None:
    rules = {"up": GPTQ(W8A8()), "down": SmoothQuant(0.5)}
    model, exact = seeded(Block), seeded(Block)
    report = baraquant.quantize_(model, rules, calibration=batches())
    assert report.changed["down"] == "QuantizedLinear, alpha 0.5 folded into up"
    assert report.changed["up"] == "QuantizedLinear, GPTQ"
    assert error_of(model, exact, batches()[0]) < 0.05


def test_an_error_in_a_later_layer_leaves_the_model_as_it_was() -> None:
    model = seeded(Block).train()
    with torch.no_grad():
        model.up.weight[0, 0] = 1e12
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"quantize_: up: .*the weight.*float16"):
        config = GPTQ(W4A16(16, scale_dtype="float16"))
        baraquant.quantize_(model, config, calibration=batches())
    assert unchanged(model, original)
