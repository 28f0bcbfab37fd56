# SPDX-License-Identifier: BSD-3-Clause
"""Observers against what NumPy computes from all the data at once, and the runs that feed them."""

import gc
import math

import numpy as np
import pytest
import torch
from torch import nn

from baraquant import ops
from baraquant.calibration import OBSERVERS, MinMaxObserver, calibrate

Percentile, MovingAverage = OBSERVERS["percentile"], OBSERVERS["moving_average"]
RANGES = [(-128, 127), (0, 255), (-8, 7)]


def gaussian(seed=0, size=20_000, outlier=None):
    data = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    if outlier is not None:
        data[size // 2] = outlier
    return data


def observe(observer, batches):
    for batch in batches:
        observer.observe(batch)
    return observer


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("quant_range", RANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_min_max_gives_the_qparams_of_all_data(dtype, quant_range, symmetric):
    data = (gaussian() + 0.3).to(dtype)
    observer = observe(MinMaxObserver(), data.split(3001))
    scale, zero_point = observer.calculate_qparams(*quant_range, symmetric)
    expected = ops.choose_qparams_per_tensor(data, *quant_range, symmetric=symmetric)
    assert torch.equal(scale, expected[0]) and scale.dtype == expected[0].dtype
    assert torch.equal(zero_point, expected[1]) and zero_point.dtype == torch.int32


def test_moving_average_follows_the_formula():
    batches = [gaussian(seed) * (seed + 1) for seed in range(5)]
    observer = observe(MovingAverage(0.25), batches)
    low, high = batches[0].min(), batches[0].max()
    for batch in batches[1:]:
        low += np.float32(0.25) * (batch.min() - low)
        high += np.float32(0.25) * (batch.max() - high)
    scale, _ = observer.calculate_qparams(symmetric=False)
    assert float(scale) == pytest.approx(float(high - low) / 255, rel=1e-6)
    assert float(scale) < float(torch.cat(batches).max() - torch.cat(batches).min()) / 255


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (MovingAverage, "averaging_constant", [0.0, 1.5, -0.1, math.nan]),
        (Percentile, "percentile", [50.0, 100.1, math.nan]),
    ],
)
def test_what_observers_refuse(kind, field, values):
    for value in values:
        with pytest.raises(ValueError, match=f"expected {field} to lie in"):
            kind(value)


@pytest.mark.parametrize("percentile", [99.0, 99.9, 75.0, 100.0])
def test_percentile_is_that_of_the_data(percentile):
    data = gaussian(outlier=1e6)
    scale, _ = observe(Percentile(percentile), data.split(999)).calculate_qparams()
    expected = np.percentile(data.abs().numpy(), percentile) / 127
    assert float(scale) == pytest.approx(expected, rel=1 / 64)


def test_percentile_of_an_asymmetric_range_leaves_out_both_tails():
    data = torch.cat([gaussian().exp(), -gaussian(1).abs()])  # a long tail on one side
    observer = observe(Percentile(98.0), [data])
    scale, zero_point = observer.calculate_qparams(0, 255, symmetric=False)
    low, high = np.percentile(data.numpy(), [1.0, 99.0])
    assert float(scale) == pytest.approx((high - low) / 255, rel=1 / 64)
    assert int(zero_point) == pytest.approx(-low / float(scale), abs=2)


def error(data, scale, zero_point, quant_range):
    rounded = ops.fake_quantize_per_tensor(data, scale, zero_point, *quant_range)
    return float((rounded - data).double().square().mean())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("quant_range", [(-128, 127), (-8, 7), (-2, 1)])
@pytest.mark.parametrize("data", ["gaussian", "outlier", "relu", "heavy"])
def test_mse_is_near_the_best_of_many_ranges(data, quant_range, symmetric):
    values = {
        "gaussian": gaussian(size=5000),
        "outlier": gaussian(size=5000, outlier=60.0),
        "relu": gaussian(size=5000).relu(),
        "heavy": gaussian(size=5000).pow(3),
    }[data]
    observer = observe(OBSERVERS["mse"](), values.split(700))
    got = error(values, *observer.calculate_qparams(*quant_range, symmetric), quant_range)
    best = math.inf
    for shrink_low in torch.linspace(0.05, 1, 20):
        for shrink_high in [shrink_low] if symmetric else torch.linspace(0.05, 1, 20):
            ends = torch.stack([values.min() * shrink_low, values.max() * shrink_high])
            qparams = ops.choose_qparams_per_tensor(ends, *quant_range, symmetric=symmetric)
            best = min(best, error(values, *qparams, quant_range))
    assert got <= best * 1.05  # the last of them is the widest


@pytest.mark.parametrize("kind", ["percentile", "mse"])
@pytest.mark.parametrize("value", [0.0, 3.0, -1e-30, 65504.0])
def test_one_number_only(kind, value):
    data = torch.full((9,), value)
    scale, zero_point = observe(OBSERVERS[kind](), [data]).calculate_qparams()
    rounded = ops.fake_quantize_per_tensor(data, scale, zero_point)
    torch.testing.assert_close(rounded, data, rtol=0.02, atol=0)


@pytest.mark.parametrize("kind", ["min_max", "percentile", "mse"])
def test_the_order_and_the_size_of_batches_do_not_matter(kind):
    data = gaussian(size=4096) * torch.logspace(-30, 30, 4096)
    whole, parts = observe(OBSERVERS[kind](), [data]), OBSERVERS[kind]()
    observe(parts, data.flip(0).split(100))
    for symmetric in (True, False):
        one, other = (o.calculate_qparams(symmetric=symmetric) for o in (whole, parts))
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_a_histogram_counts_by_the_upper_bits() -> None:
    data = gaussian(size=4096) * torch.logspace(-30, 30, 4096)
    histogram = torch.ops.baraquant._histogram
    parts = sum(histogram(part) for part in data.flip(0).split(100))
    upper_bits = data.view(torch.int32).numpy().view(np.uint32) >> 17
    assert np.array_equal(parts, np.bincount(upper_bits, minlength=2**15))
    assert torch.equal(histogram(data), parts)
    beyond = torch.tensor([1e300, torch.finfo(torch.float32).max], dtype=torch.float64)
    assert histogram(beyond).max() == 2  # beyond float32 is its largest finite bin


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", OBSERVERS)
def test_memory_is_constant(kind):
    observer = OBSERVERS[kind]()
    observer.observe(gaussian(size=100))

    def held():
        gc.collect()
        tensors = (one for one in gc.get_objects() if type(one) is torch.Tensor)
        tensors = (one for one in tensors if one.layout == torch.strided)  # of other tests
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    before = held()
    for seed in range(20):
        observer.observe(gaussian(seed, size=10_000) * 10.0**seed)
    assert held() <= before


@pytest.mark.parametrize("kind", OBSERVERS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_poisoned_batch_is_left_out_and_counted(kind, poison, place, dtype):
    batches = [gaussian(seed, 50).to(dtype) for seed in range(3)]
    batches[place] *= 9
    batches[place][7] = poison
    observer = observe(OBSERVERS[kind](), batches)
    clean = observe(OBSERVERS[kind](), [b for i, b in enumerate(batches) if i != place])
    assert not bool(observer.unusable())
    assert observer.skipped_batches == 1 and clean.skipped_batches == 0
    for symmetric in (True, False):
        got, wanted = (o.calculate_qparams(symmetric=symmetric) for o in (observer, clean))
        assert torch.equal(got[0], wanted[0]) and torch.equal(got[1], wanted[1])


@pytest.mark.parametrize("kind", OBSERVERS)
def test_poison_in_every_batch_and_no_data_are_reported(kind):
    observer = observe(OBSERVERS[kind](), [torch.empty(0, 3)])
    assert observer.unusable() is None
    with pytest.raises(ValueError, match="expected data for a scale, but observed none"):
        observer.calculate_qparams()
    observe(observer, [torch.tensor([1.0, math.nan]), torch.tensor(math.inf)])
    assert bool(observer.unusable()) and observer.skipped_batches == 2
    message = "expected finite data, but observed NaN or infinity in every batch"
    with pytest.raises(ValueError, match=message):
        observer.calculate_qparams()


@pytest.mark.parametrize("kind", OBSERVERS)
def test_dtypes_may_change_between_batches(kind):
    mixed = [torch.ones(3), 2 * torch.ones(3).double(), torch.ones(3).half(), -torch.ones(3)]
    scale, _ = observe(OBSERVERS[kind](), mixed).calculate_qparams()
    assert scale.dtype == torch.float32 and torch.isfinite(scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(6, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, scale=1.0):
        return self.second(self.drop(self.first(x)).relu() * scale)


def batches(count=3):
    return [torch.randn(5, 4, generator=torch.Generator().manual_seed(i)) for i in range(count)]


@pytest.mark.parametrize("form", ["tensor", "tuple", "list", "dict", "generator", "callable"])
def test_calibrate_runs_every_form_of_data(form):
    net, data = Net(), batches()
    inputs = []
    net.first.register_forward_hook(lambda _, args, out: inputs.append(args[0].clone()))
    observer = MinMaxObserver()
    given = {
        "tensor": data,
        "tuple": [(x, 2.0) for x in data],
        "list": [[x] for x in data],
        "dict": [{"x": x, "scale": 0.5} for x in data],
        "generator": (x for x in data),
        "callable": lambda model: [model(x) for x in data],
    }[form]
    calibrate(net, given, {"first": observer}, progress=False)
    assert torch.equal(torch.cat(inputs), torch.cat(data))
    expected = ops.choose_qparams_per_tensor(torch.cat(data))
    assert torch.equal(observer.calculate_qparams()[0], expected[0])


@pytest.mark.parametrize("fused", [True, False])
def test_calibrate_sees_the_layers_of_a_transformer(fused):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=fused)
    watchers = {f"layers.{i}.linear{j}": MinMaxObserver() for i in (0, 1) for j in (1, 2)}
    torch.backends.mha.set_fastpath_enabled(fused)
    try:
        calibrate(model, [torch.randn(2, 3, 8)], watchers, progress=False)
        assert torch.backends.mha.get_fastpath_enabled() == fused
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert all(watcher.unusable() is not None for watcher in watchers.values())


def test_calibrate_names_eight_of_what_it_left_out():
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(11)])
    data = [torch.ones(1, 4), torch.full((1, 4), math.nan)]
    watchers = {str(i): MinMaxObserver() for i in range(11)}
    message = (
        r"^baraquant\.calibration\.calibrate: inputs with a NaN or an infinity were left out of "
        r"the calibration of 0 \(1\), .*, 7 \(1\) and 3 more: each with the number"
    )
    with pytest.warns(UserWarning, match=message):
        calibrate(net, data, watchers, progress=False)


def test_progress_shows_on_a_terminal_only(monkeypatch, capsys):
    calibrate(Net(), batches(), {"first": MinMaxObserver()}, description="looking")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    calibrate(Net(), batches(), {"first": MinMaxObserver()}, description="looking")
    shown = capsys.readouterr().err
    assert "looking" in shown and "3/3" in shown
    calibrate(Net(), batches(), {"first": MinMaxObserver()}, progress=False)
    assert capsys.readouterr().err == ""
