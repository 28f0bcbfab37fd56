# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant: the factors, the search, and whole models."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static, ops
from tests.support.models.outlier_models import Block, batches, seeded


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_smoothing_is_that_of_the_paper(alpha):
    """``s_j = max|X_j|^alpha / max|W_j|^(1 - alpha)`` (equation 4), then a plain W8A8 layer."""
    linear = nn.Linear(6, 5)
    model = nn.Sequential(nn.Identity(), linear)
    sizes = torch.tensor([1.0, 40, 0.1, 3, 1, 200])
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(7, 6, generator=generator) * sizes for _ in range(2)]
    weight, bias = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    baraquant.quantize_(model, SmoothQuant(alpha), calibration=data, progress=False)
    x_max = torch.cat(data).abs().amax(0).double().numpy()
    s = x_max**alpha / np.abs(weight).max(0) ** (1 - alpha)
    layer = model[1]
    np.testing.assert_allclose(layer.smooth.double().numpy(), s, rtol=1e-5)
    # The layer from the formulas of its own factors.
    s = layer.smooth.double().numpy()
    smoothed = weight * s
    w_scale = np.abs(smoothed).max(1) / 127
    w_int = np.rint(smoothed / w_scale[:, None])
    x = data[0].double().numpy() / s
    x_scale = np.abs(x).max(1) / 127
    y = np.rint(x / x_scale[:, None]) @ w_int.T * x_scale[:, None] * w_scale + bias
    assert np.abs(model(data[0]).double().numpy() - y).max() < 2e-5 * np.abs(y).max()


def alone(seed=0):
    """A linear layer that takes up the division of its input itself, and an outlier to divide."""
    torch.manual_seed(seed)
    data = batches()
    for batch in data:
        batch[..., 3] *= 30
    return nn.Sequential(nn.Identity(), nn.Linear(16, 6)), data


def test_factors_of_zeros_are_one():
    """Of an input that is never anything else, and of a weight without a use for it."""
    model, data = alone()
    for batch in data:
        batch[..., 5] = 0
    model[1].weight.data[:, 7] = 0
    baraquant.quantize_(model, SmoothQuant(0.5), calibration=data)
    assert (model[1].smooth == 1).nonzero().flatten().tolist() == [5, 7]


@torch.no_grad()
@pytest.mark.parametrize(
    "activation",
    [W8A8(), W8A8(symmetric=False), W8A8Static(), W8A8Static(symmetric=False)],
    ids=str,
)
def test_the_search_takes_the_alpha_of_the_least_error(activation):
    model, data = alone()

    def error(config):
        other = copy.deepcopy(model)
        report = baraquant.quantize_(other, config, calibration=data)
        return sum(float((other(x) - model(x)).square().sum()) for x in data), report.changed["1"]

    errors = {step: error(SmoothQuant(step / 20, activation))[0] for step in range(21)}
    found, about = error(SmoothQuant("search", activation))
    best = min(errors.values())
    assert best < 0.9 * error(activation)[0]
    assert found <= best * 1.001
    alpha = float(about.split("alpha ")[1].split()[0])
    assert errors[round(20 * alpha)] <= best * 1.001


def test_what_is_not_finite_takes_no_part():
    """Of the factors one channel of a batch; of the search the batch."""
    model, data = alone()
    bad = data[0] * 100
    bad[..., 3] = math.inf
    factors = []
    for given in (data, [*data, bad], [*data, bad.nan_to_num(0, 0, 0)]):
        other = copy.deepcopy(model)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            baraquant.quantize_(other, SmoothQuant(0.5), calibration=given)
        assert len(found) == (given[-1] is bad)
        factors.append(other[1].smooth)
    others = torch.arange(16) != 3
    assert factors[1][3] == factors[0][3] and torch.equal(factors[1][others], factors[2][others])
    bad = data[0].clone()
    bad.view(-1)[-1] = math.nan
    wanted, got = copy.deepcopy(model), copy.deepcopy(model)
    baraquant.quantize_(wanted, SmoothQuant("search"), calibration=data)
    with pytest.warns(UserWarning, match="a NaN or an infinity"):
        baraquant.quantize_(got, SmoothQuant("search"), calibration=[*data, bad])
    assert torch.equal(got[1].smooth, wanted[1].smooth)


def test_what_is_folded_and_what_is_not():
    model = seeded(Block)
    original = copy.deepcopy(model)
    report = baraquant.quantize_(model, SmoothQuant(0.5), calibration=batches())
    into = {"query": "norm1", "key": "norm1", "up": "norm2", "down": "up"}
    wanted = {path: f"QuantizedLinear, alpha 0.5 folded into {one}" for path, one in into.items()}
    assert report.changed == wanted | {"out": "QuantizedLinear, alpha 0.5 in its input"}
    assert model.query.smooth is None and model.out.smooth is not None
    factors = original.norm1.weight / model.norm1.weight
    torch.testing.assert_close(original.norm1.bias / factors, model.norm1.bias)
    weight = model.query.qweight * model.query.weight_scale[:, None]
    scale = model.query.weight_scale.max()
    torch.testing.assert_close(weight, original.query.weight * factors, rtol=0, atol=float(scale))


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
