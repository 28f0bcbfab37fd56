# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.FakeQuantize` with mode "observed": the scale follows the range of the data."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize

from baraquant.nn import FakeQuantize
from tests.nn.observed_modules import (
    COUNTER,
    FLAGS,
    QPARAMS,
    RANGE,
    assert_same_state,
    by_averaging,
    by_granularity,
    by_symmetry,
    ends_of,
    example,
    module_for,
    qparams_of,
    rounded,
)
from tests.support import cases
from tests.support.bits import assert_same_bits


@by_granularity
def test_its_state_at_first(granularity: str) -> None:
    for symmetric, zero_point in ((True, 0), (False, -8)):
        module = module_for(granularity, symmetric)
        shape = (4,) if granularity == "per_channel" else ()
        assert sorted(module.state_dict()) == sorted((*RANGE, *QPARAMS, *FLAGS, COUNTER))
        assert not list(module.parameters())
        first = {"min_val": math.inf, "max_val": -math.inf, "scale": 1.0, "zero_point": zero_point}
        for name, value in first.items():
            dtype = torch.int32 if name == "zero_point" else torch.float32
            assert torch.equal(getattr(module, name), torch.full(shape, value, dtype=dtype)), name
        for name in FLAGS:
            assert torch.equal(getattr(module, name), torch.ones(1, dtype=torch.uint8))
        assert_same_bits(module.skipped_batches, torch.tensor(0))
        scale, zero_point_ = module.calculate_qparams()
        assert torch.equal(scale, module.scale) and torch.equal(zero_point_, module.zero_point)


@by_averaging
@by_symmetry
@by_granularity
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_it_follows_the_range(
    granularity: str, symmetric: bool, averaging: float | None, dtype: torch.dtype, device: str
) -> None:
    module = module_for(granularity, symmetric, averaging).to(device, dtype)
    running = None
    for seed in (2, 1, 3):
        x = example(seed, dtype, device)
        y = module(x)
        new = torch.stack(ends_of(x, granularity)).to(module.min_val.dtype)
        if running is None or averaging == 1:  # 1: the last input alone, exactly
            running = new
        elif averaging is None:
            running = torch.stack([running[0].minimum(new[0]), running[1].maximum(new[1])])
        else:
            running = running + averaging * (new - running)
        assert torch.equal(torch.stack([module.min_val, module.max_val]), running)
        for got, from_ends, from_module in zip(
            (module.scale, module.zero_point),
            qparams_of(module, running),
            module.calculate_qparams(),
            strict=True,
        ):
            assert torch.equal(got, from_ends) and torch.equal(got, from_module)
        assert torch.equal(y, rounded(module, x)) and y.dtype == dtype


@by_symmetry
@by_granularity
def test_gradient(granularity: str, symmetric: bool, device: str) -> None:
    """That of a given scale: 0 where a held range clips."""
    module = module_for(granularity, symmetric).to(device)
    module(example(1, device=device))
    module.disable_observer()
    x = example(3, device=device).requires_grad_()
    dy = example(2, device=device)
    (got,) = torch.autograd.grad(module(x), x, dy)
    (wanted,) = torch.autograd.grad(rounded(module, x), x, dy)
    assert torch.equal(got, wanted)
    assert (got == 0).any() and (got == dy).any()
    module.disable_fake_quant()
    assert torch.equal(torch.autograd.grad(module(x), x, dy)[0], dy)


@by_granularity
def test_both_flags(granularity: str, device: str) -> None:
    for observes, rounds in itertools.product((True, False), repeat=2):
        module = module_for(granularity).to(device)
        module(example(1, device=device))
        module.enable_observer(observes)
        module.enable_fake_quant(rounds)
        before = copy.deepcopy(module)
        x = example(5, device=device)
        y = module(x)
        assert torch.equal(y, rounded(module, x) if rounds else x)
        changed = [not torch.equal(getattr(module, n), getattr(before, n)) for n in RANGE]
        assert changed == [observes, observes]
        assert torch.equal(module.scale, before.scale) is not observes
        module.enable_observer(True)
        module.enable_fake_quant()
        assert torch.equal(module(x), rounded(module, x))
        module.disable_observer()
        module.disable_fake_quant()
        assert [int(getattr(module, name)) for name in FLAGS] == [0, 0]


@by_granularity
def test_evaluation_observes_too(granularity: str) -> None:
    training, evaluating = module_for(granularity), module_for(granularity).eval()
    assert torch.equal(training(example()), evaluating(example()))
    assert_same_state(training, evaluating)


@by_averaging
@by_granularity
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_batch_that_is_not_finite_takes_no_part(
    value: float, place: int, granularity: str, averaging: float | None, device: str
) -> None:
    """First, in the middle or last: the range is that of the others, channel by channel."""
    module = module_for(granularity, averaging=averaging).to(device)
    other = module_for(granularity, averaging=averaging).to(device)
    data = [example(seed, device=device) for seed in (2, 1, 3)]
    data[place][0, 2, 3] = value
    for index, x in enumerate(data):
        kept = other.min_val.clone(), other.max_val.clone()
        module(x)
        if index != place:
            other(x)
        elif granularity == "per_channel":  # the others see the batch, this one nothing
            other(x.nan_to_num(0.0, 0.0, 0.0))
            other.min_val[2], other.max_val[2] = kept[0][2], kept[1][2]
        for name in RANGE:
            assert_same_bits(getattr(module, name), getattr(other, name), f"{name} {index}")
        assert module.skipped_batches == int(index >= place)
    assert all(getattr(module, name).isfinite().all() for name in (*RANGE, "scale"))
    module.reset_min_max_vals()
    fresh = module_for(granularity, averaging=averaging).to(device)
    clean = data[place - 1]
    assert torch.equal(module(clean), fresh(clean))
    assert_same_state(module, fresh)


def test_a_step_that_a_gradient_scaler_skips(device: str) -> None:
    """A float16 batch that overflows: training goes on, with the range of the other batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), module_for("per_tensor", averaging=0.5)).to(device)
    scaler = torch.amp.GradScaler(device.split(":")[0], init_scale=4.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = []
    for factor in (1.0, math.inf, 2.0):
        before.append(model[0].weight.detach().clone())
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4, device=device) * factor).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert model[1].skipped_batches == 1
    assert model[1].scale.isfinite()
    assert model(torch.ones(3, 4, device=device)).isfinite().all()
    assert not torch.equal(before[0], before[1]) and torch.equal(before[1], before[2])


def test_a_state_dict_without_a_counter_is_loaded(device: str) -> None:
    """One of before it was counted; with `assign` too, into a module on the meta device."""
    seen = module_for("per_channel").to(device)
    seen(example(device=device))
    seen.skipped_batches.fill_(3)
    state = seen.state_dict()
    for assign in (False, True):
        loaded = module_for("per_channel").to("meta" if assign else device)
        loaded.load_state_dict(state, assign=assign)
        assert loaded.skipped_batches == 3 and loaded._skipped_together == 3
    old = {name: tensor for name, tensor in state.items() if name != COUNTER}
    for assign in (False, True):
        loaded = module_for("per_channel").to("meta" if assign else device)
        loaded.load_state_dict(old, assign=assign)
        assert loaded.skipped_batches == 0
        assert loaded.skipped_batches.device.type == torch.device(device).type
        assert loaded._skipped_together == 0 and torch.equal(loaded.min_val, seen.min_val)
    with pytest.raises(RuntimeError, match="max_val"):  # what else is missing is still missed
        loaded.load_state_dict({name: t for name, t in old.items() if name != "max_val"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_counter_stays_an_integer(dtype: torch.dtype) -> None:
    module = module_for("per_tensor").to(dtype)
    module(torch.full((2,), math.nan, dtype=dtype))
    assert_same_bits(module.skipped_batches, torch.tensor(1))


@by_granularity
def test_an_empty_input_changes_nothing(granularity: str) -> None:
    module = module_for(granularity)
    for _ in range(2):
        before = copy.deepcopy(module)
        assert module(torch.empty(0, 4, 10)).shape == (0, 4, 10)
        assert_same_state(module, before)
        module(example())


@by_granularity
def test_reset_forgets_the_range(granularity: str) -> None:
    module, fresh = module_for(granularity, False), module_for(granularity, False)
    module(example(5))
    module.reset_min_max_vals()
    assert torch.equal(module.min_val, fresh.min_val) and torch.equal(module.max_val, fresh.max_val)
    assert torch.equal(module.calculate_qparams()[0], fresh.scale)
    assert torch.equal(module(example(1)), fresh(example(1)))
    assert_same_state(module, fresh)


@by_granularity
@by_symmetry
def test_freeze_keeps_the_bits(granularity: str, symmetric: bool) -> None:
    module = module_for(granularity, symmetric).eval()
    module(example(2))
    frozen = module.freeze()
    assert frozen.mode == "fixed" and not frozen.training
    assert sorted(frozen.state_dict()) == ["scale", "zero_point"]
    module.disable_observer()
    assert torch.equal(frozen(example(3)), module(example(3)))
    module.enable_observer()
    module(example(9))
    assert not torch.equal(frozen.scale, module.scale), "a copy"


def test_the_range_is_that_of_pytorch() -> None:
    """The same batches give torch.ao's module the same range, and its state can be loaded."""
    theirs = FusedMovingAvgObsFakeQuantize(
        quant_min=0, quant_max=255, dtype=torch.quint8, averaging_constant=0.125
    )
    ours = FakeQuantize(
        quant_min=0, quant_max=255, mode="observed", symmetric=False, averaging_constant=0.125
    )
    for seed in (3, 1, 2):
        assert torch.isclose(ours(example(seed)), theirs(example(seed)), atol=1e-6).all()
    # PyTorch's fused op lets the compiler contract the average's multiply and add.
    for name in RANGE:
        torch.testing.assert_close(
            getattr(ours, name), getattr(theirs.activation_post_process, name)
        )
    torch.testing.assert_close(ours.scale, theirs.scale[0])
    assert int(ours.zero_point) == int(theirs.zero_point)
    theirs.disable_observer()
    state = {k.removeprefix("activation_post_process."): v for k, v in theirs.state_dict().items()}
    state.pop("eps", None)
    ours.load_state_dict(state)
    assert torch.equal(ours.min_val, theirs.activation_post_process.min_val)
    assert int(ours.observer_enabled) == 0
    assert torch.equal(ours.scale, theirs.scale[0])


def test_repr_says_what_differs() -> None:
    assert repr(module_for("per_channel", False, 0.5)) == (
        "FakeQuantize(observed, per_channel, axis=1, quant_min=-8, quant_max=7, symmetric=False, "
        "averaging_constant=0.5, scale=[4])"
    )


CHANNELS = {"granularity": "per_channel", "axis": 0}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("no scale for mode 'observed', but got 0.1", {"scale": 0.1}),
    ("no zero_point for mode 'observed', but got 0", {"zero_point": 0}),
    ("no save_mask for mode 'observed', but got True", {"save_mask": True}),
    ("granularity .* for mode 'observed', but got 'per_token'", {"granularity": "per_token"}),
    ("granularity .* 'per_group'", {"granularity": "per_group", "group_size": 4}),
    ("granularity to be one of .* but got 'per_row'", {"granularity": "per_row"}),
    ("channels > 0 .* but got None", CHANNELS),
    ("channels > 0 .* but got 0", {**CHANNELS, "channels": 0}),
    ("no channels for per_tensor, but got 4", {"channels": 4}),
    ("an axis for per_channel", {"granularity": "per_channel", "channels": 4}),
    (r"averaging_constant to lie in \(0, 1\], but got 0", {"averaging_constant": 0}),
    (r"averaging_constant .* but got 1.5", {"averaging_constant": 1.5}),
    (r"averaging_constant .* but got -0.1", {"averaging_constant": -0.1}),
    (r"averaging_constant .* but got nan", {"averaging_constant": math.nan}),
    ("quant_min < quant_max, but got 7 and -8", {"quant_min": 7, "quant_max": -8}),
    ("quant_max - quant_min >= 2 .* but got 0 and 1", {"quant_min": 0, "quant_max": 1}),
    ("mode to be one of fixed, dynamic, observed, but got 'static'", {"mode": "static"}),
    ("a scale for mode 'fixed', but got None", {"mode": "fixed"}),
    ("symmetric=False with mode", {"mode": "fixed", "scale": 0.1, "symmetric": False}),
    ("no channels for mode 'fixed', but got 4", {"mode": "fixed", "scale": 0.1, "channels": 4}),
    (
        "no averaging_constant for mode 'fixed', but got 0.5",
        {"mode": "fixed", "scale": 0.1, "averaging_constant": 0.5},
    ),
]


@pytest.mark.parametrize(("message", "kwargs"), WRONG, ids=lambda v: str(v)[:30])
def test_wrong_arguments(message: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"FakeQuantize: expected {message}"):
        FakeQuantize(**{"mode": "observed", **kwargs})


def test_input_that_does_not_fit_is_refused() -> None:
    module = module_for("per_channel")
    with pytest.raises(TypeError, match="min_val"):
        module(example(1, torch.float64))
    with pytest.raises(ValueError, match="min_val"):
        module(torch.randn(3, 5, 10))
    assert_same_state(module, module_for("per_channel"))
