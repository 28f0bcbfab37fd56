# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.LearnedFakeQuantize`: LSQ's rule, its first batch, and its life as a module."""

import copy
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from baraquant import W4A8, ops, quantize_, reference
from baraquant import nn as bnn
from baraquant.qat import convert_, prepare_
from tests.support import cases
from tests.support.schemes import described

SHAPE = (3, 8)
KINDS: dict[str, dict[str, Any]] = {
    "per_tensor": {},
    "per_channel": {"granularity": "per_channel", "axis": 0, "shape": (3,)},
    "last_channel": {"granularity": "per_channel", "axis": 1, "shape": (8,)},
    "per_group": {"granularity": "per_group", "group_size": 4, "shape": (3, 2)},
}
by_kind = pytest.mark.parametrize("kind", KINDS)
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def build(kind: str, symmetric: bool = True, **changes: Any) -> bnn.LearnedFakeQuantize:
    arguments = {"quant_min": -8, "quant_max": 7, "symmetric": symmetric}
    return bnn.LearnedFakeQuantize(**KINDS[kind], **(arguments | changes))


def example(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SHAPE, generator=cases.generator(seed)).to(dtype)


def segments(kind: str, x: Tensor) -> Tensor:
    if kind == "per_tensor":
        return x.reshape(1, -1)
    return x.T if kind == "last_channel" else x.reshape(-1, 4 if kind == "per_group" else 8)


def by_reference(kind: str, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    of_channels = cases.per_channel(KINDS[kind].get("axis", 0))
    where = {"per_tensor": cases.PER_TENSOR, "per_group": cases.per_group(4)}.get(kind, of_channels)
    return where.op("fake_quantize", reference)(x, scale, zero_point, *where.args, -8, 7)


@by_kind
def test_first_step_is_that_of_the_paper(kind: str) -> None:
    module, x = build(kind), example()
    assert module.scale.isnan().all()
    y = module(x)
    rows = segments(kind, x).abs()
    # Esser et al. 2020, section 2.1, but never so large that it could be smaller without clipping.
    step = torch.minimum(2 * rows.mean(1) / 7**0.5, rows.amax(1) / 7)
    torch.testing.assert_close(module.scale.data, step.reshape(module.scale.shape))
    assert torch.equal(y, by_reference(kind, x, module.scale.detach(), None))
    kept = module.scale.detach().clone()
    module(100 * x)
    assert torch.equal(module.scale, kept), "the first batch only"


@by_kind
def test_first_grid_with_a_zero_point(kind: str) -> None:
    module, x = build(kind, symmetric=False), example().abs() + 1
    module(x)
    scale, zero_point = ops.choose_qparams_per_channel(segments(kind, x), 0, -8, 7, symmetric=False)
    assert torch.equal(module.scale.reshape(-1), scale)
    assert torch.equal(module.zero_point.reshape(-1), zero_point.float())


def test_few_bits_start_with_the_papers_step() -> None:
    module, x = build("per_tensor", quant_min=-2, quant_max=1), example()
    module(x)
    assert 2 * x.abs().mean() < x.abs().max(), "else the bound were what is tested"
    torch.testing.assert_close(module.scale.item(), 2 * x.abs().mean().item())


def test_zeros_start_with_a_step_of_one() -> None:
    module, x = build("per_channel"), torch.zeros(SHAPE)
    x[1] = 7.0
    assert torch.equal(module(x), x) and torch.equal(module.scale, torch.ones(3))


@by_symmetry
def test_a_start_of_zeros_alone_is_given_up(symmetric: bool) -> None:
    module, x = build("per_tensor", symmetric), example()
    for _ in range(2):
        zeros = torch.zeros(SHAPE)
        assert torch.equal(module(zeros), zeros) and module.scale.item() == 1
    assert torch.equal(copy.deepcopy(module).eval()(2 * x), module.eval()(2 * x)), "it is known"
    twin = build("per_tensor", symmetric)
    assert torch.equal(module.train()(x), twin(x)) and torch.equal(module.scale, twin.scale)
    kept = module.scale.detach().clone()
    module(torch.zeros(SHAPE)), module(100 * x)
    assert torch.equal(module.scale, kept)
    other = build("per_tensor", symmetric)
    other(torch.zeros(SHAPE))
    other.initialize(torch.ones(SHAPE))
    kept = other.scale.detach().clone()
    other(x)
    assert torch.equal(other.scale, kept), "what was asked for stays"


@by_kind
@by_symmetry
def test_gradient_is_scaled_as_in_the_paper(kind: str, symmetric: bool) -> None:
    """Against the gradient of the op, times 1 / sqrt(n * quant_max)."""
    module, x, dy = build(kind, symmetric), example(), example(1)
    module.initialize(x)
    x = 2 * x  # some are clipped
    with torch.no_grad():
        module.scale *= 0.7
    x.requires_grad_()
    module(x).backward(dy)
    given = x, module.scale, None if symmetric else module.zero_point
    twin, scale, zero = (t if t is None else t.detach().clone().requires_grad_() for t in given)
    by_reference(kind, twin, scale, zero).backward(dy)
    factor = (x.numel() / module.scale.numel() * 7) ** -0.5
    torch.testing.assert_close(module.scale.grad, scale.grad * factor)
    assert module.scale.grad.abs().min() > 0
    assert torch.equal(x.grad, twin.grad)
    if zero is not None:
        torch.testing.assert_close(module.zero_point.grad, zero.grad * factor)
        assert module.zero_point.grad.abs().max() > 0


@pytest.mark.parametrize("shape", [(8,), (5, 8), (5, 3, 8)])
def test_samples_of_a_batch_do_not_count(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=cases.generator(2))
    gradients = []
    for per_sample in (True, False):
        module = build("per_tensor", per_sample=per_sample)
        module(x).sum().backward()
        gradients.append(module.scale.grad)
    samples = shape[0] if len(shape) > 1 else 1
    torch.testing.assert_close(gradients[0], gradients[1] * samples**0.5)


@by_kind
@pytest.mark.parametrize("value", [-0.25, 0.0, -1e-42])
def test_positive_by_construction(kind: str, value: float) -> None:
    module, x = build(kind), example()
    module.initialize(x)
    with torch.no_grad():
        module.scale.fill_(value)
    scale, _ = module.calculate_qparams()
    assert (scale > 0).all()
    y = module(x)
    assert torch.equal(y, by_reference(kind, x, scale, None)) and y.isfinite().all()
    y.sum().backward()
    assert module.scale.grad.isfinite().all()


def test_parameters_in_another_dtype() -> None:
    """A policy of mixed precision hands them over so."""
    module, x = build("per_channel"), example()
    module(x)
    module.scale.data = module.scale.data.bfloat16()
    module(x.bfloat16()).sum().backward()
    assert module.scale.grad is not None


def test_a_quantizer_that_is_off_sees_its_first_batch() -> None:
    module, x = build("per_tensor").apply(bnn.disable_observer), example()
    module.apply(bnn.disable_fake_quant)
    assert torch.equal(module(x), x) and not module.scale.isnan().any()


def test_no_first_batch_yet() -> None:
    """Neither by a state from before it, nor by an empty input."""
    module = build("per_tensor")
    module.load_state_dict(build("per_tensor").state_dict())
    assert module(torch.empty(0, 8)).shape == (0, 8)
    with pytest.raises(RuntimeError, match="the scale is not known"):
        module.eval()(example())
    module.train()(example())
    assert module(torch.empty(0, 8)).shape == (0, 8)


def test_nan_stays_visible() -> None:
    module, x = build("per_channel"), example()
    x[1, 2] = float("nan")
    y = module(x)
    assert y[1].isnan().all() and y[0].isfinite().all()


# --- first batches that are not finite --------------------------------------------------------

FACTORS = partial(bnn.LearnedFakeQuantizeInt4, 4, shape=(3, 2))
STARTS: dict[str, Callable[[bool], nn.Module]] = {
    **{kind: partial(build, kind) for kind in KINDS},
    "int4 search": lambda symmetric: FACTORS(symmetric=symmetric),
    "int4 max": lambda symmetric: FACTORS(symmetric=symmetric, scale_rule="max"),
}
WAYS: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
    "eager": lambda module: module,
    "compiled": lambda module: torch.compile(module, backend="aot_eager", fullgraph=True),
    "scripted": torch.jit.script,
}
by_bad = pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
CONFIGS = {
    "linear": described("int4 learned, int8 per_tensor learned"),
    "asymmetric": described("int8, int8 per_tensor asymmetric learned"),
    "factors": described("int4 per_group(4) learned factors, int8 per_tensor learned"),
}


def with_bad(bad: float | None = None) -> Tensor:
    x = example()
    if bad is not None:
        x[1, 2] = bad
    return x


@pytest.mark.parametrize("way", WAYS)
@by_symmetry
@pytest.mark.parametrize("kind", STARTS)
@by_bad
def test_the_first_finite_batch_counts(kind: str, symmetric: bool, bad: float, way: str) -> None:
    if kind.startswith("int4"):
        way = "eager"  # it is initialized from a weight, before anything is compiled
    torch._dynamo.reset()
    module, twin = STARTS[kind](symmetric), STARTS[kind](symmetric)
    run = WAYS[way](module)
    owner: Any = run if way == "scripted" else module
    for count in (1, 2):
        assert run(with_bad(bad))[1].isnan().any() and int(owner.skipped_batches) == count
        assert owner.scale.isnan().any()
    assert torch.equal(run(example()), twin(example()))
    for name, parameter in twin.named_parameters():
        assert torch.equal(getattr(owner, name), parameter)
    assert int(owner.skipped_batches) == 2 and int(twin.skipped_batches) == 0


@pytest.mark.parametrize("way", ["eager", "compiled"])
@by_symmetry
@by_bad
def test_a_later_batch_poisons_nothing(symmetric: bool, bad: float, way: str) -> None:
    """Where the loss ignores what is not finite, so do the gradients of scale and zero point."""
    torch._dynamo.reset()
    module = STARTS["per_tensor"](symmetric)
    module(example())
    before = copy.deepcopy(module.state_dict())
    x = with_bad(bad)
    y = WAYS[way](module)(x)
    torch.where(x.isfinite(), y, 0.0).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_layer_says_what_it_skipped(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    prepare_(model, CONFIGS[name])
    quantizer = model[0].input_fake_quant
    assert model(with_bad(float("nan"))).isnan().any() and int(quantizer.skipped_batches) == 1
    with pytest.raises(RuntimeError, match=r"finite batch in training mode.*\(EMA\)"):
        model.eval()(example())
    with pytest.raises(ValueError, match=r"0: .*no data.*1 batch with a NaN or infinity.*\(EMA\)"):
        convert_(model)
    model.train()(example())
    with torch.no_grad():
        evaluated = model.eval()(example())
    said = "1 batch with a NaN or infinity took no part in its input's range"
    assert convert_(model).changed["0"].endswith(said)
    assert torch.equal(model(example()), evaluated)


def test_a_weight_that_is_not_finite_is_looked_at_again() -> None:
    linear = nn.Linear(8, 4)
    good = linear.weight.detach().clone()
    with torch.no_grad():
        linear.weight[2, 3] = float("inf")
    for config in (CONFIGS["linear"], W4A8(4, learned=True)):
        model = nn.Sequential(copy.deepcopy(linear))
        prepare_(model, config)
        assert int(model[0].weight_fake_quant.skipped_batches) == 1
        model(example())
        with torch.no_grad():
            model[0].weight.copy_(good)
        twin = nn.Sequential(nn.Linear(8, 4))
        twin.load_state_dict({"0.weight": good, "0.bias": linear.bias})
        prepare_(twin, config)
        assert torch.equal(model(example()), twin(example()))


def test_an_average_that_was_copied_too_early_names_the_cause() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    prepare_(model, CONFIGS["linear"])
    early = copy.deepcopy(model)
    model(example())
    late = copy.deepcopy(model)
    with torch.no_grad():
        for average in (early, late):
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
    cause = r"a copy of the model that averages its parameters \(EMA\) has to be made after that fi"
    with pytest.raises(RuntimeError, match=cause):
        early.eval()(example())
    with pytest.raises(ValueError, match=cause):
        convert_(early)
    assert late.eval()(example()).isfinite().all() and convert_(late).changed


def test_the_steps_after_the_first_read_nothing_back(cuda: torch.device) -> None:
    module = STARTS["per_tensor"](False).to(cuda)
    x = example().to(cuda)
    module(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        module(x).sum().backward()
        module(x * float("nan"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- what training gains: learned factors beside searched ones on handwritten digits --------------

HIDDEN, SEEDS = 16, (0, 1, 2)


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


def train(model: nn.Module, epochs: int, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x, y = digits()
    generator = torch.Generator().manual_seed(seed)
    parts = len(torch.arange(len(x)).split(64))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * parts)
    model.train()
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
            decay.step()


def float_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    first, second, third = nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 10)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
    train(model, 40, torch.optim.Adam(model.parameters(), 2e-3), seed)
    return model


def loss_of(model: nn.Module) -> float:
    x, y = digits()
    model.eval()
    with torch.no_grad():
        prepared = model(x)
        convert_(model)
        assert torch.equal(model(x), prepared)
    return F.cross_entropy(prepared, y).item()


def tuned(model: nn.Sequential, how: str, seed: int) -> float:
    """The loss of the converted model, after training with factors of this kind."""
    model = copy.deepcopy(model)
    prepare_(model, W4A8(HIDDEN, learned=how == "learned"))
    for layer in model if how == "searched" else ():
        if isinstance(layer, bnn.FakeQuantizedLinear):
            quantizer = layer.weight_fake_quant
            layer.weight_fake_quant, _ = quantizer.fitted(layer.rows_of_weight())
    train(model, 20, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9), seed)
    return loss_of(model)


@pytest.mark.exhaustive
def test_learned_factors_reach_a_lower_loss_than_searched_ones() -> None:
    """Both start from the same factors. The factors of each step's weights are better still."""
    x, y = digits()
    losses: dict[str, list[float]] = {}
    for seed in SEEDS:
        model = float_model(seed)
        for how in ("learned", "searched", "of each step"):
            losses.setdefault(how, []).append(tuned(model, how, seed))
        quantize_(model, W4A8(HIDDEN), progress=False)
        losses.setdefault("not trained", []).append(F.cross_entropy(model(x), y).item())
    mean = {how: statistics.mean(values) for how, values in losses.items()}
    for i in range(len(SEEDS)):
        assert losses["learned"][i] < losses["searched"][i] < losses["not trained"][i]
    assert mean["learned"] < 0.97 * mean["searched"]
    assert mean["learned"] < 1.1 * mean["of each step"]
