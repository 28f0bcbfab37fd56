# SPDX-License-Identifier: BSD-3-Clause
"""What is learned and what is observed, beside the papers' formulas in float64 and NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from baraquant import QuantConfig, TensorConfig, W8A8Static
from baraquant.nn import LearnedFakeQuantize
from baraquant.qat import prepare_


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lsq(v: np.ndarray, s: float, z: float, low: int, high: int) -> tuple[np.ndarray, ...]:
    """LSQ (equations 1 to 3) and LSQ+ (its section 3.1): the value and its three derivatives.

    With ``z = 0`` it is LSQ. LSQ+'s offset is ``beta = -z * s``; here the zero point is learned
    itself, so its derivative is that by beta times ``-s``, and that by s has the part of z.
    """
    r = np.rint(v / s) + z
    below, above = r < low, r > high
    q = np.where(below, low, np.where(above, high, r))
    inside = ~(below | above)
    by_scale = np.where(inside, np.rint(v / s) - v / s, q - z)
    by_zero = np.where(inside, 0.0, -s)
    return (q - z) * s, inside.astype(float), by_scale, by_zero


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["per_tensor", "per_channel", "per_group", "activation"])
def test_gradients_of_a_learned_step(kind: str, symmetric: bool, bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    v, dy = normal(6, 12), normal(6, 12, seed=1)
    segments = {"per_channel": (6, 12), "per_group": (18, 4)}.get(kind, (1, 72))
    shape = {"per_channel": [6], "per_group": [6, 3]}.get(kind, [1])
    granularity = "per_tensor" if kind == "activation" else kind
    quantizer = LearnedFakeQuantize(
        granularity,
        axis=0 if kind == "per_channel" else None,
        group_size=4 if kind == "per_group" else None,
        shape=shape,
        quant_min=low,
        quant_max=high,
        symmetric=symmetric,
        per_sample=kind == "activation",
        dtype=torch.float64,
    )
    quantizer.initialize(v)
    with torch.no_grad():
        quantizer.scale.mul_(0.6)  # clips some
    x = v.clone().requires_grad_()
    y = quantizer(x)
    y.backward(dy)

    scales = quantizer.scale.detach().numpy().reshape(-1)
    zeros = np.zeros_like(scales) if symmetric else quantizer.zero_point.detach().numpy().ravel()
    rows, grads = v.numpy().reshape(segments), dy.numpy().reshape(segments)
    parts = [
        lsq(row, s, np.rint(z), low, high) for row, s, z in zip(rows, scales, zeros, strict=True)
    ]
    value, by_input, by_scale, by_zero = (np.stack(part) for part in zip(*parts, strict=True))
    assert 0 < by_input.mean() < 1
    # The number of values that share the step: features alone for an activation (section 2.2).
    count = 12 if kind == "activation" else segments[1]
    g = 1 / math.sqrt(count * high)
    torch.testing.assert_close(y.detach().reshape(segments), torch.from_numpy(value))
    torch.testing.assert_close(x.grad.reshape(segments), torch.from_numpy(grads * by_input))
    torch.testing.assert_close(
        quantizer.scale.grad.reshape(-1), torch.from_numpy((grads * by_scale).sum(1) * g)
    )
    if not symmetric:
        torch.testing.assert_close(
            quantizer.zero_point.grad.reshape(-1), torch.from_numpy((grads * by_zero).sum(1) * g)
        )


@pytest.mark.parametrize("bits", [2, 4])
def test_gradients_of_a_layer_that_learns(bits: int) -> None:
    """The same for a whole linear layer, weights and inputs, through the product."""
    high = 2 ** (bits - 1) - 1
    config = QuantConfig(
        TensorConfig(bits, learned=True), TensorConfig(bits, "per_tensor", learned=True)
    )
    linear = nn.Linear(10, 4, dtype=torch.float64)
    model = nn.Sequential(linear)
    prepare_(model, config)
    x, dy = normal(5, 10).requires_grad_(), normal(5, 4, seed=1)
    model(x.detach())  # the first batch
    layer = model[0]
    with torch.no_grad():
        layer.weight_fake_quant.scale.mul_(0.7)
        layer.input_fake_quant.scale.mul_(0.7)
    model(x).backward(dy)

    w, v, g = layer.weight.detach().numpy(), x.detach().numpy(), dy.numpy()
    scales = layer.weight_fake_quant.scale.detach().numpy()
    step = layer.input_fake_quant.scale.item()
    low = -high - 1
    w_parts = [lsq(row, s, 0.0, low, high) for row, s in zip(w, scales, strict=True)]
    w_value, w_inside, w_by_scale, _ = (np.stack(part) for part in zip(*w_parts, strict=True))
    v_value, v_inside, v_by_scale, _ = lsq(v, step, 0.0, low, high)
    dw, dv = g.T @ v_value, g @ w_value
    close = torch.testing.assert_close
    close(layer.weight.grad, torch.from_numpy(dw * w_inside))
    close(x.grad, torch.from_numpy(dv * v_inside))
    close(
        layer.weight_fake_quant.scale.grad,
        torch.from_numpy((dw * w_by_scale).sum(1) / math.sqrt(10 * high)),
    )
    close(
        layer.input_fake_quant.scale.grad,
        torch.tensor([(dv * v_by_scale).sum() / math.sqrt(10 * high)], dtype=torch.float64),
    )


@pytest.mark.parametrize("observer", ["moving_average", "min_max"])
def test_ranges_of_training_beside_numpy(observer: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4))
    prepare_(model, W8A8Static(observer, symmetric=False))
    low = high = None
    for step in range(4):
        x = normal(5, 6, seed=step).float() * (1 + step)
        model(x)
        ends = float(x.min()), float(x.max())
        if low is None:
            low, high = ends
        elif observer == "min_max":
            low, high = min(low, ends[0]), max(high, ends[1])
        else:
            low, high = low + 0.01 * (ends[0] - low), high + 0.01 * (ends[1] - high)
    model.eval()
    model(normal(5, 6, seed=9).float() * 100)  # evaluation observes nothing
    quantizer = model[0].input_fake_quant
    scale = (max(high, 0.0) - min(low, 0.0)) / 255
    assert float(quantizer.scale) == pytest.approx(scale, rel=1e-5)
    assert abs(int(quantizer.zero_point) - (-128 - round(min(low, 0.0) / scale))) <= 1
