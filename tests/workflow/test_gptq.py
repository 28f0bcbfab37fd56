# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: against the paper's algorithm written out slowly, and on every kind of model and data."""

from __future__ import annotations

import itertools
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
    W8A16,
    QuantConfig,
    SmoothQuant,
    TensorConfig,
    W8A8Static,
    ops,
)
from baraquant.configs import SCALE_DTYPES, Config
from baraquant.nn import FakeQuantize, WeightOnlyLinear
from baraquant.workflow.fit import fit_scale
from baraquant.workflow.gptq import formula
from baraquant.workflow.gptq.formula import Hessian, inverse_factor, rounded
from tests.support.models.outlier_models import Block, Tied, batches, seeded

K, N = 48, 20
SCHEMES: dict[str, QuantConfig] = {
    "W4A16": W4A16(16),
    "W4A16 whole": W4A16(K),
    "W4A16 asymmetric": W4A16(8, symmetric=False),
    "W4A16 max": W4A16(24, scale_rule="max"),
    "W4A16 channel": W4A16(None),
    "W4A8": W4A8(16),
    "W4A8 channel": W4A8(None),
    "W8A16": W8A16(),
    "W8A8": W8A8(),
    "W8A8 asymmetric": W8A8(False),
    "two bits": QuantConfig(TensorConfig(2, "per_group", False, group_size=12)),
    "three bits": QuantConfig(TensorConfig(3), scale_rule="max"),
    "five bits asymmetric": QuantConfig(TensorConfig(5, "per_channel", False)),
    "per tensor": QuantConfig(TensorConfig(4, "per_tensor")),
    "bfloat16": W4A16(16, scale_dtype="bfloat16"),
    "float16": W4A16(16, False, "max", scale_dtype="float16"),
}
by_scheme = pytest.mark.parametrize("name", SCHEMES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def correlated(
    count: int = 4, rows: int = 64, features: int = K, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Batches whose columns depend on each other, as those of real layers do."""
    made = generator(1)
    mix = torch.randn(features, features, generator=made, dtype=torch.float64)
    sizes = torch.logspace(0, -2, features, dtype=torch.float64)
    mix = sizes[:, None] * mix
    draws = [torch.randn(rows, features, generator=made, dtype=torch.float64) for _ in range(count)]
    return [(draw @ mix).to(dtype) for draw in draws]


def linear(features: int = K, outputs: int = N, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(features, outputs, dtype=dtype))


@torch.no_grad()
def error_of(model: nn.Module, exact: nn.Module, rows: Tensor) -> float:
    got, wanted = (one.eval()(rows).double() for one in (model, exact))
    return float((got - wanted).norm() / wanted.norm())


def grid_of(rows: Tensor, config: QuantConfig) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of each row, as plain quantization finds them."""
    weight = config.weight
    quantizer = FakeQuantize(
        granularity="per_channel",
        axis=0,
        mode="dynamic",
        quant_min=weight.quant_min,
        quant_max=weight.quant_max,
        symmetric=weight.symmetric,
        scale_dtype=config.scale_dtype,
    )
    if weight.bits < 8 and config.scale_rule == "search":
        scale, zero_point = fit_scale(rows, quantizer).calculate_qparams()
        return scale, zero_point
    _, scale, zero_point = quantizer.quantize(rows)
    return scale, zero_point


def slow_gptq(
    weight: Tensor, inputs: Tensor, config: QuantConfig, damping: float, act_order: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's steps: remove one column after the other from the inverse of the Hessian."""
    own, weight = config.weight, weight.clone()
    outputs, features = weight.shape
    size = own.group_size or features
    hessian = 2 * inputs.t() @ inputs
    hessian += damping * hessian.diagonal().mean() * torch.eye(features, dtype=torch.float64)
    inverse = torch.linalg.inv(hessian)
    order = list(range(features))
    if act_order:
        order.sort(key=lambda column: -float(hessian[column, column]))
    integers = torch.zeros(outputs, features, dtype=torch.int64)
    scales = torch.zeros(outputs, features // size, dtype=torch.float64)
    zeros = torch.zeros(outputs, features // size, dtype=torch.int64)
    for group in range(features // size):
        scales[:, group], zeros[:, group] = grid_of(weight.split(size, dim=1)[group], config)
    if own.granularity == "per_tensor":
        scale, zero = grid_of(weight.reshape(1, -1), config)
        scales[:], zeros[:] = scale, zero
    for column in order:
        group = column // size
        if not act_order and own.group_size is not None and column % size == 0:
            part = weight[:, column : column + size]
            scales[:, group], zeros[:, group] = grid_of(part, config)
        scale, zero = scales[:, group], zeros[:, group]
        integer = (weight[:, column] / scale).round() + zero
        integer = integer.clamp(own.quant_min, own.quant_max)
        integers[:, column] = integer.to(torch.int64)
        error = (weight[:, column] - (integer - zero) * scale) / inverse[column, column]
        weight = weight - error[:, None] * inverse[column]
        inverse = (
            inverse - torch.outer(inverse[:, column], inverse[column]) / (inverse[column, column])
        )
        inverse[column] = inverse[:, column] = 0
    return integers, scales, zeros


def as_multiplied(inputs: Tensor, config: QuantConfig) -> Tensor:
    if config.activation is None:
        return inputs
    return ops.dynamic_fake_quantize_per_token(inputs, symmetric=config.activation.symmetric)


def assert_same(layer: Any, wanted: tuple[Tensor, Tensor, Tensor]) -> None:
    integers, scales, zeros = wanted
    assert torch.equal(layer.qweight.to(torch.int64), integers)
    scale = layer.weight_scale.reshape(len(integers), -1)
    assert torch.allclose(scale, scales.to(scale), rtol=1e-9 if scale.dtype.itemsize == 8 else 1e-6)
    zero = getattr(layer, "weight_zero_point", None)
    got = torch.zeros_like(zeros) if zero is None else zero.reshape(zeros.shape).to(torch.int64)
    assert torch.equal(got, zeros)


@by_scheme
@pytest.mark.parametrize("act_order", [False, True])
def test_equals_the_algorithm_of_the_paper(name: str, act_order: bool) -> None:
    config, model, data = SCHEMES[name], linear(), correlated()
    weight = model[0].weight.detach().clone()
    report = baraquant.quantize_(model, GPTQ(config, 0.05, act_order), calibration=data)
    assert report.changed["0"].endswith(", GPTQ")
    inputs = as_multiplied(torch.cat(data), config)
    assert_same(model[0], slow_gptq(weight, inputs, config, 0.05, act_order))


@pytest.mark.parametrize("block", [1, 5, 16, 24, 1000])
@pytest.mark.parametrize("name", ["W4A16", "W4A16 channel", "W4A16 max", "two bits"])
def test_the_size_of_a_block_changes_nothing(name: str, block: int) -> None:
    config, data = SCHEMES[name], torch.cat(correlated())
    prepared = baraquant.nn.FakeQuantizedLinear.from_float(linear()[0], config)
    how = {"searches": config.scale_rule == "search", "damping": 0.01, "act_order": False}
    wanted, got = (
        rounded(
            prepared.rows_of_weight(), data.t() @ data, prepared.weight_fake_quant, block=b, **how
        )[0]
        for b in (128, block)
    )
    assert torch.equal(got.qweight, wanted.qweight)
    assert torch.allclose(got.scale, wanted.scale, rtol=1e-12)


def test_blocks_begin_with_groups() -> None:
    for columns, size, block in itertools.product((48, 96), (1, 2, 3, 8, 16, 48), (1, 5, 16, 128)):
        ends = list(formula._blocks(columns, size, block))
        assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
        assert ends[-1][1] == columns and all(0 < stop - start <= block for start, stop in ends)
        for group in range(0, columns, size):
            start, stop = next(ends for ends in ends if ends[0] <= group < ends[1])
            assert start == group or group + size <= stop


def test_the_factor_is_that_of_the_inverse() -> None:
    inputs = torch.cat(correlated())
    hessian = inputs.t() @ inputs
    factor, used = inverse_factor(hessian, 0.1)
    damped = hessian + 0.1 * hessian.diagonal().mean() * torch.eye(K, dtype=torch.float64)
    wanted = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    assert used == 0.1 and torch.equal(factor, factor.triu())
    assert torch.allclose(factor, wanted, rtol=1e-9, atol=1e-12)


@by_scheme
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_independent_inputs_give_the_nearest_integers(name: str, dtype: torch.dtype) -> None:
    """The Hessian of the rows of an identity is one, and no column corrects another."""
    config = SCHEMES[name]
    nearest, model = linear(dtype=dtype), linear(dtype=dtype)
    baraquant.quantize_(nearest, config)
    for act_order in (False, True):
        model = linear(dtype=dtype)
        eye = [torch.eye(K, dtype=dtype)[part] for part in torch.arange(K).split(7)]
        baraquant.quantize_(model, GPTQ(config, act_order=act_order), calibration=eye)
        wanted, got = nearest.state_dict(), model.state_dict()
        assert type(model[0]) is type(nearest[0]) and wanted.keys() == got.keys()
        assert all(torch.equal(wanted[key], got[key]) for key in wanted)
        assert all(wanted[key].dtype == got[key].dtype for key in wanted)


@by_scheme
@pytest.mark.parametrize("act_order", [False, True])
def test_the_error_is_below_that_of_the_nearest(name: str, act_order: bool) -> None:
    config, data = SCHEMES[name], correlated(6, dtype=torch.float32)
    exact, nearest, model = (linear(dtype=torch.float32) for _ in range(3))
    baraquant.quantize_(nearest, config)
    baraquant.quantize_(model, GPTQ(config, act_order=act_order), calibration=data[:4])
    for rows in data:  # the last two are new
        assert error_of(model, exact, rows) < error_of(nearest, exact, rows)


def test_inputs_come_from_quantized_layers() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(K, 32), nn.ReLU(), nn.Linear(32, N)).double()
    second, data, config = model[2].weight.detach().clone(), correlated(), W4A16(16)
    baraquant.quantize_(model, GPTQ(config), calibration=data)
    with torch.no_grad():
        inputs = torch.cat([model[1](model[0](batch)) for batch in data])
    assert_same(model[2], slow_gptq(second, inputs, config, 0.01))


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


@pytest.mark.parametrize("count", [2, 30])
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
            tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
            assert sorted(list(value.shape) for value in tensors) == [[], [input.shape[-1]] * 2]

    monkeypatch.setattr("baraquant.workflow.gptq.layers.Hessian", Counted)
    data = Runs(count)
    baraquant.quantize_(seeded(Block), GPTQ(W4A16(8)), calibration=data)
    assert most == 2  # query and key
    assert data.most <= 2  # the batch, and the input of the last layer that was called


def test_is_deterministic_and_splits_do_not_matter() -> None:
    data = torch.cat(correlated())
    models = [linear() for _ in range(3)]
    for model, split in zip(models, (64, 64, 13), strict=True):
        baraquant.quantize_(model, GPTQ(W4A16(16)), calibration=list(data.split(split)))
    first, again, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert torch.equal(first["0.qweight"], other["0.qweight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_half_precision(dtype: torch.dtype) -> None:
    exact, nearest, model = (linear(dtype=dtype) for _ in range(3))
    data = correlated(dtype=dtype)
    baraquant.quantize_(nearest, W4A8(16))
    baraquant.quantize_(model, GPTQ(W4A8(16)), calibration=data)
    assert model(data[0]).dtype == dtype and model[0].weight_scale.dtype == torch.float32
    error, before = (error_of(one, exact, data[0]) for one in (model, nearest))
    assert error < 0.8 * before


def test_autocast_does_not_round_the_hessian() -> None:
    def run(model: nn.Module) -> None:
        for batch in data:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(batch)

    data = correlated(dtype=torch.float32)
    plain, model = linear(dtype=torch.float32), linear(dtype=torch.float32)
    baraquant.quantize_(plain, GPTQ(W4A16(16)), calibration=data)
    baraquant.quantize_(model, GPTQ(W4A16(16)), calibration=run)
    assert torch.equal(model[0].qweight, plain[0].qweight)


def test_a_function_in_inference_mode() -> None:
    def run(model: nn.Module) -> None:
        with torch.inference_mode():
            for batch in data:
                model(batch)

    data = batches()
    plain, model = seeded(Block), seeded(Block)
    baraquant.quantize_(plain, GPTQ(W4A8(8)), calibration=data)
    baraquant.quantize_(model, GPTQ(W4A8(8)), calibration=run)
    for (name, wanted), got in zip(plain.state_dict().items(), model.state_dict().values()):  # noqa: B905
        assert torch.equal(got, wanted), name


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("observer", ["min_max", "mse"])
def test_static_inputs(observer: str, symmetric: bool) -> None:
    config = W8A8Static(observer, symmetric)
    nearest, model, exact = seeded(Block), seeded(Block), seeded(Block)
    baraquant.quantize_(nearest, config, calibration=batches())
    report = baraquant.quantize_(model, GPTQ(config), calibration=batches())
    assert set(report.changed.values()) == {"StaticQuantizedLinear, GPTQ"}
    assert torch.equal(model.up.act_scale, nearest.up.act_scale)
    rows = batches()[0]
    assert error_of(model, exact, rows) < 0.2


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scheme", [W8A8, W4A16, W8A8Static])
def test_rotation(scheme: Any, act_order: bool) -> None:
    config = scheme(rotate=16) if scheme is not W4A16 else W4A16(16, rotate=16)
    data = correlated()
    model, weight = linear(), linear()[0].weight.detach()
    report = baraquant.quantize_(model, GPTQ(config, act_order=act_order), calibration=data)
    assert report.changed["0"].endswith(", rotate=16, GPTQ")
    inputs, weight = ops.hadamard(torch.cat(data), 16), ops.hadamard(weight, 16)
    if config.is_static:
        scale = model[0].act_scale
        inputs = ops.fake_quantize_per_tensor(inputs, scale, torch.zeros((), dtype=torch.int32))
    else:
        inputs = as_multiplied(inputs, config)
    assert_same(model[0], slow_gptq(weight, inputs, config, 0.01, act_order))


def test_dead_inputs_are_rounded_to_nearest() -> None:
    data, config = correlated(), W4A16(None)
    dead = torch.tensor([0, 7, 30, K - 1])
    for batch in data:
        batch[:, dead] = 0
    model, nearest = linear(), linear()
    baraquant.quantize_(nearest, config)
    baraquant.quantize_(model, GPTQ(config), calibration=data)
    assert torch.equal(model[0].qweight[:, dead], nearest[0].qweight[:, dead])
    assert not torch.equal(model[0].qweight, nearest[0].qweight)
    # Their number does not change the damping of the others.
    live = [column for column in range(K) if column not in dead]
    hessian = torch.cat(data).t() @ torch.cat(data)
    factor, _ = inverse_factor(hessian, 0.01)
    alone, _ = inverse_factor(hessian[live][:, live], 0.01)
    assert torch.allclose(factor[live][:, live], alone, rtol=1e-9, atol=1e-12)
    assert torch.equal(factor[dead][:, dead], torch.eye(len(dead), dtype=torch.float64))
    everything_dead = [torch.zeros_like(batch) for batch in data]
    model = linear()
    baraquant.quantize_(model, GPTQ(config), calibration=everything_dead)
    assert torch.equal(model[0].qweight, nearest[0].qweight)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_batches_that_are_not_finite_are_left_out(bad: float) -> None:
    data = correlated(dtype=torch.float32)
    spoiled = data[1].clone()
    spoiled[3, 4] = bad
    clean, model = linear(dtype=torch.float32), linear(dtype=torch.float32)
    baraquant.quantize_(clean, GPTQ(W4A8(16)), calibration=data)
    with pytest.warns(UserWarning, match=r"left out of the calibration of 0 \(1\)") as warned:
        baraquant.quantize_(model, GPTQ(W4A8(16)), calibration=[data[0], spoiled, *data[1:]])
    assert len(warned) == 1
    assert torch.equal(model[0].qweight, clean[0].qweight)
    before = linear(dtype=torch.float32)
    with pytest.raises(ValueError, match="quantize_: 0: expected finite calibration data"):
        baraquant.quantize_(before, GPTQ(W4A8(16)), calibration=[spoiled])
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
    assert report.changed["first.up"] == "WeightOnlyLinear, GPTQ" and model.first is model.second
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


def test_transformers_conv1d() -> None:
    utils = pytest.importorskip("transformers.pytorch_utils")
    plain, data, config = linear(), correlated(), W4A16(16)
    layer = utils.Conv1D(N, K).double()
    with torch.no_grad():
        layer.weight.copy_(plain[0].weight.t())
        layer.bias.copy_(plain[0].bias)
    model = nn.Sequential(layer)
    for one in (plain, model):
        baraquant.quantize_(one, GPTQ(config), calibration=data)
    assert torch.equal(model(data[0]), plain(data[0]))
    assert torch.equal(model[0].qweight, plain[0].qweight) and model[0].transposed


def test_groups_that_do_not_fit_leave_a_layer_floating() -> None:
    model = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 4))
    report = baraquant.quantize_(model, GPTQ(W4A16(8)), calibration=batches())
    assert "expected group_size to divide in_features (12), but got 8" in report.left_out["1"]
    assert report.changed == {"0": "WeightOnlyLinear, GPTQ"}


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
        "up": "WeightOnlyLinear, GPTQ",
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
    assert isinstance(again.up, WeightOnlyLinear)
    assert torch.equal(again.up.qweight, model.up.qweight)
    assert torch.equal(again.eval()(data[0]), model(data[0]))


def test_a_hessian_that_needs_more_damping() -> None:
    row = torch.randn(1, K, generator=generator(), dtype=torch.float64)
    data, model = [row, 2 * row], linear()  # of rank one
    with pytest.warns(UserWarning, match="0: with damping 0 the Hessian .* 1e-06, which was used"):
        baraquant.quantize_(model, GPTQ(W4A16(16), damping=0), calibration=data)
    assert type(model[0]) is WeightOnlyLinear
    with pytest.raises(ValueError, match=r"damping 0.5 and with larger .* 1; pass more"):
        inverse_factor(-torch.eye(4, dtype=torch.float64), 0.5)


def test_inputs_whose_squares_overflow() -> None:
    model = linear(dtype=torch.float32)
    with pytest.raises(ValueError, match="quantize_: 0: expected a finite Hessian, .* overflow"):
        baraquant.quantize_(model, GPTQ(W4A16(16)), calibration=[torch.full((2, K), 1e30)])
    assert type(model[0]) is nn.Linear


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
    with pytest.raises(ValueError, match="quantize_: 0: .*the weight.*float16"):
        baraquant.quantize_(model, GPTQ(W4A16(16, scale_dtype="float16")), calibration=data)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="0: expected a finite weight"):
        baraquant.quantize_(model, GPTQ(W4A16(16)), calibration=data)


def test_training_cannot_follow() -> None:
    for config in (GPTQ(W8A8()), {"up": GPTQ(W8A8())}):
        with pytest.raises(ValueError, match="GPTQ: .*GPTQ needs calibration.*use baraquant.quant"):
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
