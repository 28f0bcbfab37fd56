# SPDX-License-Identifier: BSD-3-Clause
"""Layers and models whose factors are learned; the quantizer as a module."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import GPTQ, W4A8
from baraquant.nn import (
    FakeQuantizedLinear,
    LearnedFakeQuantize,
    LearnedFakeQuantizeInt4,
    QuantizedInt4Linear,
    StaticQuantizedInt4Linear,
)
from baraquant.qat import convert_, prepare_
from tests.nn.learned_factors import (
    SIZE,
    K,
    N,
    by_dtype,
    by_scheme,
    inputs,
    layer_of,
    moved,
    quantizer_of,
    static,
    weight,
)
from tests.support import cases

# --- layers and models ---------------------------------------------------------------------------


@by_dtype
@by_scheme
@pytest.mark.parametrize("of_input", ("dynamic", "static", "rotated"))
def test_evaluation_and_the_converted_layer_have_the_same_bits(
    of_input: str, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    configs = {
        "dynamic": W4A8(SIZE, symmetric, learned=True),
        "rotated": W4A8(SIZE, symmetric, learned=True, rotate=16),
        "static": static(symmetric),
    }
    layer, x = layer_of(configs[of_input], dtype, device), inputs(dtype, device)
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)
    before = layer.weight_fake_quant.qparams()[1]
    for _ in range(5):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    moved(layer.weight_fake_quant)
    assert not torch.equal(layer.weight_fake_quant.qparams()[1], before)
    trained = layer(x)
    model = nn.Sequential(layer).eval()
    with torch.no_grad():
        evaluated, read = model(x), layer.weight.clone()
        convert_(model)
        served = model(x)
    kind = StaticQuantizedInt4Linear if of_input == "static" else QuantizedInt4Linear
    assert type(model[0]) is kind
    assert torch.equal(served, evaluated)
    if of_input != "static":
        assert torch.equal(trained, evaluated)
    assert (model[0].group_zero_point is None) == symmetric
    assert torch.equal(model[0].weight + 0, read)
    for parameter in layer.weight_fake_quant.parameters():
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        assert parameter.dtype == wanted


def mixed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, 30), nn.Linear(30, 4))


def test_models(tmp_path: Any) -> None:
    model, x = mixed(), inputs()
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
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    again = mixed()
    prepare_(again, W4A8(SIZE, learned=True))
    again.load_state_dict(model.state_dict())
    model.eval()
    assert torch.equal(again.eval()(x), model(x))
    assert convert_(model).changed["0"] == "QuantizedInt4Linear"
    baraquant.save(model, tmp_path / "model")
    assert torch.equal(baraquant.load_(mixed, tmp_path / "model")(x), model(x))


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


def test_an_input_that_training_never_saw_stays_floating() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(K, K), "unused": nn.Linear(K, K)})
    prepare_(model, static(True))
    model["used"](inputs())
    wanted = model["unused"].eval().weight + 0
    assert convert_(model).changed["unused"].startswith("WeightOnlyLinear")
    assert torch.equal(model["unused"].weight + 0, wanted)


def test_other_layers_learn_floating_scales() -> None:
    model = nn.Sequential(nn.Embedding(10, K), nn.Linear(K, K))
    prepare_(model, W4A8(SIZE, learned=True))
    assert type(model[0].weight_fake_quant) is LearnedFakeQuantize
    assert type(model[1].weight_fake_quant) is LearnedFakeQuantizeInt4


# --- as a module ---------------------------------------------------------------------------------


def test_switches_conversions_and_copies() -> None:
    values = weight()
    made = quantizer_of(values)
    rounded = made(values)
    made.apply(baraquant.nn.disable_fake_quant)
    assert made(values) is values
    made.apply(baraquant.nn.enable_fake_quant)
    for one in (copy.deepcopy(made), copy.deepcopy(made).bfloat16(), copy.deepcopy(made).half()):
        assert {p.dtype for p in one.parameters()} == {torch.float32}
        assert torch.equal(one(values), rounded)
    assert {p.dtype for p in copy.deepcopy(made).double().parameters()} == {torch.float64}
    assert repr(made) == ("LearnedFakeQuantizeInt4(group_size=8, symmetric=True, scale=[12, 6])")
    steps, zeros = made.calculate_qparams()
    assert torch.equal(steps, made.scale.detach()) and not zeros.any()


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


@pytest.mark.exhaustive
@by_scheme
def test_compiled_and_scripted(symmetric: bool) -> None:
    layer, x = layer_of(W4A8(SIZE, symmetric, learned=True)), inputs()
    moved(layer.weight_fake_quant)
    found = []
    for one in (layer, torch.compile(layer, fullgraph=True), torch.jit.script(layer)):
        layer.zero_grad()
        y = one(x)
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in layer.parameters())])
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        for got, wanted in zip(other[1:], found[0][1:], strict=True):
            torch.testing.assert_close(got, wanted)
    layer.eval()
    assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))
