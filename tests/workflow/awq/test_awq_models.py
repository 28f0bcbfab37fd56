# SPDX-License-Identifier: BSD-3-Clause
"""AWQ on whole models: which layers, and what it goes with."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import baraquant
from baraquant import (
    AWQ,
    GPTQ,
    W4A16,
    W8A8,
    W8A16,
    SmoothQuant,
    W8A8Static,
)
from tests.support.models.outlier_models import (
    Block,
    Tied,
    batches,
    relative_error,
    seeded,
    tokens,
)

PLAIN = W4A16(8, scale_rule="max")
CONFIG = AWQ(PLAIN, steps=4)
NO_PRODUCER = "WeightOnlyInt4Linear; not scaled, as no preceding layer can absorb the division"


def is_scaled(what: str, producer: str) -> bool:
    return what.startswith("WeightOnlyInt4Linear, AWQ, alpha") and what.endswith(f"into {producer}")


def assert_same(model: nn.Module, other: nn.Module) -> None:
    wanted, got = other.state_dict(), model.state_dict()
    assert wanted.keys() == got.keys()
    assert all(torch.equal(got[key], value) for key, value in wanted.items())


def test_what_is_scaled_and_what_is_not(tmp_path: Path) -> None:
    model, nearest = seeded(Block), seeded(Block)
    report = baraquant.quantize_(model, CONFIG, calibration=batches())
    assert list(report.changed) == ["query", "key", "out", "up", "down"]
    for path, producer in {"query": "norm1", "key": "norm1", "up": "norm2"}.items():
        assert is_scaled(report.changed[path], producer), path
    assert report.changed["query"] == report.changed["key"]
    assert report.changed["out"] == NO_PRODUCER
    assert report.changed["query"] in str(report)
    baraquant.quantize_(nearest, PLAIN)
    for key, value in nearest.out.state_dict().items():
        assert torch.equal(model.out.state_dict()[key], value)
    # No op is added: the modules are those without AWQ.
    assert [type(m) for m in model.modules()] == [type(m) for m in nearest.modules()]
    wanted = model(batches()[0])
    baraquant.save(model, tmp_path / "model.safetensors")
    loaded = baraquant.load_(Block(), tmp_path / "model.safetensors").eval()
    assert torch.equal(loaded(batches()[0]), wanted)


def test_norms_behind_the_residual_absorb_nothing() -> None:
    """As in BERT."""
    model, nearest = seeded(Block, pre_norm=False), seeded(Block, pre_norm=False)
    report = baraquant.quantize_(model, {"down": None, "*": CONFIG}, calibration=batches())
    assert set(report.changed.values()) == {NO_PRODUCER}
    baraquant.quantize_(nearest, {"down": None, "*": PLAIN})
    assert_same(model, nearest)


def test_tied_weights_and_shared_modules() -> None:
    model, nearest = seeded(Tied), seeded(Tied)
    report = baraquant.quantize_(model, CONFIG, calibration=tokens())
    assert is_scaled(report.changed["first.query"], "first.norm1")
    assert model.first is model.second
    text = "; not scaled, as other modules share its weight"
    assert report.changed["head"] == f"WeightOnlyLinear{text}"
    text = "; not scaled, as AWQ is for linear layers"
    assert report.changed["embedding"] == f"QuantizedEmbedding{text}"
    baraquant.quantize_(nearest, PLAIN)
    assert torch.equal(model.head.qweight, nearest.head.qweight)
    assert model.head.qweight.data_ptr() == model.embedding.qweight.data_ptr()


class Decoder(nn.Module):
    """The layers of a Llama block, with grouped heads and a gate."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(20, size)
        self.norm1, self.norm2 = nn.RMSNorm(size), nn.RMSNorm(size)
        self.q, self.k, self.v = nn.Linear(size, size), nn.Linear(size, 16), nn.Linear(size, 16)
        self.o = nn.Linear(size, size)
        self.gate, self.up = nn.Linear(size, 48), nn.Linear(size, 48)
        self.down = nn.Linear(48, size)
        with torch.no_grad():
            self.norm1.weight[3] = self.norm2.weight[1] = 30.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        y = self.norm1(x)
        q, k, v = (
            part.unflatten(-1, (-1, 8)).transpose(1, 2)
            for part in (self.q(y), self.k(y), self.v(y))
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(heads.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def test_a_decoder_block() -> None:
    model, nearest, exact = seeded(Decoder), seeded(Decoder), seeded(Decoder)
    report = baraquant.quantize_(model, {nn.Linear: AWQ(PLAIN)}, calibration=tokens())
    baraquant.quantize_(nearest, {nn.Linear: PLAIN})
    for path in ("q", "k", "v"):
        assert is_scaled(report.changed[path], "norm1"), path
    for path in ("gate", "up"):
        assert is_scaled(report.changed[path], "norm2"), path
    assert is_scaled(report.changed["down"], "up")
    assert report.changed["o"] == NO_PRODUCER  # two heads share a value
    wanted = exact(tokens()[0])
    assert relative_error(model(tokens()[0]), wanted) < relative_error(nearest(tokens()[0]), wanted)


def test_it_goes_with_other_schemes() -> None:
    rules = {
        "query": AWQ(W4A16(8, scale_rule="max"), 2),
        "key": AWQ(W8A16(), 4),
        "up": GPTQ(W8A8()),
        "down": CONFIG,
        "*": W8A8Static(),
    }
    model, exact = seeded(Block), seeded(Block)
    report = baraquant.quantize_(model, rules, calibration=batches())
    # One norm for two configurations: one alpha.
    assert is_scaled(report.changed["query"], "norm1")
    assert report.changed["query"].replace("Int4", "") == report.changed["key"]
    assert report.changed["up"] == "QuantizedLinear, GPTQ"
    assert report.changed["down"].endswith(("folded into up", "no factors lower the error"))
    assert report.changed["out"] == "StaticQuantizedLinear"
    assert relative_error(model(batches()[0]), exact(batches()[0])) < 0.1
    rules = {"query": CONFIG, "key": SmoothQuant(0.5), "*": None}
    report = baraquant.quantize_(seeded(Block), rules, calibration=batches())
    assert report.changed == {
        "query": NO_PRODUCER,
        "key": "QuantizedLinear, alpha 0.5 in its input",
    }
