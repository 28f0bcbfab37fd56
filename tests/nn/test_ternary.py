# SPDX-License-Identifier: BSD-3-Clause
"""Weights of -1, 0 and 1 times their mean magnitude: trained, converted, saved, exported."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import GPTQ, QuantConfig
from baraquant.nn import FakeQuantizeTernary
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.models.training_models import train
from tests.support.schemes import described

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
SIZES: Any = {"per_tensor": {}, "per_channel": {"axis": 0}, "per_group": {"group_size": 16}}
by_granularity = pytest.mark.parametrize("granularity", SIZES)
INPUTS = {
    "dynamic": ", int8 per_token", "asymmetric": ", int8 per_token asymmetric",
    "static": ", int8 per_tensor static", "floating": "",
}  # fmt: skip


def config_of(granularity: str, inputs: str = "floating", **options: Any) -> QuantConfig:
    size = "(16)" if granularity == "per_group" else ""
    return described(f"int2 {granularity}{size} ternary{INPUTS[inputs]}", **options)


def values(dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Rows of many magnitudes, one of zeros and one of a single number."""
    x = torch.randn(8, 48, generator=cases.generator(5))
    x = x * torch.logspace(-6, 4, 8)[:, None]
    x[3], x[5] = 0.0, -0.25
    return x.to(device, dtype)


def rows_of(x: Tensor, granularity: str) -> Tensor:
    shapes = {"per_tensor": (1, -1), "per_channel": (len(x), -1), "per_group": (-1, 16)}
    return x.reshape(shapes[granularity])


def mean_of(row: Any) -> Any:
    """The scale of one row, by the formula of the documentation."""
    magnitudes = np.abs(row.astype(np.float64))
    largest = magnitudes.max()
    if largest == 0:
        return 1.0
    k = min(52, 62 - len(row).bit_length())
    total = np.rint(magnitudes / largest * 2.0**k).astype(np.int64).sum()
    return np.float64(total) / 2.0**k / len(row) * largest


@by_dtype
@by_granularity
def test_the_values(granularity: str, dtype: torch.dtype, device: str) -> None:
    x = values(dtype, device)
    quantizer = FakeQuantizeTernary(granularity, **SIZES[granularity])
    integers, scale, zeros = quantizer.quantize(x)
    rows = rows_of(x.cpu().double(), granularity)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    right = torch.tensor([mean_of(row) for row in rows.numpy()], dtype=torch.float64).to(compute)
    assert_same_bits(scale.reshape(-1).cpu(), right)
    for got, row in zip(right.tolist(), rows.tolist(), strict=True):
        exact = sum(abs(Fraction(number)) for number in row) / len(row)
        unit = Fraction(max(map(abs, row))) / 2**52  # of the sum
        rounding = exact * Fraction(torch.finfo(compute).eps)
        assert exact == 0 or abs(Fraction(got) - exact) <= rounding + unit
    quotients = (rows.to(compute) / right[:, None]).round().clamp(-1, 1)
    assert torch.equal(integers.cpu().double().reshape(rows.shape), quotients.double())
    assert not zeros.any()
    rounded = ((quotients + 0.0) * right[:, None]).to(dtype).reshape(x.shape)
    assert_same_bits(quantizer(x).cpu(), rounded)
    assert_same_bits(torch.jit.script(quantizer)(x).cpu(), rounded)


def test_the_gradient_passes_the_clamp_too(device: str) -> None:
    x = values(torch.float32, device).requires_grad_()
    slope = torch.linspace(-1, 1, x.numel(), device=device).reshape(x.shape)
    (FakeQuantizeTernary()(x) * slope).sum().backward()
    assert_same_bits(x.grad, slope)


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_nan_and_others_are_not(fault: float, device: str) -> None:
    x = values(torch.float32, device)
    right = FakeQuantizeTernary("per_channel", axis=0)(x)
    x[2, 7] = fault
    got = FakeQuantizeTernary("per_channel", axis=0)(x)
    assert got[2].isnan().all()
    assert_same_bits(got[[0, 1, *range(3, 8)]], right[[0, 1, *range(3, 8)]])


@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 3e38])
def test_no_magnitude_overflows_or_vanishes(magnitude: float, device: str) -> None:
    x = torch.full([2, 4096], magnitude, device=device)
    integers, scale, _ = FakeQuantizeTernary().quantize(x)
    assert scale.item() == max(x[0, 0].item(), 2.0**-126)
    assert integers.unique().tolist() == [0 if magnitude < 2.0**-127 else 1]


def test_nothing_has_the_scale_1() -> None:
    assert FakeQuantizeTernary().quantize(torch.empty(0, 4))[1].item() == 1
    scales = FakeQuantizeTernary("per_channel", axis=0).quantize(torch.empty(3, 0))[1]
    assert scales.tolist() == [1, 1, 1]


def model_of(dtype: torch.dtype, device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16, bias=False))
    return model.to(device, dtype)


@pytest.mark.filterwarnings("ignore:.*expected layers that multiply integers")
@by_dtype
@pytest.mark.parametrize("inputs", INPUTS)
@by_granularity
def test_a_served_model_has_the_bits_of_training(
    granularity: str, inputs: str, dtype: torch.dtype, device: str, tmp_path: Path
) -> None:
    model, fresh = model_of(dtype, device), model_of(dtype, device)
    x = torch.randn(32, 64, generator=cases.generator(8)).to(device, dtype)
    baraquant.qat.prepare_(model, config_of(granularity, inputs))
    train(model, x, x, x, lr=0.1)
    right = model.eval()(x).detach()
    baraquant.qat.convert_(model)
    assert set(model[0].qweight.unique().tolist()) == {-1, 0, 1}
    assert model[0].weight_bits == 2
    assert_same_bits(model(x), right)
    assert_same_bits(torch.jit.script(model)(x), right)
    baraquant.save(model, tmp_path / "model.safetensors")
    baraquant.load_(fresh, tmp_path / "model.safetensors")
    assert_same_bits(fresh(x), right)


def test_training_computes_the_product_of_integers(device: str) -> None:
    """The loss falls, and training mode has the bits of evaluation, compiled or not."""
    model = model_of(torch.float32, device)
    x = torch.randn(32, 64, generator=cases.generator(8)).to(device)
    baraquant.qat.prepare_(model, config_of("per_tensor", "dynamic"))
    before = model(x).square().mean()
    train(model, *[x] * 20, lr=0.1)
    right = model(x)
    assert right.square().mean() < before
    assert_same_bits(torch.compile(model, fullgraph=True)(x), right)
    assert_same_bits(model.eval()(x), right)
    assert_same_bits(torch.export.export(model, (x,)).module()(x), right)


@pytest.mark.parametrize("backward", ["int8_input", "int8"])
def test_gradients_of_integers(backward: str) -> None:
    x = torch.randn(32, 64, generator=cases.generator(8))
    gradients = []
    for how in ("float", backward):
        model = model_of(torch.float32)
        baraquant.qat.prepare_(model, config_of("per_channel", "dynamic", backward=how))
        model(x).square().sum().backward()
        gradients.append(model[0].get_parameter("weight").grad)
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()


@by_granularity
def test_quantize_rounds_as_training_does_and_gptq_keeps_the_grid(granularity: str) -> None:
    x = torch.randn(256, 64, generator=cases.generator(8))
    config = config_of(granularity)
    model, nearest, better = (model_of(torch.float32) for _ in range(3))
    baraquant.qat.prepare_(model, config)
    baraquant.qat.convert_(model)
    baraquant.quantize_(nearest, config, progress=False)
    assert torch.equal(nearest[0].qweight, model[0].qweight)
    right = model_of(torch.float32)[0](x)
    baraquant.quantize_(better, GPTQ(config), calibration=[x], progress=False)
    assert set(better[0].qweight.unique().tolist()) == {-1, 0, 1}
    assert (better[0](x) - right).norm() < (nearest[0](x) - right).norm()
