# SPDX-License-Identifier: BSD-3-Clause
"""``scale_dtype``: the scales of weights are numbers of that dtype, and the integers are theirs."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.bits import to_numpy
from tests.support.models.one_layer import Holder
from tests.support.models.training_models import train
from tests.support.oracle.affine import round_to

DTYPES = ("bfloat16", "float16")
GROUP_SIZES = {"per_tensor": None, "per_channel": None, "per_group": 2}
RULES = {"max": {}, "search": {}, "learned": {"learned": True}, "observed": {"dynamic": False}}
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(8, 6), lambda: torch.randn(5, 8)),
    "conv": (lambda: nn.Conv2d(8, 6, 3, groups=2, padding=1), lambda: torch.randn(2, 8, 5, 4)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), lambda: torch.randn(2, 4, 5)),
    "embedding": (lambda: nn.Embedding(9, 8), lambda: torch.randint(0, 9, (3, 4))),
}
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def rounded(values: Tensor, dtype: str) -> Tensor:
    """The nearest float16 or bfloat16 of float32 numbers, by NumPy."""
    nearest = round_to(to_numpy(values.float()), getattr(torch, dtype))
    return torch.from_numpy(nearest.astype(np.float32))


def rows_of(prepared: Any) -> Tensor:
    """The float weight, ``[channels, values]``."""
    return prepared._channels_first(prepared.float_weight().detach()).flatten(1).float()


def per_value(scales: Tensor, rows: Tensor) -> Tensor:
    """The scale (or zero point) of each value of ``rows``."""
    grid = scales.reshape(rows.shape[0], -1)
    return grid.repeat_interleave(rows.shape[1] // grid.shape[1], dim=1)


def check(rows: Tensor, layer: Any, config: QuantConfig, dtype: str) -> None:
    scale, zeros = layer.weight_scale, getattr(layer, "weight_zero_point", None)
    assert scale.dtype == torch.float32 and bool((scale > 0).all())
    assert torch.equal(rounded(scale, dtype), scale), "not a number of the dtype"
    steps = per_value(scale, rows)
    shift = torch.zeros_like(steps) if zeros is None else per_value(zeros, rows).float()
    assert (zeros is None) == config.weight.symmetric
    low, high = config.weight.quant_min, config.weight.quant_max
    wanted = ((rows / steps).round() + shift).clamp(low, high).to(torch.int8)
    assert torch.equal(layer.qweight.flatten(1), wanted)


def check_range(rows: Tensor, layer: Any, config: QuantConfig, dtype: str) -> None:
    """Check that scale and zero point are those of the whole range, with the rounded scale."""
    groups = layer.weight_scale.reshape(rows.shape[0], -1).shape[1]
    parts = rows.reshape(rows.shape[0] * groups, -1)
    if config.weight.granularity == "per_tensor":
        parts = rows.reshape(1, -1).expand(rows.shape[0], -1)
    low, high = config.weight.quant_min, config.weight.quant_max
    least, most = parts.amin(1).clamp_max(0), parts.amax(1).clamp_min(0)
    if config.weight.symmetric:
        wanted = parts.abs().amax(1) / high
    else:
        wanted = (0.5 * most - 0.5 * least) / (0.5 * (high - low))
    scale = rounded(wanted, dtype)
    assert torch.equal(layer.weight_scale.reshape(-1), scale)
    assert not torch.equal(scale, wanted), "nothing was rounded: the test shows nothing"
    if not config.weight.symmetric:
        zeros = (low - (least / scale).round()).clamp(low, high).to(torch.int32)
        assert torch.equal(layer.weight_zero_point.reshape(-1), zeros)


@by_dtype
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("granularity", GROUP_SIZES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.exhaustive
def test_scales_integers_and_bits(layer: str, granularity: str, rule: str, dtype: str) -> None:
    build, data = LAYERS[layer]
    how = RULES[rule] | {"group_size": GROUP_SIZES[granularity]}
    for bits, symmetric in itertools.product((2, 4, 8), (True, False)):
        torch.manual_seed(bits)
        weight = TensorConfig(bits, granularity, symmetric, **how)
        config = QuantConfig(weight, scale_rule="max", scale_dtype=dtype)
        if rule != "search":
            prepare_(model := Holder(build()), config)
            train(model, data())
            model(data())  # an observed scale is that of the last weight that training has used
            rows, x = rows_of(model.child), data()
            evaluated, read = model.eval()(x), model.child.weight + 0
            convert_(model)
            assert torch.equal(model(x), evaluated)
            assert torch.equal(model.child.weight + 0, read)
            check(rows, model.child, config, dtype)
            if rule != "learned":
                check_range(rows, model.child, config, dtype)
        model, same = Holder(build()), Holder(build())
        same.load_state_dict(model.state_dict())
        after = config if rule != "search" else dataclasses.replace(config, scale_rule="search")
        baraquant.quantize_(model, after)
        prepare_(same, after)
        check(rows_of(same.child), model.child, after, dtype)
        if rule != "search" or bits == 8:
            check_range(rows_of(same.child), model.child, after, dtype)


@by_dtype
def test_ties_tied_weights_and_words(dtype: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    message = f"share, but .* gets .* scale_dtype={dtype}"
    for call in (prepare_, baraquant.quantize_):
        with pytest.raises(ValueError, match=message):
            call(model, {"0": baraquant.W8A16(), "1": baraquant.W8A16(scale_dtype=dtype)})
    report = prepare_(model, baraquant.W8A16(scale_dtype=dtype))
    assert f"scale_dtype={dtype}, input=float" in report.changed["0"]
    assert f"scale_dtype={dtype}" in repr(model[0])


@pytest.mark.exhaustive
def test_a_scale_beyond_float16_is_an_error() -> None:
    for rule in (RULES["max"], RULES["observed"]):
        config = QuantConfig(TensorConfig(8, **rule), scale_dtype="float16")
        model = nn.Sequential(nn.Linear(4, 4))
        model[0].weight.data[1, 2] = 1e8
        message = "0: expected the scale of the weight to be a finite float16, .* than 65504"
        with pytest.raises(ValueError, match=message):
            baraquant.quantize_(model, config)
        assert type(model[0]) is nn.Linear
        prepare_(model, config)
        assert bool(model(torch.ones(4)).isnan()[1]), "training shows it"
        with pytest.raises(ValueError, match=message):
            convert_(model)
        bfloat16 = QuantConfig(TensorConfig(8, **rule), scale_dtype="bfloat16")
        model = nn.Sequential(nn.Linear(4, 4))
        nn.init.constant_(model[0].weight, 1e8)
        baraquant.quantize_(model, bfloat16)
        assert bool(model(torch.ones(4)).isfinite().all())


@pytest.mark.exhaustive
def test_small_scales_and_groups_of_zeros() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].weight.data[:] = torch.tensor([1e-3, 1e-9, 1e-30, 0.0])[:, None]
    baraquant.quantize_(model, baraquant.W8A16(scale_dtype="float16"))
    scale = model[0].weight_scale
    assert scale[1:].tolist() == [2.0**-24, 2.0**-24, 1.0]
    # 1e-3 / 127 is a subnormal float16: a multiple of 2**-24.
    assert scale[0] == round(1e-3 / 127 * 2**24) / 2**24
    assert bool(model(torch.ones(4)).isfinite().all())


@by_dtype
@pytest.mark.parametrize("activation", ["dynamic", "static"])
@pytest.mark.exhaustive
def test_smoothquant(dtype: str, activation: str) -> None:
    scheme = baraquant.W8A8(scale_dtype=dtype)
    if activation == "static":
        scheme = W8A8Static(scale_dtype=dtype, symmetric=False)
    for alpha in (0.5, "search"):
        torch.manual_seed(4)
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
        batches = [torch.randn(6, 8) for _ in range(2)]
        expected = model(batches[0])
        baraquant.quantize_(model, SmoothQuant(alpha, scheme), calibration=batches)
        for index in (1, 3):
            scale = model[index].weight_scale
            assert torch.equal(rounded(scale, dtype), scale)
        assert (model(batches[0]) - expected).norm() < 0.05 * expected.norm()
