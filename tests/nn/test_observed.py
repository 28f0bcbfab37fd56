# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.FakeQuantize` with mode "observed": the scale follows the range of the data.

And a prepared layer whose input needs data, in evaluation before it has seen any.
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize
from torch.utils import _pytree as pytree

import baraquant
from baraquant import ops
from baraquant.nn import FakeQuantize
from baraquant.qat import convert_, prepare_
from tests.nn.test_quantizer_modules import saved
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.schemes import described

SHAPE = (3, 4, 10)
RANGE = ("min_val", "max_val")
FLAGS = ("observer_enabled", "fake_quant_enabled")
COUNTER = "skipped_batches"
GRANULARITIES = {"per_tensor": cases.PER_TENSOR, "per_channel": cases.per_channel(1)}
by_granularity = pytest.mark.parametrize("granularity", GRANULARITIES)
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_averaging = pytest.mark.parametrize("averaging", [None, 0.25, 1])


def module_for(granularity: str, symmetric: bool = True, averaging: Any = None) -> FakeQuantize:
    more: dict[str, Any] = {"axis": 1, "channels": 4} if granularity == "per_channel" else {}
    more |= {"mode": "observed", "symmetric": symmetric, "averaging_constant": averaging}
    return FakeQuantize(granularity=granularity, quant_min=-8, quant_max=7, **more)


def example(seed: int = 1, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    x = torch.randn(SHAPE, generator=cases.generator(seed)) * seed
    return (x + torch.arange(4.0)[:, None]).to(device, dtype)


def rounded(module: FakeQuantize, x: Tensor) -> Tensor:
    """What the module's scale and zero point make of x, by the op with a given scale."""
    where = GRANULARITIES[module.granularity]
    function = where.op("fake_quantize", ops)
    return function(x, module.scale, module.zero_point, *where.args, -8, 7)


def assert_same_state(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


@by_granularity
def test_its_state_at_first(granularity: str) -> None:
    for symmetric, zero_point in ((True, 0), (False, -8)):
        module = module_for(granularity, symmetric)
        shape = (4,) if granularity == "per_channel" else ()
        names = {*RANGE, *FLAGS, COUNTER, "scale", "zero_point", "scheme"}
        assert module.state_dict().keys() == names
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
        dims = (0, 2) if granularity == "per_channel" else (0, 1, 2)
        new = torch.stack([x.amin(dims), x.amax(dims)]).to(module.min_val.dtype)
        if running is None or averaging == 1:  # 1: the last input alone, exactly
            running = new
        elif averaging is None:
            running = torch.stack([running[0].minimum(new[0]), running[1].maximum(new[1])])
        else:
            running = running + averaging * (new - running)
        assert torch.equal(torch.stack([module.min_val, module.max_val]), running)
        where, own = GRANULARITIES[granularity], (module.scale, module.zero_point)
        choose = where.op("choose_qparams", ops)
        by_op = choose(running, *where.args, -8, 7, symmetric=symmetric)
        for wanted in (by_op, module.calculate_qparams()):
            assert all(map(torch.equal, own, wanted))
        assert torch.equal(y, rounded(module, x)) and y.dtype == dtype


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


def test_a_state_dict_without_a_counter_is_loaded(device: str) -> None:
    """One of PyTorch's own observers; with `assign` too, into a module on the meta device."""
    seen = module_for("per_channel").to(device)
    seen(example(device=device))
    seen.skipped_batches.fill_(3)
    state = seen.state_dict()
    old = {name: tensor for name, tensor in state.items() if name != COUNTER}
    for (given, count), assign in itertools.product(((state, 3), (old, 0)), (False, True)):
        loaded = module_for("per_channel").to("meta" if assign else device)
        loaded.load_state_dict(given, assign=assign)
        assert loaded.skipped_batches == count and loaded._skipped_together == count
        assert loaded.skipped_batches.device.type == torch.device(device).type
        assert torch.equal(loaded.min_val, seen.min_val)
    with pytest.raises(RuntimeError, match="max_val"):  # what else is missing is still missed
        loaded.load_state_dict({name: t for name, t in old.items() if name != "max_val"})


@by_granularity
def test_an_empty_input_changes_nothing(granularity: str) -> None:
    module = module_for(granularity)
    for _ in range(2):
        before = copy.deepcopy(module)
        assert module(torch.empty(0, 4, 10)).shape == (0, 4, 10)
        assert_same_state(module, before)
        module(example())


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
    options: dict[str, Any] = {"quant_min": 0, "quant_max": 255, "averaging_constant": 0.125}
    theirs = FusedMovingAvgObsFakeQuantize(dtype=torch.quint8, **options)
    ours = FakeQuantize(mode="observed", symmetric=False, **options)
    seen = theirs.activation_post_process
    for seed in (3, 1, 2):
        assert torch.isclose(ours(example(seed)), theirs(example(seed)), atol=1e-6).all()
    # PyTorch's fused op lets the compiler contract the average's multiply and add.
    for name in RANGE:
        torch.testing.assert_close(getattr(ours, name), getattr(seen, name))
    torch.testing.assert_close(ours.scale, theirs.scale[0])
    assert int(ours.zero_point) == int(theirs.zero_point)
    theirs.disable_observer()
    state = {k.removeprefix("activation_post_process."): v for k, v in theirs.state_dict().items()}
    state.pop("eps", None)
    ours.load_state_dict(state)
    assert torch.equal(ours.min_val, seen.min_val) and torch.equal(ours.scale, theirs.scale[0])
    assert int(ours.observer_enabled) == 0


@by_averaging
@by_granularity
@pytest.mark.parametrize("form", ["script", "loaded script", "compiled"])
def test_a_graph_has_all_flags(form: str, granularity: str, averaging: float | None) -> None:
    """One graph; a batch that is not finite is counted, but for the switched observer."""
    eager = module_for(granularity, False, averaging)
    graph = owner = copy.deepcopy(eager)
    torch._dynamo.reset()  # what other tests compiled counts too
    counter = CompileCounterWithBackend("aot_eager")
    if form == "compiled":
        graph = torch.compile(owner, fullgraph=True, backend=counter)
    else:
        graph = owner = torch.jit.script(owner)
    if form == "loaded script":
        graph = owner = torch.jit.load(saved(torch.jit.save, owner))
    for seed, (observes, rounds) in enumerate(itertools.product((1, 0, 1), (1, 0)), start=1):
        for one in (eager, owner):
            getattr(one, "enable_observer" if observes else "disable_observer")()
            getattr(one, "enable_fake_quant" if rounds else "disable_fake_quant")()
        for one in (graph, eager):
            one((example(4) * math.nan).requires_grad_())
        x = example(seed).requires_grad_()
        y, wanted = graph(x), eager(x)
        assert torch.equal(y, wanted)
        assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (y, wanted)))
        assert_same_state(owner, eager)
    assert eager.skipped_batches == 4 and counter.frame_count == (form == "compiled")
    assert torch.equal(owner.calculate_qparams()[0], eager.calculate_qparams()[0])
    owner.reset_min_max_vals()
    assert (owner.min_val == math.inf).all()


@by_granularity
@pytest.mark.parametrize("form", ["frozen script", "export"])
def test_a_graph_goes_on_observing(form: str, granularity: str) -> None:
    module = module_for(granularity).eval()
    if form == "export":
        graph = torch.export.export(copy.deepcopy(module), (example(),)).module()
    else:
        graph = torch.jit.freeze(torch.jit.script(copy.deepcopy(module)))
    for seed in (1, 3, 2):
        assert torch.equal(graph(example(seed)), module(example(seed)))


def test_flags_switched_inside_compiled_code() -> None:
    torch._dynamo.reset()
    module = module_for("per_tensor")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def look_then_round(x: Tensor) -> Tensor:
        module.enable_observer()
        module(x)
        module.disable_observer()
        return module(2 * x)

    y = look_then_round(example())
    assert torch.equal(module.max_val, example().amax()) and int(module.observer_enabled) == 0
    assert torch.equal(y, rounded(module, 2 * example()))


@by_granularity
def test_nothing_moves_its_buffers(granularity: str) -> None:
    """A captured CUDA graph holds addresses: every change is made in place."""
    module = module_for(granularity)
    before = {name: buffer.data_ptr() for name, buffer in module.named_buffers()}
    module(example())
    for call in ("enable_observer", "enable_fake_quant", "reset_min_max_vals"):
        getattr(module, call)()
    module.load_state_dict(module_for(granularity).state_dict())
    assert {name: buffer.data_ptr() for name, buffer in module.named_buffers()} == before


@pytest.mark.cuda
@by_granularity
def test_flags_act_on_a_captured_graph(granularity: str, cuda: str) -> None:
    eager = module_for(granularity, False).to(cuda)
    module = copy.deepcopy(eager)
    static = example(1, device=cuda)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copy.deepcopy(module)(static)  # warm-up
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(static)
    for seed, (observes, rounds) in enumerate(itertools.product((1, 0, 1), (1, 0)), start=1):
        batch = example(seed, device=cuda)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for one in (eager, module):
                one.enable_observer(bool(observes))
                one.enable_fake_quant(bool(rounds))
            wanted = eager(batch)
            static.copy_(batch)
            graph.replay()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(y, wanted)
        assert_same_state(module, eager)


@pytest.mark.parametrize("scripted", [False, True], ids=["eager", "scripted"])
def test_switches_of_a_model(scripted: bool) -> None:
    model: nn.Module = nn.Sequential(
        nn.Linear(10, 10),
        module_for("per_tensor"),
        nn.Sequential(FakeQuantize(mode="dynamic"), FakeQuantize(0.5)),
        torch.ao.quantization.FakeQuantize(),  # of the same name
    )
    if scripted:
        model = torch.jit.script(model)
    # By name: a scripted Sequential gives the unscripted modules by number.
    names = ("1", "2.0", "2.1", "3")
    observed, dynamic, fixed, foreign = map(dict(model.named_modules()).get, names)
    x = example()
    for verb, state in (("disable", 0), ("enable", 1)):
        for switch in ("observer", "fake_quant"):
            model.apply(getattr(baraquant.nn, f"{verb}_{switch}"))
        assert [int(getattr(observed, name)) for name in FLAGS] == [state, state]
        assert [int(getattr(foreign, name)) for name in FLAGS] == [1, 1]
        for module in (observed, dynamic, fixed):
            assert torch.equal(module(x), x) is (verb == "disable")


# --- a prepared layer before its first batch ------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "linear": (lambda: nn.Linear(16, 8), (2, 16)),
    "conv": (lambda: nn.Conv2d(16, 8, 3), (2, 16, 4, 4)),
    "floating conv": (lambda: nn.Conv2d(16, 8, 3, groups=4), (2, 16, 4, 4)),
    "transposed conv": (lambda: nn.ConvTranspose1d(16, 8, 3), (2, 16, 4)),
    "LSTM": (lambda: nn.LSTM(16, 8), (3, 2, 16)),
}
SCHEMES = {
    "static": baraquant.W8A8Static(), "moving average": baraquant.W8A8Static("moving_average"),
    "weight only": described("int8 asymmetric, int8 per_tensor static"),
    "learned": described("int8, int8 per_tensor learned"),
}  # fmt: skip
UNSEEN = "expected the range of its input to be known, but it has seen no data: run batches in"
by_layer = pytest.mark.parametrize("layer", LAYERS)


def prepared(layer: str, scheme: str = "static") -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[layer]
    torch.manual_seed(0)
    model = nn.Sequential(make())
    prepare_(model, SCHEMES[scheme], progress=False)
    return model, torch.randn(*shape)


def refused(model: nn.Module, x: Tensor) -> None:
    with pytest.raises(ValueError, match=f"FakeQuantize: {UNSEEN}"):
        model.eval()(x)


FORMS: dict[str, Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]] = {
    "eager": lambda model, x: model,
    "no grad": lambda model, x: torch.no_grad()(model.forward),
    "trace": lambda model, x: torch.jit.trace(model, (x,), check_trace=False),
    "compiled": lambda model, x: torch.compile(model, backend="aot_eager"),
    "fullgraph": lambda model, x: torch.compile(model, backend="aot_eager", fullgraph=True),
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True).module(),
}


@by_layer
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.pairs
@pytest.mark.cover(("layer", "form"))
def test_evaluation_before_the_first_batch(layer: str, scheme: str, form: str) -> None:
    if scheme == "learned" and form in ("compiled", "fullgraph", "strict export"):
        pytest.skip("a learned scale starts outside of graphs")
    torch._dynamo.reset()
    model, x = prepared(layer, scheme)
    said = "LearnedFakeQuantize: expected" if scheme == "learned" else f"FakeQuantize: {UNSEEN}"
    program = None
    with pytest.raises((ValueError, RuntimeError), match=said):
        program = FORMS[form](model.eval(), x)
        program(x)
    if form == "trace" and scheme != "learned":
        torch.jit.trace(model.train(), (x,), check_trace=False)
    model.train()(x)
    wanted = model.eval()(x)
    got = (FORMS[form](model, x) if program is None else program)(x)
    assert all(map(torch.equal, pytree.tree_leaves(got), pytree.tree_leaves(wanted)))


@by_layer
@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "learned"])
def test_the_sentence_is_that_of_conversion(layer: str, scheme: str) -> None:
    """And counts the batches that took no part."""
    for batches in (0, 1):
        model, x = prepared(layer, scheme)
        counted = f"{UNSEEN}.*; 1 batch with a NaN or infinity took no part" if batches else UNSEEN
        for _ in range(batches):
            model(x * float("inf"))
        script = torch.jit.script(copy.deepcopy(model).eval())
        for error, call in ((ValueError, model.eval()), (torch.jit.Error, script)):
            with pytest.raises(error, match=f"FakeQuantize: {counted}"):
                call(x)
        with pytest.raises(ValueError, match=counted):
            convert_(model)


def test_copies_and_states() -> None:
    """A copy knows what its model knew; a state brings what its model knows."""
    unseen, x = prepared("linear")
    blank = copy.deepcopy(unseen.state_dict())
    copied = copy.deepcopy(unseen)
    unseen(x)
    expected = unseen.eval()(x)
    assert torch.equal(copy.deepcopy(unseen)(x), expected)
    refused(copied, x)
    copied.load_state_dict(unseen.state_dict())
    assert torch.equal(copied(x), expected)
    copied.load_state_dict(blank)
    refused(copied, x)


def test_a_module_of_its_own_starts_with_the_scale_1() -> None:
    quantizer = baraquant.nn.FakeQuantize(mode="observed").eval()
    assert torch.equal(quantizer.round(torch.tensor([1.4])), torch.tensor([1.0]))


def test_the_values_are_read_until_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read waits for a GPU."""
    model, x = prepared("linear")
    model(x)
    model.eval()(x)

    def no_read(tensor: Tensor) -> bool:
        raise AssertionError("a value was read")

    monkeypatch.setattr(Tensor, "__bool__", no_read)
    model(x)


@by_layer
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_script_checks_as_it_runs(layer: str, scheme: str) -> None:
    model, x = prepared(layer, scheme)
    said = "LearnedFakeQuantize: expected" if scheme == "learned" else f"FakeQuantize: {UNSEEN}"
    script = torch.jit.script(model)
    with pytest.raises(torch.jit.Error, match=said):
        script.eval()(x)
    script.train()(x)
    assert all(y.isfinite().all() for y in pytree.tree_leaves(script.eval()(x)))


def test_no_graph_of_a_known_range_holds_the_check() -> None:
    model, x = prepared("linear")
    model(x)
    wanted = model.eval()(x)
    traced = torch.jit.trace(model, (x,))
    frozen = torch.jit.freeze(torch.jit.script(copy.deepcopy(model)))
    exported = torch.export.export(model, (x,), strict=True)
    assert "isnan" not in str(traced.inlined_graph) + exported.graph_module.code
    assert torch.equal(traced(x), wanted) and torch.equal(frozen(x), wanted)


def test_a_non_strict_export_has_no_values() -> None:
    """Nor does its graph hold the check: what it returns is NaN."""
    model, x = prepared("linear")
    program = torch.export.export(model.eval(), (x,), strict=False)
    assert program.module()(x).isnan().all()
