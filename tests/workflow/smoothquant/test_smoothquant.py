# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant: the factors, the search, and whole models."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static, ops
from baraquant.workflow.smoothquant.smoothing import (
    ALPHAS,
    AlphaSearch,
    ChannelRange,
    range_after,
    smoothing,
)
from tests.support.models.outlier_models import (
    Block,
    Tied,
    batches,
    relative_error,
    seeded,
    tokens,
)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_factors_follow_the_formula(alpha):
    absmax, weights = torch.tensor([8.0, 0.5, 2.0]), [torch.randn(4, 3), torch.randn(2, 3)]
    got = smoothing(absmax, weights, alpha)
    largest = torch.cat(weights).abs().amax(0)
    torch.testing.assert_close(got, absmax**alpha / largest ** (1 - alpha))


def test_factors_of_zeros_are_one():
    weight = torch.tensor([[1.0, 0.0, 2.0]])
    got = smoothing(torch.tensor([0.0, 3.0, 4.0]), [weight], 0.5)
    assert got.tolist() == [1.0, 1.0, pytest.approx(math.sqrt(2))]
    assert torch.equal(smoothing(torch.rand(3), [weight], None), torch.ones(3))


def test_channel_ranges_are_those_of_all_data():
    data, watcher = batches(), ChannelRange()
    for batch in data:
        watcher.observe(batch.bfloat16())
    rows = torch.cat(data).bfloat16().float().reshape(-1, 16)
    assert torch.equal(watcher.min_val, rows.amin(0))
    assert torch.equal(watcher.max_val, rows.amax(0))
    assert torch.equal(watcher.absmax, rows.abs().amax(0))
    smooth = torch.rand(16) + 0.5
    for symmetric in (True, False):
        expected = ops.choose_qparams_per_tensor(rows / smooth, symmetric=symmetric)
        got = range_after(watcher, smooth, symmetric)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


@pytest.mark.parametrize("static", [False, True])
def test_the_search_adds_up_the_error_of_the_output(static):
    torch.manual_seed(0)
    weight, data = torch.randn(6, 16), batches()
    channels = ChannelRange()
    for batch in data:
        channels.observe(batch)
    factors = torch.stack([smoothing(channels.absmax, [weight], alpha) for alpha in ALPHAS])
    search = AlphaSearch(weight, factors, channels if static else None, symmetric=False)
    assert search.unusable() is None
    for batch in data:
        search.observe(batch)
    rows = torch.cat(data).reshape(-1, 16)
    for index in (0, 11, 21):
        x = rows / factors[index]
        w = ops.dynamic_fake_quantize_per_channel(weight * factors[index], 0)
        if static:
            x = ops.dynamic_fake_quantize_per_tensor(x, symmetric=False)
        else:
            x = ops.dynamic_fake_quantize_per_token(x, symmetric=False)
        expected = (x @ w.T - rows @ weight.T).square().sum()
        torch.testing.assert_close(search.errors[index].float(), expected, rtol=1e-4, atol=0)


SCHEMES = [
    W8A8(),
    W8A8(symmetric=False),
    W8A8Static(),
    W8A8Static("mse", symmetric=False),
    W8A8Static("percentile"),
    W8A8Static("moving_average"),
]


@pytest.mark.parametrize("activation", SCHEMES, ids=str)
@pytest.mark.parametrize("alpha", [0.5, "search"])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_smoothing_beats_the_plain_scheme(pre_norm, alpha, activation):
    model, data = seeded(Block, 32, pre_norm=pre_norm), batches(32)
    expected = model(data[0])
    errors = []
    for config in (activation, SmoothQuant(alpha, activation)):
        quantized = copy.deepcopy(model)
        report = baraquant.quantize_(quantized, config, calibration=data)
        assert len(report.changed) == 5 and not report.left_out
        errors.append(relative_error(quantized(data[0]), expected))
    # A zero point takes the side of a one-sided outlier by itself: less is left to win.
    assert errors[1] < (0.8 if activation.activation.symmetric else 1.05) * errors[0]
    assert errors[1] < 0.03


def test_what_is_folded_and_what_is_not():
    model = seeded(Block)
    original = copy.deepcopy(model)
    report = baraquant.quantize_(model, SmoothQuant(0.5), calibration=batches())
    assert report.changed == {
        "query": "QuantizedLinear, alpha 0.5 folded into norm1",
        "key": "QuantizedLinear, alpha 0.5 folded into norm1",
        "out": "QuantizedLinear, alpha 0.5 in its input",
        "up": "QuantizedLinear, alpha 0.5 folded into norm2",
        "down": "QuantizedLinear, alpha 0.5 folded into up",
    }
    assert model.query.smooth is None and model.out.smooth is not None
    factors = original.norm1.weight / model.norm1.weight
    torch.testing.assert_close(original.norm1.bias / factors, model.norm1.bias)
    weight = model.query.qweight * model.query.weight_scale[:, None]
    scale = model.query.weight_scale.max()
    torch.testing.assert_close(weight, original.query.weight * factors, rtol=0, atol=float(scale))


def test_folding_alone_changes_no_output():
    """What the integers stand for is the float model: the folded factors cancel."""
    model = seeded(Block).double()
    data = [batch.double() for batch in batches()]
    expected = model(data[0])
    baraquant.quantize_(model, SmoothQuant(0.5), calibration=data)
    for name in ("query", "key", "out", "up", "down"):
        layer = getattr(model, name)
        plain = nn.Linear(layer.in_features, layer.out_features).double()
        with torch.no_grad():
            plain.weight.copy_(layer.qweight * layer.weight_scale[:, None])
            if layer.smooth is not None:
                plain.weight /= layer.smooth
            plain.bias.copy_(layer.bias)
        setattr(model, name, plain)
    assert relative_error(model(data[0]), expected) < 0.02  # the rounding of the weights


def test_static_smoothing_is_part_of_the_scale():
    model = seeded(Block, pre_norm=False)
    baraquant.quantize_(model, SmoothQuant(0.5, W8A8Static()), calibration=batches())
    assert model.out.smooth_scale is not None and model.down.smooth_scale is None
    ratio = model.out.smooth_scale / model.out.act_scale
    assert ratio.max() / ratio.min() > 1.5
    x = torch.randn(3, 16)
    integers = ops.quantize_per_channel(x, model.out.smooth_scale, None, -1)
    expected = ops.smoothquant_linear(
        integers, model.out.qweight, model.out.weight_scale, model.out.act_scale, model.out.bias
    )
    assert torch.equal(model.out(x), expected)


def test_a_tied_weight_is_not_smoothed_and_stays_tied():
    model, data = seeded(Tied), tokens()
    for config in (SmoothQuant(), SmoothQuant("search", W8A8Static("mse"))):
        quantized = copy.deepcopy(model)
        report = baraquant.quantize_(quantized, config, calibration=data)
        assert "alpha" not in report.changed["head"]
        for name in ("qweight", "weight_scale"):
            pair = getattr(quantized.head, name), getattr(quantized.embedding, name)
            assert pair[0].data_ptr() == pair[1].data_ptr()
        assert quantized.first is quantized.second
        assert "folded into first.norm1" in report.changed["first.query"]
        assert relative_error(quantized(data[0]), model(data[0])) < 0.05


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", [W8A8(), W8A8Static()], ids=str)
def test_other_dtypes(dtype, activation):
    model = seeded(Block).to(dtype)
    data = [batch.to(dtype) for batch in batches()]
    expected = model(data[0])
    baraquant.quantize_(model, SmoothQuant(0.5, activation), calibration=data)
    got = model(data[0])
    assert got.dtype == dtype and relative_error(got, expected) < 0.05
    assert model.norm1.weight.dtype == dtype


def test_data_that_is_gone_after_one_run():
    def once():
        return iter(batches())

    baraquant.quantize_(seeded(Block), SmoothQuant(0.5), calibration=once())
    baraquant.quantize_(seeded(Block), SmoothQuant(0.5, W8A8Static()), calibration=once())
    for config, runs in [
        (SmoothQuant("search"), 2),
        (SmoothQuant(0.5, W8A8Static("mse")), 2),
        (SmoothQuant("search", W8A8Static("percentile")), 3),
    ]:
        model = seeded(Block)
        with pytest.raises(ValueError, match=f"that can be gone through {runs} times"):
            baraquant.quantize_(model, config, calibration=once())
        assert type(model.query) is nn.Linear


def test_calibration_by_a_function():
    data = batches()
    models = [seeded(Block) for _ in range(2)]
    for model, given in zip(models, [data, lambda m: [m(x) for x in data]], strict=True):
        baraquant.quantize_(model, SmoothQuant("search", W8A8Static("mse")), calibration=given)
    assert torch.equal(models[0](data[0]), models[1](data[0]))


def test_a_compiled_block_is_refused_or_followed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.compile(seeded(Block), backend="eager"))
        data = batches()
        expected = model(data[0])
        try:
            baraquant.quantize_(model, SmoothQuant(0.5), calibration=data)
        except (TypeError, ValueError) as error:
            assert "compile" in str(error)
        else:
            assert relative_error(model(data[0]), expected) < 0.05
