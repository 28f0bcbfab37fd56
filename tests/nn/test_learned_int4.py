# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.LearnedFakeQuantizeInt4`: factors that are trained, beside formulas in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import GPTQ, W4A8, PerGroup, QuantConfig, TensorConfig, ops
from baraquant.nn import (
    FakeQuantizedLinear,
    FakeQuantizeInt4,
    LearnedFakeQuantize,
    LearnedFakeQuantizeInt4,
    QuantizedInt4Linear,
)
from baraquant.qat import convert_, prepare_
from tests.support import cases

N, K, SIZE = 12, 48, 8
by_scheme = pytest.mark.parametrize("symmetric", (True, False))
by_dtype = pytest.mark.parametrize(
    "dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64)
)


def weight(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Groups of different sizes, so that every factor occurs."""
    generator = cases.generator(seed)
    sizes = torch.exp2(-4 * torch.rand(N, K // SIZE, generator=generator))
    values = torch.randn(N, K, generator=generator) * sizes.repeat_interleave(SIZE, dim=1)
    return values.to(dtype)


def quantizer_of(values: Tensor, symmetric: bool = True, **options: Any) -> LearnedFakeQuantizeInt4:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    made = LearnedFakeQuantizeInt4(
        SIZE, shape=(len(values), values.shape[1] // SIZE), symmetric=symmetric, dtype=dtype,
        device=values.device, **options,
    )  # fmt: skip
    made.initialize(values)
    return made


def moved(made: LearnedFakeQuantizeInt4, seed: int = 3) -> LearnedFakeQuantizeInt4:
    """The quantizer as training could leave it: some factors clamped, weights too, odd zeros."""
    generator = cases.generator(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if name == "zero_point":
                parameter.add_(3 * noise)
            else:
                parameter.mul_(torch.exp2(0.8 * noise) * (0.6 if name == "scale" else 1))
    return made


def layer_of(
    config: QuantConfig, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> FakeQuantizedLinear:
    torch.manual_seed(0)
    return FakeQuantizedLinear(K, N, config=config, dtype=dtype, device=device).train()


def inputs(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(5, K, generator=cases.generator(2)).to(device, dtype)


# --- values --------------------------------------------------------------------------------------


@by_dtype
@by_scheme
@pytest.mark.parametrize("scale_rule", ("search", "max"))
def test_it_starts_from_the_factors_of_the_rule(
    scale_rule: str, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    values = weight(dtype).to(device)
    made = quantizer_of(values, symmetric, scale_rule=scale_rule)
    fixed = FakeQuantizeInt4(SIZE, symmetric=symmetric)
    if scale_rule == "search":
        fixed = fixed.fitted(values)
    for got, wanted in zip(made.pack(values), fixed.pack(values), strict=True):
        assert torch.equal(got, wanted) and got.dtype == wanted.dtype
    assert len(made.qparams()[1].unique()) > 8
    assert torch.equal(made(values), fixed(values))
    assert made(values).dtype == dtype and made(values).device == values.device


@by_scheme
@by_dtype
def test_the_value_is_that_of_the_integers(
    dtype: torch.dtype, symmetric: bool, device: str
) -> None:
    values = weight(dtype).to(device)
    made = moved(quantizer_of(values, symmetric))
    scale, factor, zero_point = made.qparams_of(values)
    steps, rows = made.scale.detach().abs(), made.largest_step.detach().abs()[:, None] / 16
    assert torch.equal(factor, (steps / rows).round().clamp(1, 16).to(torch.uint8))
    assert factor.amin() == 1 and factor.amax() == 16
    assert symmetric == bool((zero_point == 8).all())
    integers, of_rows, zeros = made.quantize(values)
    assert integers.dtype == torch.int8 and torch.equal(of_rows, scale) and not zeros.any()
    wanted = ops.dequantize_per_channel(integers, scale, None, 0, dtype=dtype)
    assert torch.equal(made(values), wanted)
    assert torch.equal(made(values), made.requires_grad_(False)(values))
    # What carries the gradient is near it.
    made.requires_grad_(True)
    torch.testing.assert_close(made.smooth(values), wanted)


# --- gradients -----------------------------------------------------------------------------------


def two_levels(
    w: np.ndarray, step: np.ndarray, row: np.ndarray, zero: np.ndarray, dy: np.ndarray
) -> dict[str, np.ndarray]:
    """The formulas of the class without its factors; `w` and `dy` are [rows, groups, size]."""
    t = step / row[:, None]
    f = np.clip(np.rint(t), 1, 16)
    d = (f * row[:, None])[..., None]
    z = np.clip(np.rint(zero), -8, 7)[..., None]
    whole = f[..., None]
    # What is an int8 ends at a distance from the zero point, and follows it; four bits do not.
    int8_low, int8_high = z - np.floor(128 / whole), z + np.floor(127 / whole)
    low, high = np.maximum(-8, int8_low), np.minimum(7, int8_high)
    v = w / d
    r = np.rint(v) + z
    q = np.clip(r, low, high)
    inside = r == q
    by_d = (dy * np.where(inside, np.rint(v) - v, q - z)).sum(2)
    is_free = np.rint(t) == f
    format_end = ((r < low) & (int8_low < -8)) | ((r > high) & (int8_high > 7))
    return {
        "y": (q - z) * d, "w": dy * inside, "scale": np.where(is_free, by_d, 0), "row":
        (by_d * np.where(is_free, np.rint(t) - t, f)).sum(1), "zero_point":
        (dy * np.where(format_end, -d, 0)).sum(2), "inside": inside, "free": is_free,
    }  # fmt: skip


@by_scheme
@pytest.mark.parametrize("seed", (0, 1, 2))
def test_gradients_beside_numpy(seed: int, symmetric: bool, device: str) -> None:
    values = weight(torch.float64, seed).to(device)
    made = moved(quantizer_of(values, symmetric), seed)
    with torch.no_grad():
        made.scale[0, 0] *= -1  # the absolute value counts
    w = values.clone().requires_grad_()
    dy = torch.randn(N, K, dtype=torch.float64, generator=cases.generator(7)).to(device)
    y = made(w)
    y.backward(dy)
    groups = K // SIZE
    shape = (N, groups, SIZE)
    sign = np.sign(made.scale.detach().cpu().numpy())
    zero = np.zeros((N, groups))
    if made.zero_point is not None:
        zero = made.zero_point.detach().cpu().numpy()
    right = two_levels(
        values.cpu().numpy().reshape(shape),
        np.abs(made.scale.detach().cpu().numpy()),
        np.abs(made.largest_step.detach().cpu().numpy()) / 16,
        zero,
        dy.cpu().numpy().reshape(shape),
    )
    assert 0.3 < right["inside"].mean() < 0.98 and 0.3 < right["free"].mean() < 0.98
    g = 1 / math.sqrt(SIZE * 7)
    # 16 times the gradient of the scale: descent moves largest_step / 16 as if it were one.
    by_row = 16 / math.sqrt(groups * 16)
    wanted = {
        "y": (y.detach(), right["y"]),
        "w": (w.grad, right["w"]),
        "scale": (made.scale.grad, right["scale"] * g * sign),
        "largest_step": (made.largest_step.grad, right["row"] * g * by_row),
    }
    if made.zero_point is not None:
        wanted["zero_point"] = (made.zero_point.grad, right["zero_point"] * g)
    for name, (got, expected) in wanted.items():
        assert got is not None and got.any(), name
        np.testing.assert_allclose(
            got.cpu().numpy().reshape(expected.shape), expected, rtol=1e-9, atol=1e-12, err_msg=name
        )


@by_dtype
def test_a_layer_passes_its_gradient_through_the_factors(dtype: torch.dtype, device: str) -> None:
    """The product of integers in training has the gradients of the rounded weight's product."""
    layer = layer_of(W4A8(SIZE, learned=True), dtype, device)
    moved(layer.weight_fake_quant)
    x, dy = inputs(dtype, device), torch.randn(5, N, dtype=dtype, device=device)
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad(layer(x), parameters.values(), dy)
    rounded = ops.dynamic_fake_quantize_per_token(x)
    y = nn.functional.linear(rounded, layer.weight_fake_quant(layer.weight), layer.bias)
    for name, got, wanted in zip(
        parameters, found, torch.autograd.grad(y, parameters.values(), dy), strict=True
    ):
        assert got.dtype == parameters[name].dtype and got.any(), name
        error = (got.double() - wanted.double()).norm() / wanted.double().norm()
        assert error < (1e-5 if dtype in (torch.float32, torch.float64) else 0.03), name


# --- layers and models ---------------------------------------------------------------------------


def mixed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, 30), nn.Linear(30, 4))


def test_what_a_report_and_an_optimizer_find() -> None:
    model = mixed()
    report = prepare_(model, W4A8(SIZE, learned=True))
    assert report.changed["0"] == (
        "FakeQuantizedLinear(weight=int4 per_group(8) symmetric learned factors, "
        "input=int8 per_token symmetric dynamic)"
    )
    assert "group_size to divide in_features (30)" in report.left_out["3"]
    # Scales are no parameters of the model's own, and an optimizer finds them by their class.
    assert report.total_parameters == sum(p.numel() for p in mixed().parameters())
    learned = [m for m in model.modules() if isinstance(m, LearnedFakeQuantize)]
    names = {name for m in learned for name, _ in m.named_parameters()}
    assert len(learned) == 2 and names == {"scale", "largest_step"}


def test_tied_weights_learn_one_set_of_factors() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(K, K), "b": nn.Linear(K, K, bias=False)})
    model["b"].weight = model["a"].weight
    prepare_(model, W4A8(SIZE, learned=True))
    assert model["a"].weight_fake_quant is model["b"].weight_fake_quant
    convert_(model.eval())
    assert model["a"].packed is model["b"].packed


def test_quantize_and_gptq_train_nothing() -> None:
    """They take the configuration, and find the factors by its rule."""
    x = inputs()
    for wrap in (lambda config: config, GPTQ):
        found = []
        for learned in (False, True):
            model = mixed()
            data = [torch.randn(64, K, generator=cases.generator(4))]
            config = W4A8(SIZE, learned=learned)
            baraquant.quantize_(model, wrap(config), calibration=data, progress=False)
            assert isinstance(model[0], QuantizedInt4Linear)
            found.append(model(x))
        assert torch.equal(*found)


def test_other_layers_learn_floating_scales() -> None:
    model = nn.Sequential(nn.Embedding(10, K), nn.Linear(K, K))
    prepare_(model, W4A8(SIZE, learned=True))
    assert type(model[0].weight_fake_quant) is LearnedFakeQuantize
    assert type(model[1].weight_fake_quant) is LearnedFakeQuantizeInt4


# --- as a module ---------------------------------------------------------------------------------


@by_scheme
def test_what_is_not_finite_stays_visible(symmetric: bool) -> None:
    values = weight()
    for name in ("scale", "largest_step", *(() if symmetric else ("zero_point",))):
        for poison in (math.nan, math.inf):
            layer = FakeQuantizedLinear(K, N, config=W4A8(SIZE, symmetric, learned=True))
            with torch.no_grad():
                getattr(layer.weight_fake_quant, name)[2] = poison
                assert not layer.weight_fake_quant(values)[2].isfinite().any()
                assert layer.weight_fake_quant(values)[1].isfinite().all()
            with pytest.raises(
                ValueError, match="0: expected the scale of the weight to be finite"
            ):
                convert_(nn.Sequential(layer))


def test_rows_and_groups_of_zeros() -> None:
    values = weight()
    values[0], values[1, :SIZE] = 0, 0
    made = quantizer_of(values)
    y = made(values)
    assert not y[0].any() and not y[1, :SIZE].any()
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters())
    empty = LearnedFakeQuantizeInt4(2, shape=(0, 2))
    empty.initialize(torch.ones(0, 4))
    assert empty(torch.ones(0, 4)).shape == (0, 4)


def test_a_module_of_the_meta_device_starts_from_its_first_weight() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(K, N))
    prepare_(model, W4A8(SIZE, learned=True))
    model.to_empty(device="cpu")
    values = weight()
    made = model[0].weight_fake_quant
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(math.nan)
        model[0].weight.copy_(values)
        model[0].bias.zero_()
    with pytest.raises(RuntimeError, match="the factors are not known"):
        model.eval()(inputs())
    model.train()(inputs())
    assert torch.equal(made(values), quantizer_of(values)(values))


def test_configurations() -> None:
    config = W4A8(32, learned=True)
    assert config.weight == TensorConfig(4, PerGroup(32), learned=True, group_factors=True)
    assert config.trains_on_integers and not config.weight.dynamic
    assert QuantConfig.from_dict(config.to_dict()) == config
    assert config.with_float_scales() == W4A8(32, learned=True, group_factors=False)
    assert W4A8(None, learned=True).weight == TensorConfig(4, learned=True)
    config = W4A8(32, group_factors=True)
    assert config.trains_on_integers and "factors" in str(config)
    assert config.with_floating_input() == baraquant.W4A16(32)
    for backward in ("float", "int8"):
        factors = W4A8(32, group_factors=True, backward=backward)
        assert factors.with_float_scales() == W4A8(32, group_factors=False)
