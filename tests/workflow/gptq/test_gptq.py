# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: beside the paper's algorithm, beside rounding to nearest, and on whole models."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import (
    GPTQ,
    W2A8,
    W2A16,
    W3A8,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    QuantConfig,
    TensorConfig,
    W8A8Static,
    ops,
)
from baraquant.nn import WeightOnlyInt4Linear
from baraquant.workflow.gptq.formula import Hessian
from tests.support.checks.refused import refused
from tests.support.models.outlier_models import Block, batches, relative_error, seeded

K, N = 48, 20
SCHEMES: dict[str, QuantConfig] = {
    "W4A16": W4A16(16),
    "W4A16 whole": W4A16(K),
    "W4A16 asymmetric": W4A16(8, symmetric=False),
    "W4A16 max": W4A16(24, scale_rule="max"),
    "W4A16 channel": W4A16(None),
    "W4A8": W4A8(16, group_factors=False),
    "W4A8 channel": W4A8(None),
    "W8A16": W8A16(),
    "W8A8": W8A8(),
    "W8A8 asymmetric": W8A8(False),
    "two bits": W2A16(12),
    "three bits": QuantConfig(TensorConfig(3), scale_rule="max"),
    "five bits asymmetric": QuantConfig(TensorConfig(5, "per_channel", False)),
    "per tensor": QuantConfig(TensorConfig(4, "per_tensor")),
    "bfloat16": W4A16(16, scale_dtype="bfloat16"),
    "float16": W4A16(16, False, "max", scale_dtype="float16"),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def correlated(
    count: int = 4, rows: int = 64, features: int = K, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Batches whose columns depend on each other, as those of real layers do."""
    made: dict[str, Any] = {"generator": generator(1), "dtype": torch.float64}
    sizes = torch.logspace(0, -2, features, dtype=torch.float64)
    mix = sizes[:, None] * torch.randn(features, features, **made)
    return [(torch.randn(rows, features, **made) @ mix).to(dtype) for _ in range(count)]


def linear(features: int = K, outputs: int = N, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(features, outputs, dtype=dtype))


def grid_of(rows: Tensor, config: QuantConfig) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of each row, as plain quantization finds them."""
    how = TensorConfig(config.weight.bits, "per_channel", config.weight.symmetric)
    plain = QuantConfig(how, scale_rule=config.scale_rule, scale_dtype=config.scale_dtype)
    layer = nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=rows.dtype)
    layer.weight.data.copy_(rows)
    model: Any = nn.Sequential(layer)
    baraquant.quantize_(model, plain)
    scale, zero_point = model[0].weight_scale, model[0].weight_zero_point
    return scale, torch.zeros_like(scale, dtype=torch.int32) if zero_point is None else zero_point


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
            scales[:, group], zeros[:, group] = grid_of(weight[:, column : column + size], config)
        scale, zero = scales[:, group], zeros[:, group]
        integer = (weight[:, column] / scale).round() + zero
        integer = integer.clamp(own.quant_min, own.quant_max)
        integers[:, column] = integer.to(torch.int64)
        error = (weight[:, column] - (integer - zero) * scale) / inverse[column, column]
        weight = weight - error[:, None] * inverse[column]
        removed = torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse = inverse - removed
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


# Inputs of one block of columns that are corrected together, and of several.
SIZES = [(name, K) for name in SCHEMES]
SIZES += [(name, 288) for name in ("W4A16", "W4A16 channel", "W4A16 max", "two bits")]


@pytest.mark.parametrize(("name", "features"), SIZES)
@pytest.mark.parametrize("act_order", [False, True])
def test_equals_the_algorithm_of_the_paper(name: str, features: int, act_order: bool) -> None:
    config, model, data = SCHEMES[name], linear(features), correlated(features=features)
    weight = model[0].weight.detach().clone()
    report = baraquant.quantize_(model, GPTQ(config, 0.05, act_order), calibration=data)
    assert report.changed["0"].endswith(", GPTQ")
    inputs = as_multiplied(torch.cat(data), config)
    assert_same(model[0], slow_gptq(weight, inputs, config, 0.05, act_order))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEMES)
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


@torch.no_grad()
def test_inputs_come_from_quantized_layers() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(K, 32), nn.ReLU(), nn.Linear(32, N)).double()
    second, data, config = model[2].weight.detach().clone(), correlated(), W4A16(16)
    baraquant.quantize_(model, GPTQ(config), calibration=data)
    inputs = torch.cat([model[1](model[0](batch)) for batch in data])
    assert_same(model[2], slow_gptq(second, inputs, config, 0.01))


def test_is_deterministic_and_splits_do_not_matter() -> None:
    data = torch.cat(correlated())
    models = [linear() for _ in range(3)]
    for model, split in zip(models, (64, 64, 13), strict=True):
        baraquant.quantize_(model, GPTQ(W4A16(16)), calibration=list(data.split(split)))
    first, again, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert torch.equal(first["0.packed"], other["0.packed"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rule", ["search", "max"])
@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("scheme", [W4A8, W3A8, W2A8])
def test_groups_with_factors(scheme: Any, symmetric: bool, rule: str, act_order: bool) -> None:
    config, data = scheme(16, symmetric, rule, group_factors=True), correlated(dtype=torch.float32)
    exact, nearest, model = (linear(dtype=torch.float32) for _ in range(3))
    baraquant.quantize_(nearest, config)
    report = baraquant.quantize_(model, GPTQ(config, act_order=act_order), calibration=data)
    assert report.changed["0"] == "QuantizedInt4Linear, GPTQ"
    assert torch.equal(model[0].weight_scale, nearest[0].weight_scale)
    model[0].check_products()
    wanted = exact(data[0])
    error, before = (relative_error(one(data[0]), wanted) for one in (model, nearest))
    assert error < 0.8 * before


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


def test_autocast_changes_no_sum() -> None:
    """Nor what the layer multiplies, were it a product of its own."""
    x, turn = correlated(dtype=torch.float32)[0], torch.randn(K, K)
    sums = [Hessian(K, torch.float32, lambda rows: rows @ turn) for _ in range(2)]
    sums[0].observe(x)
    with torch.autocast("cpu", torch.bfloat16):
        sums[1].observe(x)
    assert torch.equal(sums[0].matrix, sums[1].matrix)


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
    # The others are rounded as if these were not there.
    live = [column for column in range(K) if column not in dead]
    model, alone = linear(), linear(len(live))
    model[0].weight.data[:, dead] = 0
    alone[0].weight.data.copy_(model[0].weight[:, live])
    baraquant.quantize_(model, GPTQ(config), calibration=data)
    baraquant.quantize_(alone, GPTQ(config), calibration=[batch[:, live] for batch in data])
    assert torch.equal(model[0].qweight[:, live], alone[0].qweight)
    model = linear()  # where every input is dead
    baraquant.quantize_(model, GPTQ(config), calibration=[torch.zeros_like(one) for one in data])
    assert torch.equal(model[0].qweight, nearest[0].qweight)


def test_a_hessian_that_needs_more_damping() -> None:
    row = torch.randn(1, K, generator=generator(), dtype=torch.float64)
    data, model = [row, 2 * row], linear()  # of rank one
    with pytest.warns(UserWarning, match=r"0: with damping 0 the Hessian .* 1e-06, which was used"):
        baraquant.quantize_(model, GPTQ(W4A16(16), damping=0), calibration=data)
    assert type(model[0]) is WeightOnlyInt4Linear


def test_inputs_that_overflow_when_they_are_rotated() -> None:
    model = linear(dtype=torch.float32)
    config = GPTQ(W4A16(16, rotate=32))
    with pytest.raises(ValueError, match=r"quantize_: 0: expected a finite Hessian, .* overflow"):
        baraquant.quantize_(model, config, calibration=[torch.full((2, K), 3e38)])
    assert type(model[0]) is nn.Linear


@pytest.mark.cuda
@pytest.mark.parametrize("act_order", [False, True])
def test_a_gpu_equals_the_algorithm_too(act_order: bool) -> None:
    config, model, data = W4A8(16, group_factors=False), linear().cuda(), correlated()
    weight = model[0].weight.detach().cpu()
    on_gpu = [batch.cuda() for batch in data]
    baraquant.quantize_(model, GPTQ(config, act_order=act_order), calibration=on_gpu)
    assert model[0].qweight.is_cuda
    inputs = as_multiplied(torch.cat(data), config)
    assert_same(model.cpu()[0], slow_gptq(weight, inputs, config, 0.01, act_order))


class Runs:
    """Batches that count how often they are gone through, and how many of them are alive."""

    def __init__(self, count: int) -> None:
        self.count, self.runs, self.most = count, 0, 0
        self._alive: list[Any] = []

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


def test_an_error_in_a_later_layer_leaves_the_model_as_it_was() -> None:
    model = seeded(Block).train()
    model.up.weight.data[0, 0] = 1e12
    message, config = "quantize_: up: .*the weight.*float16", GPTQ(W4A16(16, scale_dtype="float16"))
    refused(baraquant.quantize_, message, model, config, calibration=batches())
