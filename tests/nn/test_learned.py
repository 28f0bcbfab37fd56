# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.LearnedFakeQuantize`: LSQ's rule, its first batch, and its life as a module."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import ops, reference
from baraquant.nn import LearnedFakeQuantize
from tests.support import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
SHAPE = (3, 8)
KINDS: dict[str, dict[str, Any]] = {
    "per_tensor": {},
    "per_channel": {"granularity": "per_channel", "axis": 0, "shape": (3,)},
    "last_channel": {"granularity": "per_channel", "axis": 1, "shape": (8,)},
    "per_group": {"granularity": "per_group", "group_size": 4, "shape": (3, 2)},
}
by_kind = pytest.mark.parametrize("kind", KINDS)
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def build(kind: str, symmetric: bool = True, **changes: Any) -> LearnedFakeQuantize:
    arguments = {"quant_min": -8, "quant_max": 7, "symmetric": symmetric}
    return LearnedFakeQuantize(**KINDS[kind], **(arguments | changes))


def example(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SHAPE, generator=cases.generator(seed)).to(dtype)


def segments(kind: str, x: Tensor) -> Tensor:
    if kind == "per_tensor":
        return x.reshape(1, -1)
    return x.T if kind == "last_channel" else x.reshape(-1, 4 if kind == "per_group" else 8)


def by_reference(kind: str, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    if kind == "per_tensor":
        return reference.fake_quantize_per_tensor(x, scale, zero_point, -8, 7)
    if kind == "per_group":
        return reference.fake_quantize_per_group(x, scale, zero_point, 4, -1, -8, 7)
    axis = KINDS[kind]["axis"]
    return reference.fake_quantize_per_channel(x, scale, zero_point, axis, -8, 7)


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
    module = build("per_channel")
    x = torch.zeros(SHAPE)
    x[1] = 7.0
    module(x)
    assert module.scale[0] == 1 and module.scale[2] == 1 and module.scale[1] == 1
    assert torch.equal(module(x), x)


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
    twin = x.detach().clone().requires_grad_()
    scale = module.scale.detach().clone().requires_grad_()
    zero_point = None
    if not symmetric:
        zero_point = module.zero_point.detach().clone().requires_grad_()
    by_reference(kind, twin, scale, zero_point).backward(dy)
    factor = (x.numel() / module.scale.numel() * 7) ** -0.5
    torch.testing.assert_close(module.scale.grad, scale.grad * factor)
    assert module.scale.grad.abs().min() > 0
    assert torch.equal(x.grad, twin.grad)
    if zero_point is not None:
        torch.testing.assert_close(module.zero_point.grad, zero_point.grad * factor)
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


def test_learns_the_best_step() -> None:
    """Of four-bit values far from the first guess: the error falls to that of a search."""
    x = torch.randn(4096, generator=cases.generator(3))
    module = build("per_tensor")
    module.initialize(10 * x)

    def error(scale: Tensor) -> float:
        return (ops.fake_quantize_per_tensor(x, scale, None, -8, 7) - x).square().mean().item()

    start = error(module.calculate_qparams()[0])
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.985)
    for _ in range(300):
        optimizer.zero_grad()
        (module(x) - x).square().mean().backward()
        optimizer.step()
        decay.step()
    best = min(error(torch.tensor([step / 200])) for step in range(10, 200))
    assert error(module.calculate_qparams()[0]) < 1.02 * best < 0.2 * start


@by_kind
@by_symmetry
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_integers_are_what_is_rounded(kind: str, symmetric: bool, dtype: torch.dtype) -> None:
    module, x = build(kind, symmetric), example(dtype=dtype)
    module = module.double() if dtype == torch.float64 else module
    y = module(x)
    integers, scale, zero_point = module.quantize(x)
    assert integers.dtype == torch.int8 and zero_point.dtype == torch.int32
    assert y.dtype == dtype and integers.min() >= -8 and integers.max() <= 7
    if kind == "per_tensor":
        back = ops.dequantize_per_tensor(integers, scale, zero_point, dtype=dtype)
    elif kind == "per_group":
        back = ops.dequantize_per_group(integers, scale, zero_point, 4, -1, dtype=dtype)
    else:
        axis = KINDS[kind]["axis"]
        back = ops.dequantize_per_channel(integers, scale, zero_point, axis, dtype=dtype)
    assert torch.equal(y, back) and torch.equal(module.round(x), y)


@by_symmetry
def test_conversions_keep_the_parameters_exact(symmetric: bool) -> None:
    module, x = build("per_channel", symmetric), example()
    module(x).sum().backward()
    names = [name for name, _ in module.named_parameters()]
    before = copy.deepcopy(module.state_dict())
    for dtype in (torch.float16, torch.bfloat16):
        outer = nn.Sequential(nn.Linear(8, 8), copy.deepcopy(module)).to(dtype)
        for name in names:
            assert torch.equal(outer[1].get_parameter(name), before[name])
            assert outer[1].get_parameter(name).dtype == torch.float32
        outer[1](x.to(dtype)).sum().backward()
        assert outer[1].scale.grad.dtype == torch.float32
    double = copy.deepcopy(module).double()
    assert double.scale.dtype == torch.float64
    assert copy.deepcopy(double).half().scale.dtype == torch.float32
    # A policy of mixed precision hands the parameters over in another dtype.
    mixed = copy.deepcopy(module)
    mixed.scale.data = mixed.scale.data.bfloat16()
    mixed(x.bfloat16()).sum().backward()


@by_kind
@by_symmetry
def test_copies_and_files_give_the_same_bits(kind: str, symmetric: bool) -> None:
    module, x = build(kind, symmetric), example()
    y = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), y)
        assert torch.equal(other.eval()(x), y)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = build(kind, symmetric)
    other.load_state_dict(state)
    assert torch.equal(other.eval()(x), y), "loaded parameters count as initialized"
    assert torch.equal(other.train()(10 * x), module(10 * x))
    other = build(kind, symmetric, device="meta")
    other.load_state_dict(state, assign=True)
    assert torch.equal(other.eval()(x), y)


def test_state_from_before_the_first_batch() -> None:
    module = build("per_tensor")
    module.load_state_dict(build("per_tensor").state_dict())
    with pytest.raises(RuntimeError, match="the scale is not known"):
        module.eval()(example())
    module.train()(example())


@by_kind
@by_symmetry
def test_scripted_and_exported(kind: str, symmetric: bool) -> None:
    module, x = build(kind, symmetric), example()
    scripted = torch.jit.script(copy.deepcopy(module))
    y = module(x)
    assert torch.equal(scripted(x), y)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), y)
    exported = torch.export.export(module.eval(), (x,))
    assert torch.equal(exported.module()(x), y)


@pytest.mark.parametrize("kind", ["per_tensor", "per_group"])
def test_compiled_from_its_first_batch_on(kind: str) -> None:
    torch._dynamo.reset()
    plain, xs = build(kind, symmetric=False, per_sample=True), [example(i) for i in range(3)]
    compiled = torch.compile(copy.deepcopy(plain), fullgraph=True, backend="aot_eager")
    for x in xs:
        for module in (plain, compiled):
            module.zero_grad()
            module(x).square().sum().backward()
        assert torch.equal(plain(x), compiled(x))
        torch.testing.assert_close(plain.scale.grad, compiled.scale.grad)


def test_switches() -> None:
    model = nn.Sequential(nn.Linear(8, 8), build("per_tensor"))
    x = example()
    model.apply(baraquant.nn.disable_observer)  # nothing that it could switch, and no error
    model.apply(baraquant.nn.disable_fake_quant)
    assert torch.equal(model(x), model[0](x))
    assert not model[1].scale.isnan().any(), "it has seen a batch"
    model.apply(baraquant.nn.enable_fake_quant)
    assert torch.equal(model(x), model[1].round(model[0](x)))
    scripted = torch.jit.script(model)
    scripted.apply(baraquant.nn.disable_fake_quant)
    assert torch.equal(scripted(x), model[0](x))


def test_empty_input_is_no_first_batch() -> None:
    module = build("per_tensor")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"granularity": "per_token"}, "granularity to be per_tensor, per_channel or per_group"),
        ({"granularity": "per_row"}, "granularity to be one of"),
        ({"granularity": "per_channel"}, "an axis for per_channel"),
        ({"granularity": "per_channel", "axis": 0, "shape": (2, 2)}, "shape to have one dimension"),
        ({"shape": (3,)}, r"shape to have \[1\] for per_tensor, but got \[3\]"),
        ({"quant_min": 7, "quant_max": -8}, "quant_min < quant_max"),
        ({"quant_min": -8, "quant_max": 0}, "quant_max > 0"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnedFakeQuantize(**arguments)


def test_groups_have_to_divide() -> None:
    module = LearnedFakeQuantize("per_group", group_size=3, shape=(3, 3))
    with pytest.raises(ValueError, match="group_size to divide 8, but got 3"):
        module(example())


def test_sync_needs_processes() -> None:
    with pytest.raises(RuntimeError, match=r"torch.distributed to be initialized"):
        build("per_tensor").sync_qparams()


def test_repr() -> None:
    text = repr(build("per_group"))
    assert text == (
        "LearnedFakeQuantize(per_group, group_size=4, axis=-1, quant_min=-8, quant_max=7, "
        "symmetric=True, scale=[3, 2])"
    )
