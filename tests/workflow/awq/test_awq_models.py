# SPDX-License-Identifier: BSD-3-Clause
"""AWQ on whole models: which layers, what it keeps, what data and what errors."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import (
    AWQ,
    GPTQ,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    QuantConfig,
    SmoothQuant,
    TensorConfig,
    W8A8Static,
)
from baraquant.configs import SCALE_DTYPES, Config
from baraquant.nn import WeightOnlyInt4Linear
from baraquant.workflow.awq import layers
from baraquant.workflow.awq.layers import Inputs
from tests.support.models.outlier_models import (
    Block,
    Tied,
    batches,
    relative_error,
    seeded,
    tokens,
    unchanged,
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


@pytest.mark.exhaustive
def test_a_layer_that_stays_floating_keeps_its_norm() -> None:
    model = seeded(Block)
    rules = {"key": None, "*": CONFIG}
    report = baraquant.quantize_(model, rules, calibration=batches())
    assert report.changed["query"] == NO_PRODUCER
    assert torch.equal(model.norm1.weight, seeded(Block).norm1.weight)


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


class TwoPaths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.used, self.unused = nn.LayerNorm(16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.norm(x))


def test_a_layer_that_no_batch_reaches() -> None:
    model = seeded(TwoPaths)
    report = baraquant.quantize_(model, CONFIG, calibration=batches())
    text = "WeightOnlyInt4Linear; not scaled, as the calibration data does not reach it"
    assert report.changed["unused"] == text and text not in report.changed["used"]
    model = seeded(TwoPaths)
    with pytest.raises(ValueError, match="unused: expected the calibration data to reach"):
        baraquant.quantize_(model, {"unused": CONFIG}, calibration=batches())
    assert unchanged(model, seeded(TwoPaths))


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


def test_transformers_conv1d() -> None:
    utils = pytest.importorskip("transformers.pytorch_utils")

    def build(layer: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        norm = nn.LayerNorm(16)
        nn.init.uniform_(norm.weight, 0.1, 20)
        return nn.Sequential(norm, layer).eval()

    plain = seeded(nn.Linear, 16, 8)
    conv = utils.Conv1D(8, 16)
    with torch.no_grad():
        conv.weight.copy_(plain.weight.t())
        conv.bias.copy_(plain.bias)
    first, second = build(plain), build(conv)
    for model in (first, second):
        report = baraquant.quantize_(model, CONFIG, calibration=batches())
        assert is_scaled(report.changed["1"], "0")
    assert torch.equal(first[1].qweight, second[1].qweight) and second[1].transposed
    assert torch.equal(first(batches()[0]), second(batches()[0]))


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


def test_the_runs_depend_on_the_memory_not_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data, made = batches(), [0]  # matrices, made before each run

    class Counted(Inputs):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made[-1] += 1

    def run(model: nn.Module) -> None:
        made.append(0)
        for batch in data:
            model(batch)

    at_once, found = seeded(Block), []
    baraquant.quantize_(at_once, CONFIG, calibration=data)
    monkeypatch.setattr(layers, "Inputs", Counted)
    for limit in (1 << 30, 3 * 16 * 16 * 4, 1):
        made[:] = [0]
        monkeypatch.setattr(layers, "_BYTES", limit)
        model = seeded(Block)
        baraquant.quantize_(model, CONFIG, calibration=run)
        found.append(made[1:])
        assert_same(model, at_once)
    # query and key, then up, then down, which has four times as much.
    assert found == [[4, 0], [3, 1, 0], [2, 1, 1, 0]]


def test_batches_that_are_not_finite_are_left_out() -> None:
    data = batches()
    spoiled = data[1].clone()
    spoiled[0, 3, 4] = math.nan
    model = seeded(TwoPaths)
    clean = copy.deepcopy(model)
    baraquant.quantize_(clean, {"used": CONFIG}, calibration=data)
    with pytest.warns(UserWarning, match=r"left out of the calibration of used \(1\)") as warned:
        given = [data[0], spoiled, *data[1:]]
        baraquant.quantize_(model, {"used": CONFIG}, calibration=given)
    assert len(warned) == 1
    assert_same(model, clean)
    with pytest.raises(ValueError, match="quantize_: used: expected finite calibration data"):
        baraquant.quantize_(seeded(TwoPaths), {"used": CONFIG}, calibration=[spoiled])


def test_modes_autocast_and_inference_mode() -> None:
    def run(model: nn.Module) -> None:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            for batch in batches():
                model(batch)

    plain, model = seeded(TwoPaths), seeded(TwoPaths).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = baraquant.quantize_(model, {"used": AWQ(PLAIN)}, calibration=run)
    wanted = baraquant.quantize_(plain, {"used": AWQ(PLAIN)}, calibration=batches())
    assert report.changed == wanted.changed and model.training
    assert torch.equal(plain.norm.weight, model.norm.weight)
    assert not model.used._forward_pre_hooks


def test_exports_take_it(tmp_path: Path) -> None:
    model, again = seeded(Block), seeded(Block)
    baraquant.quantize_(model, CONFIG, calibration=batches())
    baraquant.export.to_compressed_tensors(model, tmp_path / "folder", serve=None)
    baraquant.export.from_compressed_tensors(again, tmp_path / "folder")
    assert isinstance(again.up, WeightOnlyInt4Linear)
    assert torch.equal(again.eval()(batches()[0]), model(batches()[0]))


def test_data_that_is_missing_or_read_once() -> None:
    model = seeded(Block)
    message = "quantize_: expected calibration data that can be gone through several times for AWQ"
    with pytest.raises(ValueError, match=message):
        baraquant.quantize_(model, CONFIG, calibration=iter(batches()))
    with pytest.raises(ValueError, match="expected calibration data for AWQ, but got None"):
        baraquant.quantize_(model, CONFIG)
    with pytest.raises(ValueError, match="expected calibration data, but got no batch"):
        baraquant.quantize_(model, CONFIG, calibration=[])
    with pytest.raises(ValueError, match=r"expected a model with a Linear, .* has none"):
        baraquant.quantize_(nn.ReLU(), CONFIG, calibration=batches())
    with pytest.raises(TypeError, match=r"the class AWQ; write AWQ\(\.\.\.\)"):
        baraquant.quantize_(model, AWQ, calibration=batches())
    assert unchanged(model, seeded(Block))


def test_training_cannot_follow() -> None:
    for config in (CONFIG, {"up": CONFIG}):
        with pytest.raises(ValueError, match=r"AWQ: .*AWQ needs calibration.*use bara"):
            baraquant.qat.prepare_(seeded(Block), config)


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: AWQ("W4A16"), TypeError, r"AWQ: .*config to be a QuantConfig.* but got str"),
    (lambda: AWQ(W4A16), TypeError, r"but got the function W4A16; write W4A16\(\)"),
    (lambda: AWQ(SmoothQuant()), TypeError, "config to be a QuantConfig.* but got SmoothQ"),
    (lambda: AWQ(GPTQ(W4A16())), TypeError, "but got GPTQ"),
    (lambda: AWQ(TensorConfig(4)), TypeError, "but got TensorConfig"),
    (lambda: AWQ(W8A8()), ValueError, r"floating inputs, .* but got weight=.*use SmoothQuant\(\)"),
    (
        lambda: AWQ(W4A8(32, group_factors=False)),
        ValueError,
        "AWQ: expected config to have floating inputs",
    ),
    (lambda: AWQ(W4A16(rotate=64)), ValueError, "without rotate, but got rotate=64.*one of the"),
    (
        lambda: AWQ(QuantConfig(TensorConfig(4, "per_tensor"))),
        ValueError,
        "a scale per_channel or per_group, but got per_tensor",
    ),
    (lambda: AWQ(W4A16(), 2.0), TypeError, "AWQ: expected steps to be an int, but got float"),
    (lambda: AWQ(W4A16(), True), TypeError, "AWQ: expected steps to be an int, but got bool"),
    (lambda: AWQ(W4A16(), 0), ValueError, "AWQ: expected steps >= 1, but got 0"),
]


@pytest.mark.parametrize(("make", "kind", "text"), BAD)
def test_bad_fields(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_plain_data_and_words() -> None:
    for dtype in SCALE_DTYPES:
        config = AWQ(W4A16(32, scale_dtype=dtype), 5)
        data = json.loads(json.dumps(config.to_dict()))
        assert Config.from_dict(data) == config and AWQ.from_dict(data) == config
    with pytest.raises(ValueError, match="GPTQ: expected scheme gptq, but got 'awq'"):
        GPTQ.from_dict(CONFIG.to_dict())
    assert str(AWQ(W4A16())) == f"AWQ({W4A16()}, steps=20)"
