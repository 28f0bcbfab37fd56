# SPDX-License-Identifier: BSD-3-Clause
"""Weights that have 2 to 4 bits and a whole factor for each group: quantizers, layers, training.

Factors that are trained stand beside formulas in NumPy.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from baraquant import (
    GPTQ,
    W2A8,
    W3A8,
    W4A8,
    W4A16,
    PerGroup,
    QuantConfig,
    TensorConfig,
    ops,
    quantize_,
    save,
)
from baraquant import nn as bnn
from baraquant.configs import integer_range
from baraquant.qat import convert_, prepare_
from tests.support import cases
from tests.support.bits import to_numpy
from tests.support.models.made import quantized
from tests.support.models.one_layer import converted

N, K, SIZE = 24, 96, 8
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_symmetry = pytest.mark.parametrize("symmetric", (True, False))
by_bits = pytest.mark.parametrize("bits", (2, 3, 4))
SCHEMES = {2: W2A8, 3: W3A8, 4: W4A8}
SIZES = [(size, symmetric) for size in (2, 32, 96) for symmetric in (True, False)]
by_scheme = pytest.mark.parametrize(("size", "symmetric"), SIZES, ids=str)


def layer_of(config: QuantConfig, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    torch.manual_seed(3)
    return bnn.FakeQuantizedLinear(K, N, config=config).to(device, dtype)


def inputs(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(3, 5, K, generator=cases.generator(4)).to(device, dtype)


@by_dtype
@by_scheme
@by_bits
def test_quantizer_is_its_ops(
    bits: int, size: int, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    weight = torch.randn(N, K, generator=cases.generator(2)).to(device, dtype).requires_grad_()
    how: dict[str, Any] = {"symmetric": symmetric, "bits": bits}
    quantizer = bnn.FakeQuantizeInt4(size, **how)
    scale, factor, zeros = ops.choose_int4_qparams(weight.detach(), size, **how)
    of_groups = {"group_zero_point": zeros}
    packed = ops.quantize_int4(weight.detach(), scale, factor, size, bits=bits, **of_groups)
    w8 = ops.expand_int4(packed, factor, size, K, **of_groups)
    wanted = packed, scale, factor, zeros
    torch.testing.assert_close(quantizer.pack(weight), wanted, rtol=0, atol=0)
    integers, of_rows, none = quantizer.quantize(weight)
    assert torch.equal(integers, w8) and torch.equal(of_rows, scale)
    assert none.shape == (N,) and not none.any() and none.dtype == torch.int32
    rounded = quantizer(weight)
    assert torch.equal(rounded, ops.dequantize_per_channel(w8, scale, None, 0, dtype=dtype))
    dy = torch.randn_like(rounded)
    assert torch.equal(torch.autograd.grad(rounded, weight, dy)[0], dy)
    of_groups |= {"scale": scale, "group_factor": factor}
    given = bnn.FakeQuantizeInt4(size, **of_groups, **how)
    assert torch.equal(given(weight), rounded) and not given.is_dynamic
    assert torch.equal(torch.jit.script(quantizer)(weight), rounded)
    quantizer.disable_fake_quant()
    assert quantizer(weight) is weight and torch.equal(quantizer.round(weight), rounded)


@by_dtype
@by_scheme
@by_bits
@pytest.mark.parametrize("of_input", ("dynamic", "static"))
def test_one_product_in_all_three(
    bits: int, size: int, symmetric: bool, dtype: torch.dtype, of_input: str, device: str
) -> None:
    config = SCHEMES[bits](size, symmetric)
    if of_input == "static":
        input = TensorConfig(8, "per_tensor", symmetric, dynamic=False)
        config = QuantConfig(config.weight, input, observer="min_max")
    layer, x = layer_of(config, dtype, device), inputs(dtype, device)
    trained = layer(x)
    layer.eval()
    evaluated, served = layer(x), converted(nn.Sequential(layer))[0]
    kind = bnn.QuantizedInt4Linear if of_input == "dynamic" else bnn.StaticQuantizedInt4Linear
    assert type(served) is kind
    assert torch.equal(served(x), evaluated)
    if of_input == "dynamic":
        assert torch.equal(trained, evaluated)
    # ... which is that of the layer of int8 whose weight is the expanded one.
    w8, scale, _ = layer.quantized_weight()
    same = bnn.QuantizedLinear(w8, scale, layer.bias)
    if of_input == "static":
        zeros = {} if symmetric else {"act_zero_point": served.act_zero_point}
        same = bnn.StaticQuantizedLinear(w8, scale, served.act_scale, layer.bias, **zeros)
    assert torch.equal(same(x), evaluated)
    assert torch.equal(served.weight + 0, layer.weight + 0)
    assert served.weight.shape == (N, K) and served.weight.dtype == dtype


@pytest.mark.parametrize("rotate", (None, 32))
def test_conv1d_and_rotations(rotate: int | None) -> None:
    torch.manual_seed(1)
    layer = bnn.FakeQuantizedConv1D(N, K, config=W4A8(32, rotate=rotate)).eval()
    served, x = converted(nn.Sequential(layer))[0], inputs()
    assert torch.equal(served(x), layer(x))
    assert served.weight.shape == (K, N) and (served.nx, served.nf) == (K, N)
    torch.testing.assert_close(served.weight + 0, layer.weight + 0)


def test_damaged_numbers_are_not_saved(tmp_path: Any) -> None:
    damage = ("group_factor", 17, r"integers in \[1, 16\]"), ("packed", 255, "reaches .* 240")
    for name, value, words in damage:
        model = converted(nn.Sequential(layer_of(W4A8(32))))
        assert model[0].packed.nbytes == N * K // 2 and model[0].group_factor.nbytes == N * K // 32
        if name == "packed":
            model[0].group_zero_point = torch.zeros_like(model[0].group_factor)
            model[0].group_factor.fill_(16)
        getattr(model[0], name).fill_(value)
        with pytest.raises(ValueError, match=f"0: .*{name}.*{words}"):
            save(model, tmp_path / "bad")


@by_bits
def test_the_search_is_the_best_of_all_factors(bits: int) -> None:
    torch.manual_seed(0)
    weight, (low, high), scheme = torch.randn(8, 64), integer_range(bits), SCHEMES[bits]
    scale = weight.abs().amax(1, keepdim=True) / (16 * high)
    assert scheme(32) == scheme(32, scale_rule="search")

    def errors(rounded: Tensor) -> Tensor:
        return (rounded - weight).square().unflatten(1, (-1, 32)).sum(2)

    for symmetric in (True, False):
        found = {}
        for rule in ("search", "max"):
            model = nn.Sequential(nn.Linear(64, 8, bias=False))
            model[0].weight = nn.Parameter(weight.clone())
            quantize_(model, scheme(32, symmetric, scale_rule=rule), progress=False)
            assert torch.equal(model[0].weight_scale, scale[:, 0])
            found[rule] = errors(model[0].weight)
        assert (found["search"] <= found["max"] * (1 + 1e-6)).all()
        assert found["search"].sum() < (0.9 if symmetric else 0.95) * found["max"].sum()
        if symmetric:
            steps = [scale * factor for factor in range(1, 17)]
            tried = [errors((weight / step).round().clamp(low, high) * step) for step in steps]
            torch.testing.assert_close(found["search"], torch.stack(tried).amin(0))


# --- learned factors: what they start from -------------------------------------------------------


def weight(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Groups of different sizes, so that every factor occurs."""
    generator = cases.generator(seed)
    sizes = torch.exp2(-4 * torch.rand(N, K // SIZE, generator=generator))
    return (torch.randn(N, K, generator=generator) * sizes.repeat_interleave(SIZE, 1)).to(dtype)


def quantizer_of(values: Tensor, symmetric: bool = True, bits: int = 4, **more: Any) -> Any:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    made = bnn.LearnedFakeQuantizeInt4(
        SIZE, shape=(len(values), values.shape[1] // SIZE), symmetric=symmetric, dtype=dtype,
        device=values.device, bits=bits, **more,
    )  # fmt: skip
    made.initialize(values)
    return made


def moved(made: bnn.LearnedFakeQuantizeInt4, seed: int = 3) -> bnn.LearnedFakeQuantizeInt4:
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


@by_dtype
@by_symmetry
@by_bits
@pytest.mark.parametrize("rule", ("search", "max"))
def test_it_starts_from_the_rule(
    rule: str, bits: int, symmetric: bool, dtype: Any, device: str
) -> None:
    values = weight(dtype).to(device)
    made = quantizer_of(values, symmetric, bits, scale_rule=rule)
    fixed = bnn.FakeQuantizeInt4(SIZE, symmetric=symmetric, bits=bits)
    fixed = fixed.fitted(values)[0] if rule == "search" else fixed
    torch.testing.assert_close(made.pack(values), fixed.pack(values), rtol=0, atol=0)
    assert len(made.qparams()[1].unique()) > 8
    assert torch.equal(made(values), fixed(values))
    assert made(values).dtype == dtype and made(values).device == values.device


@by_symmetry
@by_dtype
@by_bits
def test_its_value_is_that_of_integers(
    bits: int, dtype: torch.dtype, symmetric: bool, device: str
) -> None:
    values = weight(dtype).to(device)
    made = moved(quantizer_of(values, symmetric, bits))
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


def two_levels(
    w: Any, step: Any, row: Any, zero: Any, dy: Any, least: int, most: int
) -> dict[str, np.ndarray]:
    """The formulas of the class without its factors; `w` and `dy` are [rows, groups, size]."""
    t = step / row[:, None]
    f = np.clip(np.rint(t), 1, 16)
    d = (f * row[:, None])[..., None]
    z = np.clip(np.rint(zero), least, most)[..., None]
    whole = f[..., None]
    # What is an int8 ends at a distance from the zero point, and follows it; four bits do not.
    int8_low, int8_high = z - np.floor(128 / whole), z + np.floor(127 / whole)
    low, high = np.maximum(least, int8_low), np.minimum(most, int8_high)
    v = w / d
    r = np.rint(v) + z
    q = np.clip(r, low, high)
    inside = r == q
    by_d = (dy * np.where(inside, np.rint(v) - v, q - z)).sum(2)
    is_free = np.rint(t) == f
    format_end = ((r < low) & (int8_low < least)) | ((r > high) & (int8_high > most))
    return {
        "y": (q - z) * d, "w": dy * inside, "scale": np.where(is_free, by_d, 0), "row":
        (by_d * np.where(is_free, np.rint(t) - t, f)).sum(1), "zero_point":
        (dy * np.where(format_end, -d, 0)).sum(2), "inside": inside, "free": is_free,
    }  # fmt: skip


@by_symmetry
@by_bits
@pytest.mark.parametrize("seed", (0, 1, 2))
def test_gradients_beside_numpy(seed: int, bits: int, symmetric: bool, device: str) -> None:
    values, ends = weight(torch.float64, seed).to(device), integer_range(bits)
    made = moved(quantizer_of(values, symmetric, bits), seed)
    with torch.no_grad():
        made.scale[0, 0] *= -1  # the absolute value counts
    w = values.clone().requires_grad_()
    dy = torch.randn(N, K, dtype=torch.float64, generator=cases.generator(7)).to(device)
    y = made(w)
    y.backward(dy)
    groups = K // SIZE
    scale, step = to_numpy(made.scale), to_numpy(made.largest_step)
    zero = np.zeros((N, groups)) if symmetric else to_numpy(made.zero_point)
    cut = [to_numpy(t).reshape(N, groups, SIZE) for t in (values, dy)]
    right = two_levels(cut[0], np.abs(scale), np.abs(step) / 16, zero, cut[1], *ends)
    assert 0.3 < right["inside"].mean() < 0.98 and 0.3 < right["free"].mean() < 0.98
    g = 1 / math.sqrt(SIZE * ends[1])
    # 16 times the gradient of the scale: descent moves largest_step / 16 as if it were one.
    by_row = 16 / math.sqrt(groups * 16)
    wanted = {
        "y": (y.detach(), right["y"]),
        "w": (w.grad, right["w"]),
        "scale": (made.scale.grad, right["scale"] * g * np.sign(scale)),
        "largest_step": (made.largest_step.grad, right["row"] * g * by_row),
    }
    assert symmetric == (made.zero_point is None)
    if not symmetric:
        wanted["zero_point"] = (made.zero_point.grad, right["zero_point"] * g)
    for name, (got, expected) in wanted.items():
        assert got is not None and got.any(), name
        got = to_numpy(got).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=name)


@by_dtype
def test_a_layer_passes_its_gradient_through_the_factors(dtype: torch.dtype, device: str) -> None:
    """The product of integers in training has the gradients of the rounded weight's product."""
    layer = layer_of(W4A8(SIZE, learned=True), dtype, device)
    moved(layer.weight_fake_quant)
    x, dy = inputs(dtype, device), torch.randn(3, 5, N, dtype=dtype, device=device)
    parameters = dict(layer.named_parameters())
    rounded = ops.dynamic_fake_quantize_per_token(x)
    y = nn.functional.linear(rounded, layer.weight_fake_quant(layer.weight), layer.bias)
    found = [torch.autograd.grad(one, parameters.values(), dy) for one in (layer(x), y)]
    for name, got, wanted in zip(parameters, *found, strict=True):
        assert got.dtype == parameters[name].dtype and got.any(), name
        error = (got.double() - wanted.double()).norm() / wanted.double().norm()
        assert error < (1e-5 if dtype in (torch.float32, torch.float64) else 0.03), name


# --- in layers and models ------------------------------------------------------------------------


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
    learned = [m for m in model.modules() if isinstance(m, bnn.LearnedFakeQuantize)]
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
    data = [torch.randn(64, K, generator=cases.generator(4))]
    for wrap in (lambda config: config, GPTQ):
        found = []
        for learned in (False, True):
            model = quantized(mixed(), wrap(W4A8(SIZE, learned=learned)), *data)
            assert isinstance(model[0], bnn.QuantizedInt4Linear)
            found.append(model(x))
        assert torch.equal(*found)


def test_other_layers_learn_floating_scales() -> None:
    model = nn.Sequential(nn.Embedding(10, K), nn.Linear(K, K))
    prepare_(model, W4A8(SIZE, learned=True))
    assert type(model[0].weight_fake_quant) is bnn.LearnedFakeQuantize
    assert type(model[1].weight_fake_quant) is bnn.LearnedFakeQuantizeInt4


@by_symmetry
def test_what_is_not_finite_stays_visible(symmetric: bool) -> None:
    values = weight()
    for name in ("scale", "largest_step", *(() if symmetric else ("zero_point",))):
        for poison in (math.nan, math.inf):
            layer = bnn.FakeQuantizedLinear(K, N, config=W4A8(SIZE, symmetric, learned=True))
            with torch.no_grad():
                getattr(layer.weight_fake_quant, name)[2] = poison
                assert not layer.weight_fake_quant(values)[2].isfinite().any()
                assert layer.weight_fake_quant(values)[1].isfinite().all()
            with pytest.raises(ValueError, match="0: expected the scale of the weight to be fini"):
                convert_(nn.Sequential(layer))


def test_rows_and_groups_of_zeros() -> None:
    values = weight()
    values[0], values[1, :SIZE] = 0, 0
    made = quantizer_of(values)
    y = made(values)
    assert not y[0].any() and not y[1, :SIZE].any()
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters())
    empty = bnn.LearnedFakeQuantizeInt4(2, shape=(0, 2))
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
    assert config.with_floating_input() == W4A16(32)
    for backward in ("float", "int8"):
        factors = W4A8(32, group_factors=True, backward=backward)
        assert factors.with_float_scales() == W4A8(32, group_factors=False)
