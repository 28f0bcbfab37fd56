# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: beside a search over real outputs, beside rounding to nearest, and on whole models."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import AWQ, GPTQ, W2A16, W3A16, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static, ops
from baraquant.configs import QuantConfig
from baraquant.nn import WeightOnlyInt4Linear, WeightOnlyLinear
from tests.support.checks.stored import assert_stored
from tests.support.models.outlier_models import Block, OwnRMSNorm, batches, relative_error, seeded

K, STEPS = 32, 20
SCHEMES: dict[str, QuantConfig] = {
    "W4A16": W4A16(16),
    "max": W4A16(16, scale_rule="max"),
    "asymmetric": W4A16(8, symmetric=False),
    "channel": W4A16(None),
    "W8A16": W8A16(),
    "three bits": W3A16(16),
    "two bits": W2A16(16),
    "bfloat16": W4A16(16, scale_dtype="bfloat16"),
}


def kind_of(config: QuantConfig) -> type[nn.Module]:
    return WeightOnlyInt4Linear if config.weight.bits <= 4 else WeightOnlyLinear


class Fed(nn.Module):
    """A norm with outliers that feeds two layers, of which each may read its output otherwise."""

    def __init__(self, first: Any = lambda y: y, second: Any = lambda y: y) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(K), nn.Linear(K, 24), nn.Linear(K, 8)
        self.read = first, second
        self.norm.weight.data.uniform_(0.2, 2)
        self.norm.weight.data[[3, 17]] = 30.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(x)
        return self.wide(self.read[0](y)), self.narrow(self.read[1](y))


def rows(dtype: torch.dtype = torch.float64, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 10, K, generator=generator).to(dtype) for _ in range(count)]


def searched(weight: Tensor, importance: Tensor, config: QuantConfig) -> tuple[Tensor, Tensor]:
    """The integers of the scales that weigh errors by column, and what they stand for."""
    how = config.weight
    segments = weight.reshape(-1, how.group_size or weight.shape[1])
    weights = importance.expand_as(weight).reshape(segments.shape)
    ends = torch.stack(torch.aminmax(segments, dim=1), dim=1)
    limits = how.quant_min, how.quant_max
    integers, values = torch.empty_like(segments, dtype=torch.int8), torch.empty_like(segments)
    least = torch.full_like(segments[:, 0], torch.inf)
    for step in range(41 if how.bits <= 3 else 26):
        parts = ends * (1 - step / 50), 0, *limits
        scale, zero_point = ops.choose_qparams_per_channel(*parts, symmetric=how.symmetric)
        if config.scale_dtype != "float32":
            scale = scale.to(getattr(torch, config.scale_dtype)).to(segments.dtype)
        q = ops.quantize_per_channel(segments, scale, zero_point, 0, *limits)
        found = ops.dequantize_per_channel(q, scale, zero_point, 0, dtype=segments.dtype)
        error = ((found - segments).square() * weights).sum(dim=1)
        better = error < least
        least = torch.where(better, error, least)
        integers[better], values[better] = q[better], found[better]
    return integers.reshape(weight.shape), values.reshape(weight.shape)


@torch.no_grad()
def brute_force(model: Fed, config: QuantConfig, data: list[Tensor]) -> tuple[list[float], Any]:
    """The summed error of both layers' real outputs, and their integers, for each alpha."""
    outputs = model.norm(torch.cat(data))
    parts = [(model.wide, model.read[0](outputs)), (model.narrow, model.read[1](outputs))]
    mean = torch.cat([x.reshape(-1, K) for _, x in parts]).abs().mean(dim=0)
    errors, integers = [], []
    for step in range(STEPS + 1):
        powers = mean ** (step / STEPS)
        smooth = powers / (powers.max() * powers.min()).sqrt()
        total, found = 0.0, []
        for layer, x in parts:
            scaled = nn.Sequential(copy.deepcopy(layer))
            scaled[0].weight *= smooth
            if config.scale_rule == "search" and config.weight.bits < 8:
                squares = x.reshape(-1, K).square().sum(dim=0) / smooth.square()
                integers_of_layer, weight = searched(scaled[0].weight, squares, config)
                result = F.linear(x / smooth, weight, layer.bias)
            else:
                baraquant.quantize_(scaled, config)
                integers_of_layer, result = scaled[0].qweight, scaled(x / smooth)
            total += float((result - layer(x)).square().sum())
            found.append(integers_of_layer)
        errors.append(total)
        integers.append(found)
    return errors, integers


READS = {"same": (), "relu": (lambda y: y, F.relu), "slice": (lambda y: y[:, 1:], lambda y: y)}


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("max", "slice"),
        pytest.param("max", "relu", marks=pytest.mark.exhaustive),
        *(pytest.param(name, "same", marks=pytest.mark.exhaustive) for name in SCHEMES),
    ],
)
def test_alpha_has_the_least_error_of_real_outputs(name: str, reads: str) -> None:
    config, data = SCHEMES[name], rows()
    model = seeded(Fed, *READS[reads]).double()
    errors, integers = brute_force(model, config, data)
    report = baraquant.quantize_(model, AWQ(config, STEPS), calibration=data)
    best = min(range(STEPS + 1), key=errors.__getitem__)
    # One scale for a channel fits the large inputs without factors.
    assert best == 0 if name == "channel" else errors[best] < errors[0]
    text = f"{kind_of(config).__name__}, AWQ, alpha {best / STEPS:g} folded into norm"
    if best == 0:
        text = f"{kind_of(config).__name__}; not scaled, as no factors lower the error"
    assert report.changed == {"wide": text, "narrow": text}
    assert torch.equal(model.wide.qweight, integers[best][0])
    assert torch.equal(model.narrow.qweight, integers[best][1])


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "tolerance", "norm"),
    [
        (torch.float64, 0.01, nn.LayerNorm),
        (torch.float64, 0.01, OwnRMSNorm),
        (torch.float32, 0.01, nn.RMSNorm),
        (torch.bfloat16, 0.02, nn.LayerNorm),
        (torch.float16, 0.01, OwnRMSNorm),
    ],
)
def test_folding_changes_no_output(dtype: torch.dtype, tolerance: float, norm: Any) -> None:
    """What is left is the error of eight bits."""
    model, data = seeded(Block, 32, norm).to(dtype), [batch.to(dtype) for batch in batches(32)]
    expected, before = model(data[0]), copy.deepcopy(model)
    report = baraquant.quantize_(model, AWQ(W8A16()), calibration=data)
    folded = {path for path, text in report.changed.items() if "folded into" in text}
    assert {"query", "key", "up"} <= folded <= {"query", "key", "up", "down"}
    assert not torch.equal(model.norm1.weight, before.norm1.weight)
    assert relative_error(model(data[0]), expected) < tolerance


def test_a_chain_of_linear_layers() -> None:
    """Each is divided for the next one, and scaled for the one before."""
    torch.manual_seed(0)
    layers = [nn.Linear(K, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 8)]
    model = nn.Sequential(*layers)
    model[0].weight.data[5] *= 20
    model[2].weight.data[9] *= 20
    data, nearest = rows(torch.float32), copy.deepcopy(model)
    expected = model(data[0])
    few, eight = W4A16(16, scale_rule="max"), W8A16()
    report = baraquant.quantize_(model, {"0": AWQ(eight), "*": AWQ(few)}, calibration=data)
    baraquant.quantize_(nearest, {"0": eight, "*": few})
    text = "WeightOnlyLinear; not scaled, as no preceding layer can absorb the division"
    assert report.changed["0"] == text
    assert report.changed["2"].endswith(" folded into 0")
    assert report.changed["4"].endswith(" folded into 2")
    error, before = (relative_error(one(data[0]), expected) for one in (model, nearest))
    assert error < 0.9 * before


def test_channels_that_are_always_zero() -> None:
    torch.manual_seed(0)
    data = [F.relu(batch) for batch in rows(torch.float32)]
    for batch in data:
        batch[..., 4] *= 30
        batch[..., [0, 7]] = 0
    model = nn.Sequential(nn.Linear(K, K, bias=False), nn.ReLU(), nn.Linear(K, 8))
    nn.init.eye_(model[0].weight)
    expected = model(data[0])
    rules = {"0": None, "2": AWQ(W4A16(16))}
    report = baraquant.quantize_(model, rules, calibration=data, progress=False)
    assert report.changed["2"].endswith(" folded into 0")
    assert torch.equal(model[0].weight.diagonal()[[0, 7]], torch.ones(2))
    assert relative_error(model(data[0]), expected) < 0.1


def test_factors_that_overflow_the_producer_are_not_taken() -> None:
    data = [batch / 10 for batch in rows(torch.float16)]
    for batch in data:
        batch[..., 0] /= 10000
    found = {}
    for dtype in (torch.float32, torch.float16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(K, K, bias=False), nn.Linear(K, 8))
        model[0].weight.data.copy_(torch.linspace(1, 1000, K).diag())
        model[0].weight.data[0, 0] = 60000
        config = {"0": None, "1": AWQ(W4A16(16))}
        given = [batch.to(dtype) for batch in data]
        found[dtype] = baraquant.quantize_(model.to(dtype), config, calibration=given)
        assert bool(model[0].weight.isfinite().all()) and bool(model(given[0]).isfinite().all())
    assert found[torch.float32].changed["1"].endswith(" folded into 0")
    assert found[torch.float16].changed["1"].endswith("; not scaled, as no factors lower the error")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_finds_the_same(dtype: torch.dtype) -> None:
    data, model = rows(dtype), seeded(Fed).to(dtype)
    on_gpu, moved = copy.deepcopy(model).cuda(), [batch.cuda() for batch in data]
    wanted = baraquant.quantize_(model, AWQ(W4A16(16)), calibration=data)
    got = baraquant.quantize_(on_gpu, AWQ(W4A16(16)), calibration=moved, progress=False)
    assert got.changed == wanted.changed and on_gpu.wide.qweight.is_cuda
    assert (on_gpu.wide.qweight.cpu() != model.wide.qweight).float().mean() < 0.01


@pytest.mark.exhaustive
def test_large_weights_are_searched_in_parts() -> None:
    """Each part of the rows with the importance of its own columns."""
    features, rows = 480, 8760  # more than 2**22 weights

    def model(*parts: int) -> nn.Module:
        torch.manual_seed(0)
        norm, weight = nn.LayerNorm(features), torch.randn(rows, features)
        norm.weight.data.uniform_(0.1, 20)
        layers = nn.ModuleList(nn.Linear(features, part, bias=False) for part in parts)
        for layer, part in zip(layers, weight.split(parts), strict=True):
            layer.weight.data.copy_(part)
        return Side(norm, layers)

    data = [torch.randn(64, features, generator=torch.Generator().manual_seed(1))]
    whole, halves = model(rows), model(rows // 2, rows // 2)
    for one in (whole, halves):
        baraquant.quantize_(one, AWQ(W4A16(48), steps=1), calibration=data)
    got = torch.cat([layer.qweight for layer in halves.layers])
    assert torch.equal(whole.layers[0].qweight, got)


class Side(nn.Module):
    def __init__(self, norm: nn.Module, layers: nn.ModuleList) -> None:
        super().__init__()
        self.norm, self.layers = norm, layers

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.norm(x)
        return [layer(y) for layer in self.layers]


PLAIN = W4A16(8, scale_rule="max")
CONFIG = AWQ(PLAIN, steps=4)
NO_PRODUCER = "WeightOnlyInt4Linear; not scaled, as no preceding layer can absorb the division"


def is_scaled(what: str, producer: str) -> bool:
    return what.startswith("WeightOnlyInt4Linear, AWQ, alpha") and what.endswith(f"into {producer}")


def test_what_is_scaled_and_what_is_not(tmp_path: Path) -> None:
    model, nearest = seeded(Block), seeded(Block)
    report = baraquant.quantize_(model, CONFIG, calibration=batches())
    assert list(report.changed) == ["query", "key", "out", "up", "down"]
    for path, producer in {"query": "norm1", "key": "norm1", "up": "norm2"}.items():
        assert is_scaled(report.changed[path], producer), path
    assert report.changed["query"] == report.changed["key"]
    assert float(report.changed["query"].split()[3]) * CONFIG.steps % 1 == 0
    assert report.changed["out"] == NO_PRODUCER and report.changed["query"] in str(report)
    baraquant.quantize_(nearest, PLAIN)
    for key, value in nearest.out.state_dict().items():
        assert torch.equal(model.out.state_dict()[key], value)
    # No op is added: the modules are those without AWQ.
    assert [type(m) for m in model.modules()] == [type(m) for m in nearest.modules()]
    assert_stored(model, Block, batches()[0], tmp_path / "model.safetensors")


def test_it_goes_with_other_schemes() -> None:
    rules = {"query": AWQ(PLAIN, 2), "key": AWQ(W8A16(), 4), "up": GPTQ(W8A8()), "down": CONFIG}
    rules["*"] = W8A8Static()
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
    own = "QuantizedLinear, alpha 0.5 in its input"
    assert report.changed == {"query": NO_PRODUCER, "key": own}
