# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ on whole models: which layers, what it keeps, what data and what errors."""

from __future__ import annotations

import json
import math
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
    TensorConfig,
    W8A8Static,
)
from baraquant.configs import SCALE_DTYPES, Config
from baraquant.nn import WeightOnlyInt4Linear
from baraquant.workflow.gptq import formula
from baraquant.workflow.gptq.formula import Hessian, inverse_factor
from tests.support.models.outlier_models import Block, Tied, batches, seeded
from tests.workflow.gptq.slow_gptq import (
    correlated,
    error_of,
    generator,
    linear,
)


class Runs:
    """Batches that count how often they are gone through, and how many of them are alive."""

    def __init__(self, count: int, rows: int = 8) -> None:
        self.count, self.rows, self.runs, self.most = count, rows, 0, 0
        self._alive: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        self.runs += 1
        for index in range(self.count):
            batch = torch.randn(self.rows, 16, generator=generator(index))
            self._alive.append(weakref.ref(batch))
            self.most = max(self.most, sum(one() is not None for one in self._alive))
            yield batch
            del batch


def test_the_model_runs_once_for_each_tensor_that_layers_read() -> None:
    data = Runs(2)
    report = baraquant.quantize_(seeded(Block), GPTQ(W8A8()), calibration=data)
    # The order; then query and key together, out, up, down.
    assert data.runs == 1 + 4
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


@pytest.mark.parametrize("count", [2, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_only_the_hessian_is_kept(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []
    most = 0

    class Counted(Hessian):
        def observe(self, input: Tensor) -> None:
            nonlocal most
            super().observe(input)
            if not any(one() is self for one in alive):
                alive.append(weakref.ref(self))
            most = max(most, sum(one() is not None for one in alive))
            held = [*vars(self).values(), *vars(self._calls).values()]
            tensors = [value for value in held if isinstance(value, Tensor)]
            assert sorted(list(value.shape) for value in tensors) == [[], [input.shape[-1]] * 2]

    monkeypatch.setattr("baraquant.workflow.gptq.layers.Hessian", Counted)
    data = Runs(count)
    baraquant.quantize_(seeded(Block), GPTQ(W4A16(8)), calibration=data)
    assert most == 2  # query and key
    assert data.most <= 2  # the batch, and the input of the last layer that was called


def test_a_function_in_inference_mode() -> None:
    def run(model: nn.Module) -> None:
        with torch.inference_mode():
            for batch in data:
                model(batch)

    data = batches()
    plain, model = seeded(Block), seeded(Block)
    baraquant.quantize_(plain, GPTQ(W4A8(8, group_factors=False)), calibration=data)
    baraquant.quantize_(model, GPTQ(W4A8(8, group_factors=False)), calibration=run)
    for (name, wanted), got in zip(plain.state_dict().items(), model.state_dict().values()):  # noqa: B905
        assert torch.equal(got, wanted), name


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_batches_that_are_not_finite_are_left_out(bad: float) -> None:
    data = correlated(dtype=torch.float32)
    spoiled = data[1].clone()
    spoiled[3, 4] = bad
    clean, model = linear(dtype=torch.float32), linear(dtype=torch.float32)
    baraquant.quantize_(clean, GPTQ(W4A8(16, group_factors=False)), calibration=data)
    with pytest.warns(UserWarning, match=r"left out of the calibration of 0 \(1\)") as warned:
        baraquant.quantize_(
            model, GPTQ(W4A8(16, group_factors=False)), calibration=[data[0], spoiled, *data[1:]]
        )
    assert len([one for one in warned if "left out" in str(one.message)]) == 1
    assert torch.equal(model[0].qweight, clean[0].qweight)
    before = linear(dtype=torch.float32)
    with pytest.raises(ValueError, match="quantize_: 0: expected finite calibration data"):
        baraquant.quantize_(before, GPTQ(W4A8(16, group_factors=False)), calibration=[spoiled])
    assert type(before[0]) is nn.Linear


class TwoPaths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("config", [W4A16(8), W8A8Static()], ids=str)
def test_a_layer_that_no_batch_reaches(config: QuantConfig) -> None:
    model, nearest = seeded(TwoPaths), seeded(TwoPaths)
    report = baraquant.quantize_(model, GPTQ(config), calibration=batches())
    assert report.changed["used"].endswith(", GPTQ")
    text = "; rounded to nearest, as the calibration data does not reach it"
    assert report.changed["unused"].endswith(text)
    baraquant.quantize_(nearest, config, calibration=batches())
    assert torch.equal(model.unused.qweight, nearest.unused.qweight)
    model = seeded(TwoPaths)
    with pytest.raises(ValueError, match="unused: expected the calibration data to reach"):
        baraquant.quantize_(model, {"unused": GPTQ(W8A8())}, calibration=batches())
    empty = [torch.zeros(0, 16)]
    with pytest.raises(ValueError, match="used: expected the calibration data to reach"):
        baraquant.quantize_(model, GPTQ(W8A8()), calibration=empty)
    assert type(model.used) is nn.Linear


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


def test_groups_that_do_not_fit_leave_a_layer_floating() -> None:
    model = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 4))
    report = baraquant.quantize_(model, GPTQ(W4A16(8)), calibration=batches())
    assert "expected group_size to divide in_features (12), but got 8" in report.left_out["1"]
    assert report.changed == {"0": "WeightOnlyInt4Linear, GPTQ"}


def test_rules_mix_it_with_other_schemes() -> None:
    rules: dict[Any, Config | None] = {
        "up": GPTQ(W4A16(8)),
        "query": GPTQ(W8A8(), act_order=True),
        "out": None,
        "*": W8A8Static(),
    }
    report = baraquant.quantize_(seeded(Block), rules, calibration=batches())
    assert report.changed == {
        "query": "QuantizedLinear, GPTQ",
        "key": "StaticQuantizedLinear",
        "up": "WeightOnlyInt4Linear, GPTQ",
        "down": "StaticQuantizedLinear",
    }


def test_a_layer_that_takes_up_the_smoothing_of_the_next() -> None:
    rules = {"up": GPTQ(W8A8()), "down": SmoothQuant(0.5)}
    model, exact = seeded(Block), seeded(Block)
    report = baraquant.quantize_(model, rules, calibration=batches())
    assert report.changed["down"] == "QuantizedLinear, alpha 0.5 folded into up"
    assert report.changed["up"] == "QuantizedLinear, GPTQ"
    assert error_of(model, exact, batches()[0]) < 0.05


def test_exports_take_it(tmp_path: Path) -> None:
    data = batches()
    model = seeded(Block)
    baraquant.quantize_(model, GPTQ(W4A16(8), act_order=True), calibration=data)
    baraquant.export.to_compressed_tensors(model, tmp_path / "folder", serve=None)
    again = seeded(Block)
    baraquant.export.from_compressed_tensors(again, tmp_path / "folder")
    assert isinstance(again.up, WeightOnlyInt4Linear)
    assert torch.equal(again.up.qweight, model.up.qweight)
    assert torch.equal(again.eval()(data[0]), model(data[0]))


def test_an_error_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = seeded(Block).train(), 0
    before = dict(model.named_modules())

    def fails(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ValueError("no inverse")
        return inverse_factor(*args)

    monkeypatch.setattr(formula, "inverse_factor", fails)
    with pytest.raises(ValueError, match="quantize_: out: no inverse"):
        baraquant.quantize_(model, GPTQ(W8A8()), calibration=batches())
    assert dict(model.named_modules()) == before
    assert all(module.training and not module._forward_pre_hooks for module in model.modules())


def test_modes_and_hooks_are_kept() -> None:
    model, seen = seeded(Block).train(), []
    model.up.register_forward_hook(lambda *args: seen.append(1))
    baraquant.quantize_(model, GPTQ(W8A8()), calibration=batches())
    seen.clear()
    assert all(module.training for module in model.modules())
    model(batches()[0])
    assert seen == [1] and not model.up._forward_pre_hooks


def test_data_that_can_be_read_once() -> None:
    message = "quantize_: expected calibration data that can be gone through several times for GPTQ"
    for config in (W8A8(), W8A8Static()):
        model = seeded(Block)
        with pytest.raises(ValueError, match=message):
            baraquant.quantize_(model, GPTQ(config), calibration=iter(batches()))
        assert type(model.up) is nn.Linear
    with pytest.raises(ValueError, match="expected calibration data for GPTQ, but got None"):
        baraquant.quantize_(seeded(Block), GPTQ(W8A8()))
    with pytest.raises(ValueError, match="expected calibration data, but got no batch"):
        baraquant.quantize_(seeded(Block), GPTQ(W8A8()), calibration=[])


def test_weights_that_are_not_finite_or_too_large() -> None:
    model = linear(dtype=torch.float32)
    with torch.no_grad():
        model[0].weight[0, 0] = 1e12
    data = correlated(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"quantize_: 0: .*the weight.*float16"):
        baraquant.quantize_(model, GPTQ(W4A16(16, scale_dtype="float16")), calibration=data)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="0: expected a finite weight"):
        baraquant.quantize_(model, GPTQ(W4A16(16)), calibration=data)


def test_training_cannot_follow() -> None:
    for config in (GPTQ(W8A8()), {"up": GPTQ(W8A8())}):
        with pytest.raises(ValueError, match=r"GPTQ: .*GPTQ needs calibration.*use bara"):
            baraquant.qat.prepare_(seeded(Block), config)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: GPTQ("W4A16"), TypeError, r"GPTQ: .*config to be a QuantConfig.* but got str"),
        (lambda: GPTQ(None), TypeError, "config to be a QuantConfig.* but got NoneType"),
        (lambda: GPTQ(W4A16), TypeError, r"but got the function W4A16; write W4A16\(\)"),
        (lambda: GPTQ(SmoothQuant()), TypeError, "config to be a QuantConfig.* but got SmoothQ"),
        (lambda: GPTQ(TensorConfig(4)), TypeError, "but got TensorConfig"),
        (lambda: GPTQ(GPTQ(W8A8())), TypeError, "but got GPTQ"),
        (lambda: GPTQ(W8A8(), "0.1"), TypeError, "damping to be a number, but got str"),
        (lambda: GPTQ(W8A8(), True), TypeError, "damping to be a number, but got bool"),
        (lambda: GPTQ(W8A8(), None), TypeError, "damping to be a number, but got NoneType"),
        (lambda: GPTQ(W8A8(), -0.1), ValueError, r"damping to lie in \[0, 1\], but got -0.1"),
        (lambda: GPTQ(W8A8(), 1.5), ValueError, r"damping to lie in \[0, 1\], but got 1.5"),
        (lambda: GPTQ(W8A8(), math.nan), ValueError, "damping to lie in .* but got nan"),
        (lambda: GPTQ(W8A8(), math.inf), ValueError, "damping to lie in .* but got inf"),
        (lambda: GPTQ(W8A8(), act_order=1), TypeError, "GPTQ: .*act_order to be a bool.* got int"),
        (lambda: GPTQ(W8A8(), act_order="no"), TypeError, "act_order to be a bool.* got str"),
    ],
)
def test_bad_fields(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_the_class_for_a_scheme() -> None:
    with pytest.raises(TypeError, match=r"the class GPTQ; write GPTQ\(\.\.\.\)"):
        baraquant.quantize_(seeded(Block), GPTQ, calibration=batches())


def test_plain_data_and_words() -> None:
    for dtype in SCALE_DTYPES:
        config = GPTQ(W4A16(32, scale_dtype=dtype), 0.1, act_order=True)
        data = json.loads(json.dumps(config.to_dict()))
        assert Config.from_dict(data) == config and GPTQ.from_dict(data) == config
    with pytest.raises(
        ValueError, match="SmoothQuant: expected scheme smoothquant, but got 'gptq'"
    ):
        SmoothQuant.from_dict(GPTQ(W8A8()).to_dict())
    assert str(GPTQ(W8A8())) == f"GPTQ({W8A8()}, damping=0.01)"
    assert str(GPTQ(W8A8(), 0, True)) == f"GPTQ({W8A8()}, damping=0, act_order)"
