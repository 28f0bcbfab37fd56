# SPDX-License-Identifier: BSD-3-Clause
"""An observed `FakeQuantize` lives like any module: saved, converted, scripted, compiled."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import baraquant
from baraquant.nn import FakeQuantize
from tests.nn.observed_modules import (
    FLAGS,
    RANGE,
    assert_same_state,
    by_averaging,
    by_granularity,
    example,
    module_for,
    rounded,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


@by_granularity
def test_state_dict_round_trip(granularity: str) -> None:
    module = module_for(granularity, False)
    module(example(2))
    module.disable_observer()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = module_for(granularity, False)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same_state(other, module)
    assert torch.equal(other(example(3)), module(example(3)))
    assert_same_state(other, module)
    with pytest.raises(RuntimeError, match=r"Missing key.*min_val"):
        other.load_state_dict(module.freeze().state_dict())


def test_state_of_other_shapes() -> None:
    """PyTorch's rule: one element of shape [1] fits [], another number of channels does not."""
    module = module_for("per_tensor")
    module(example(2))
    state = {name: value.reshape(1) for name, value in module.state_dict().items()}
    other = module_for("per_tensor")
    other.load_state_dict(state)
    assert_same_state(other, module)
    assert torch.equal(other(example(3)), module(example(3)))
    five = FakeQuantize(granularity="per_channel", axis=0, channels=5, mode="observed")
    with pytest.raises(RuntimeError, match=r"size mismatch for min_val.*\[5\].*\[4\]"):
        module_for("per_channel").load_state_dict(five.state_dict())


@by_granularity
def test_conversions_keep_the_state_exact(granularity: str) -> None:
    module = module_for(granularity, False)
    module(example(2))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        outer = nn.Sequential(nn.Linear(10, 10), copy.deepcopy(module)).to(dtype)
        assert_same_state(outer[1], module)
        outer(example(1, dtype)).sum().backward()
        assert outer[1].min_val.dtype == torch.float32
    double = copy.deepcopy(module).double()
    for name in (*RANGE, "scale"):
        assert torch.equal(getattr(double, name), getattr(module, name).double())
    assert double(example(1, torch.float64)).dtype == torch.float64
    for convert in ("half", "bfloat16", "float"):
        back = getattr(copy.deepcopy(module).double(), convert)()
        assert_same_state(back, module)
        assert back.scale.dtype == torch.float32
    assert all(getattr(double, name).dtype == torch.uint8 for name in FLAGS)


def test_conversion_to_a_device_and_dtype_at_once() -> None:
    module = module_for("per_channel").to("meta", torch.float16)
    assert module.min_val.device.type == "meta" and module.min_val.dtype == torch.float32
    assert module(example().to("meta", torch.float16)).device.type == "meta"
    source = module_for("per_channel")
    source(example())
    filled = module.to_empty(device="cpu")
    filled.load_state_dict(source.state_dict())
    assert torch.equal(filled(example(2)), source(example(2)))


@by_granularity
def test_copies_are_the_same_and_apart(granularity: str) -> None:
    module = module_for(granularity, False, 0.5)
    module(example(2))
    module.disable_fake_quant()
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same_state(clone, module)
        before = module.min_val.clone()
        clone.enable_fake_quant()
        clone(example(7))
        assert torch.equal(module.min_val, before) and int(module.fake_quant_enabled) == 0
        assert not torch.equal(clone.min_val, before)


@by_averaging
@by_granularity
def test_script(granularity: str, averaging: float | None) -> None:
    module = module_for(granularity, False, averaging)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(copy.deepcopy(module)), file)
    file.seek(0)
    for other in (torch.jit.script(copy.deepcopy(module)), torch.jit.load(file)):
        eager = copy.deepcopy(module)
        for call in ("", "disable_observer", "disable_fake_quant", "enable_observer", ""):
            for one in (eager, other) if call else ():
                getattr(one, call)()
            for one in (eager, other):
                one(example(4) * math.inf)  # left out and counted, but for the switched observer
            x = example(2).requires_grad_()
            y, wanted = other(x), eager(x)
            assert torch.equal(y, wanted)
            assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (y, wanted)))
            assert_same_state(other, eager)
        assert eager.skipped_batches == 3
        assert torch.equal(other.calculate_qparams()[0], eager.calculate_qparams()[0])
        other.reset_min_max_vals()
        assert (other.min_val == math.inf).all()


def test_script_takes_a_whole_number_for_the_constant() -> None:
    module = FakeQuantize(mode="observed", averaging_constant=1)
    scripted = torch.jit.script(copy.deepcopy(module))
    for seed in (3, 1):
        assert torch.equal(scripted(example(seed)), module(example(seed)))
    assert torch.equal(scripted.max_val, example(1).amax())


@by_granularity
def test_frozen_script(granularity: str) -> None:
    """torch.jit.freeze keeps what changes: the range goes on following the data."""
    module = module_for(granularity).eval()
    frozen = torch.jit.freeze(torch.jit.script(copy.deepcopy(module)))
    for seed in (1, 3, 2):
        assert torch.equal(frozen(example(seed)), module(example(seed)))


@by_granularity
def test_compile_once_for_all_flags(granularity: str) -> None:
    torch._dynamo.reset()  # what other tests compiled counts too
    eager = module_for(granularity, False)
    module = copy.deepcopy(eager)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for seed, (observes, rounds) in enumerate(itertools.product((1, 0, 1), (1, 0)), start=1):
        for one in (eager, module):
            one.enable_observer(bool(observes))
            one.enable_fake_quant(bool(rounds))
        for one in (compiled, eager):
            one((example(4) * math.nan).requires_grad_())
        x = example(seed).requires_grad_()
        y, wanted = compiled(x), eager(x)
        assert torch.equal(y, wanted)
        assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (y, wanted)))
        assert_same_state(module, eager)
    assert counter.frame_count == 1
    assert module.skipped_batches == 4


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
def test_export(granularity: str) -> None:
    module = module_for(granularity)
    exported = torch.export.export(copy.deepcopy(module), (example(),)).module()
    for seed in (1, 3):
        assert torch.equal(exported(example(seed)), module(example(seed)))
    assert torch.equal(exported.min_val, module.min_val)


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
    off = {name: getattr(baraquant.nn, f"disable_{name}") for name in ("observer", "fake_quant")}
    on = {name: getattr(baraquant.nn, f"enable_{name}") for name in ("observer", "fake_quant")}
    model.apply(off["observer"])
    model.apply(off["fake_quant"])
    assert int(observed.observer_enabled) == int(observed.fake_quant_enabled) == 0
    assert all(torch.equal(module(x), x) for module in (observed, dynamic, fixed))
    assert int(foreign.observer_enabled) == int(foreign.fake_quant_enabled) == 1
    model.apply(on["observer"])
    model.apply(on["fake_quant"])
    assert int(observed.observer_enabled) == int(observed.fake_quant_enabled) == 1
    assert not any(torch.equal(module(x), x) for module in (observed, dynamic, fixed))
