# SPDX-License-Identifier: BSD-3-Clause
"""Every call that changes a model changes it as a whole, or not at all, whatever interrupts it.

Faults are injected: an error at an op, an error at a line of baraquant, and Ctrl-C at some moment.
Afterwards the model is as before, or as a call without a fault leaves it, and so are the switches
of the process; and one more call gives what a first one gives.
"""

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, SmoothQuant, W8A8Static
from baraquant.workflow import transaction
from baraquant.workflow.calibration.run import evaluating
from baraquant.workflow.smoothquant import smoothing
from cpp_programs import PATIENCE
from tests.support.checks.refused import refused

ROOT = str(Path(baraquant.__file__).parent)
# Of a model with few parts it may smooth none.
pytestmark = pytest.mark.filterwarnings("ignore:.*expected SmoothQuant to smooth a layer")


class Written(nn.Linear):
    """A linear layer that is written out once more."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T + self.bias


# The parts of a model beside its tied weights and its norm. With all of them a call is long, but
# most of its lines run with few: each place is tried with the first of these pieces that has it.
Parts = tuple[str, ...]
LINEAR = ("up", "act", "down")
ALL = ("block", "conv", "gru", *LINEAR, "computed", "pruned")
PIECES: list[Parts] = [(), ("conv",), ("pruned",), ("computed",), LINEAR, ("gru",), ("block",), ALL]


class Model(nn.Module):
    """Every kind of layer, tied, packed and computed weights, hooks, a list and a dictionary."""

    def __init__(self, size: int = 16, parts: Parts = ALL) -> None:
        super().__init__()
        self.parts = parts
        self.embed = nn.Embedding(size, size)
        self.block = nn.TransformerEncoderLayer(size, 2, 2 * size, batch_first=True, dropout=0.0)
        self.conv = nn.Conv1d(size, size, 3, padding=1)
        self.gru = nn.GRU(size, size, batch_first=True)
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.act = nn.GELU()
        self.down = Written(2 * size, size)
        self.computed = nn.utils.parametrizations.weight_norm(nn.Linear(size, size))
        self.pruned = nn.utils.prune.l1_unstructured(nn.Linear(size, size), "weight", 0.5)
        self.head = nn.Linear(size, size, bias=False)
        self.head.weight = self.embed.weight
        self.up.register_forward_hook(lambda module, args, output: output + 0)
        for name in {*ALL} - {*parts}:
            setattr(self, name, nn.Identity())
        self.layers = [self.up, self.act, self.down]
        self.calls = (self.computed,)
        self.named = {"head": self.head}
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += 1
        x = self.block(self.embed(tokens))
        x = self.conv(x.mT).mT
        x = self.norm(self.gru(x)[0])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.pruned(self.calls[0](x)))


class Pair(nn.ModuleDict):
    def forward(self, input: Tensor) -> Tensor:
        return self["gate_proj"](input) * self["up_proj"](input)


DATA = [torch.randint(0, 16, (2, 4), generator=torch.Generator().manual_seed(0)) for _ in range(2)]
ROTATED = replace(W8A8(), rotate=16)


def built(parts: Parts) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model(parts=parts).train()


def prepared(parts: Parts) -> Model:
    model = built(parts)
    baraquant.qat.prepare_(model, W8A8Static())
    model(DATA[0])
    return model


def served(parts: Parts) -> Model:
    """A quantized model, of which two layers read one input."""
    model = built(parts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.pair = Pair({name: nn.Linear(16, 16) for name in ("gate_proj", "up_proj")})
    model.layers.insert(0, model.pair)
    baraquant.quantize_(model, W8A8())
    return model


def merged(parts: Parts) -> Model:
    model = served(parts)
    baraquant.merge_linears_(model)
    return model


def _quantize(scheme: Any) -> Callable[[nn.Module], Any]:
    return lambda m: baraquant.quantize_(m, scheme, calibration=DATA, progress=False)


def _prepare(scheme: Any) -> Callable[[nn.Module], Any]:
    return lambda m: baraquant.qat.prepare_(m, scheme, calibration=DATA, progress=False)


def _watch(model: nn.Module) -> None:
    watchers = {"up": baraquant.calibration.MinMaxObserver()}
    baraquant.calibration.calibrate(model, DATA, watchers, progress=False)


FILES: dict[Parts, Path] = {}


def _load(model: Any) -> None:
    baraquant.load_(model, FILES[model.parts])


# What makes a model, and the call that changes it; those that only look at it.
Calls = dict[str, tuple[Callable[[Parts], Model], Callable[[nn.Module], Any]]]
CALLS: Calls = {
    "W8A8": (built, _quantize(W8A8())),
    "static": (built, _quantize(W8A8Static())),
    "SmoothQuant": (built, _quantize(SmoothQuant("search"))),
    "AWQ": (built, _quantize(AWQ(W4A16(16), steps=3))),
    "GPTQ": (built, _quantize(GPTQ(W4A16(16)))),
    "prepare_": (built, _prepare(W8A8Static(observer="mse"))),
    "rotated": (built, _prepare(ROTATED)),
    "convert_": (prepared, baraquant.qat.convert_),
    "use_fused_ops_": (built, baraquant.use_fused_ops_),
    "optimize_for_inference_": (
        served, lambda m: baraquant.optimize_for_inference_(m)),
    "merge_linears_": (served, baraquant.merge_linears_),
    "merge_linears_ by an example": (
        served, lambda m: baraquant.merge_linears_(m, DATA[0])),
    "split_linears_": (merged, baraquant.split_linears_),
    "load_": (built, _load),
}  # fmt: skip
LOOKS: Calls = {
    "calibrate": (built, _watch),
    "sensitivity": (built, lambda m: baraquant.sensitivity(
        m, [W8A8(), W8A8Static()], DATA, progress=False)),
    "sensitivity of the output": (built, lambda m: baraquant.sensitivity(
        m, [W8A8()], DATA, of="output", progress=False)),
}  # fmt: skip
EVERY = CALLS | LOOKS


@pytest.fixture(scope="module", autouse=True)
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Save models for ``load_``, let PyTorch import what it imports late, and shorten a search."""
    pytest.importorskip("safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smoothing, "ALPHAS", (None, 0.0, 0.5))  # the same lines as of all 22
        with Fault():
            _quantize(SmoothQuant("search"))(built(ALL))
        for number, parts in enumerate(PIECES):
            model = built(parts)
            _quantize(SmoothQuant("search"))(model)
            FILES[parts] = tmp_path_factory.mktemp("saved") / f"model{number}"
            baraquant.save(model, FILES[parts])
        yield


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Compare with what a call leaves now: other tests of the process may change its switches."""
    left_by.cache_clear()


def of_process() -> tuple[Any, ...]:
    """Return the switches that are one for all models."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        _python_dispatch._len_torch_dispatch_stack(),
        torch.get_rng_state().tolist(),
        signal.getsignal(signal.SIGINT),
    )


def plain(value: Any) -> Any:
    """Return what has to stay the same of an attribute."""
    if isinstance(value, Tensor):
        return id(value), value.requires_grad
    if isinstance(value, dict):
        return id(value), [(key, plain(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return id(value), [plain(one) for one in value]
    return id(value)


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        path: (id(module), type(module), [(name, plain(own)) for name, own in vars(module).items()])
        for path, module in model.named_modules(remove_duplicate=False)
    }


def values_of(model: nn.Module) -> dict[str, Tensor]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in tensors}


def kinds_of(model: nn.Module) -> list[Any]:
    return [(path, type(m).__name__, m.training) for path, m in model.named_modules()]


def output_of(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(DATA[0])


@cache
def left_by(name: str, parts: Parts) -> tuple[list[Any], Tensor, float]:
    """What a call without a fault leaves of a model, and the seconds that it takes."""
    make, call = EVERY[name]
    model = make(parts)
    start = time.perf_counter()
    call(model)
    taken = time.perf_counter() - start
    return kinds_of(model), output_of(model), taken


class Tried:
    """A call, and what it has to leave of a model."""

    def __init__(self, name: str, parts: Parts = ALL) -> None:
        self.parts = parts
        self.make, self.call = EVERY[name]
        self.only_looks = name in LOOKS
        self.finished, self.output, self.taken = left_by(name, parts)
        self.renew()

    def renew(self) -> None:
        self.model = self.make(self.parts)
        self.state, self.values = state_of(self.model), values_of(self.model)

    def check(self, fault: Any, error: type[BaseException], where: object) -> None:
        """Call with a fault, and check what it leaves, also where none came or it was handled."""
        torch.manual_seed(1)
        switches = of_process()
        with suppress(error), fault:
            self.call(self.model)
        assert of_process() == switches, where
        changed = self.changed()
        if not changed:
            return
        assert not self.only_looks, (where, changed)
        assert kinds_of(self.model) == self.finished, (where, changed)
        assert torch.equal(output_of(self.model), self.output), where
        self.renew()

    def changed(self) -> list[str]:
        """Return the names of what differs from the model before."""
        state, values = state_of(self.model), values_of(self.model)
        if values.keys() != self.values.keys() or state.keys() != self.state.keys():
            return sorted((values.keys() ^ self.values.keys()) | (state.keys() ^ self.state.keys()))
        same = (torch.equal(value, values[name]) for name, value in self.values.items())
        others = [name for name, is_same in zip(values, same, strict=True) if not is_same]
        return others + [path for path, one in self.state.items() if state[path] != one]

    def again(self) -> None:
        """Check that a call without a fault is right on the same model."""
        self.call(self.model)
        assert kinds_of(self.model) == self.finished
        assert torch.equal(output_of(self.model), self.output)


class InjectedError(Exception):
    """An error that nothing else raises."""


# A file and a line of baraquant; with an op, where it calls that.
Line = tuple[str, int]
Place = tuple[Line, Any]


class Fault(TorchDispatchMode):
    """Counts how often each place calls an op, or raises an error where one does so again."""

    def __init__(self, at: Place | None = None, times: int = 0) -> None:
        super().__init__()
        self.at, self.times, self.counts = at, times, Counter[Place]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.at is None or self.at[1] is func:
            frame: Any = sys._getframe(1)
            while frame.f_back is not None and not frame.f_code.co_filename.startswith(ROOT):
                frame = frame.f_back
            place = (frame.f_code.co_filename, frame.f_lineno), func
            self.counts[place] += 1
            if place == self.at and self.counts[place] == self.times:
                raise InjectedError(str(place))
        return func(*args, **(kwargs or {}))


class Lines:
    """Counts how often each line of baraquant runs, or raises an error where one runs again."""

    def __init__(self, at: Line | None = None, times: int = 0) -> None:
        self.at, self.times, self.counts = at, times, Counter[Line]()
        self.has_line: dict[int, bool] = {}

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._called)

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self.before)

    def _called(self, frame: Any, event: str, value: Any) -> Any:
        code = frame.f_code
        if self.at is None:
            return self._ran if code.co_filename.startswith(ROOT) else None
        if code.co_filename != self.at[0]:
            return None
        if id(code) not in self.has_line:
            self.has_line[id(code)] = any(line == self.at[1] for *_, line in code.co_lines())
        return self._ran if self.has_line[id(code)] else None

    def _ran(self, frame: Any, event: str, value: Any) -> Any:
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            self.counts[line] += 1
            if line == self.at and self.counts[line] == self.times:
                sys.settrace(None)
                raise InjectedError(str(line))
        return self._ran


class Interrupt:
    """Presses Ctrl-C after a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *error: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


# So many points of the model with all parts, or what these pieces are the first to have: shared out
# among tests, so that many cores help.
Chosen = int | list[Parts]
SHARES = [PIECES[:1], PIECES[1:5], PIECES[5:]]
MANY = 25  # places of the model with all parts; moments of each piece, which are 200 of a call


def cases(*more: Chosen) -> pytest.MarkDecorator:
    """Three points of a call, and in a run of all tests more."""
    long = pytest.mark.exhaustive
    many = [pytest.param(each, id=f"many{i}", marks=long) for i, each in enumerate(more)]
    return pytest.mark.parametrize("chosen", [pytest.param(3, id="some"), *many])


def pieces(chosen: Chosen) -> list[Parts]:
    return [ALL] if isinstance(chosen, int) else chosen


@cache
def counts_of(name: str, kind: type[Fault] | type[Lines], parts: Parts) -> Counter[Any]:
    """How often each place runs in a call that is not the first."""
    left_by(name, parts)
    make, call = EVERY[name]
    counted, model = kind(), make(parts)
    with counted:
        call(model)
    return counted.counts


def first_in(name: str, kind: type[Fault] | type[Lines], parts: Parts) -> list[Any]:
    """The places that run with this piece, and with none before it."""
    before = PIECES[: PIECES.index(parts)]
    known = set().union(*(counts_of(name, kind, each) for each in before))
    return [place for place in counts_of(name, kind, parts) if place not in known]


def check_errors(name: str, kind: type[Fault] | type[Lines], chosen: Chosen) -> None:
    """Raise an error at each place, at any of the times that it runs; then call without one."""
    chance = random.Random(0)
    for parts in pieces(chosen):
        tried, counts = Tried(name, parts), counts_of(name, kind, parts)
        if isinstance(chosen, int):
            places = chance.sample(sorted(counts, key=str), min(chosen, len(counts)))
        else:
            places = sorted(first_in(name, kind, parts), key=str)
        for place in places:
            times = chance.randint(1, counts[place])
            for _ in range(2):
                fault, where = kind(place, times), (parts, place, times)
                tried.check(fault, InjectedError, where)
                if fault.counts[place] >= times:
                    break
                tried.renew()  # of the old model baraquant may remember what this place finds out
            else:
                pytest.fail(f"no error was raised: {where}")
        tried.again()


@cases(MANY, *SHARES)
@pytest.mark.parametrize("name", EVERY)
def test_error_at_an_op(name: str, chosen: Chosen) -> None:
    check_errors(name, Fault, chosen)


@cases(MANY, *SHARES)
@pytest.mark.parametrize("name", EVERY)
def test_error_at_a_line(name: str, chosen: Chosen) -> None:
    check_errors(name, Lines, chosen)


@cases(PIECES)
@pytest.mark.parametrize("size", ["kept", "freed"])
@pytest.mark.parametrize("name", EVERY)
def test_interrupt_at_a_random_moment(
    name: str, size: str, chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At other moments in each run."""
    if size == "freed":
        monkeypatch.setattr(transaction, "KEPT_BYTES", 0)
    for parts in pieces(chosen):
        tried = Tried(name, parts)
        for _ in range(chosen if isinstance(chosen, int) else MANY):
            seconds = random.uniform(1e-4, tried.taken)
            tried.check(Interrupt(seconds), BaseException, (parts, seconds))
        tried.again()


def test_a_weight_that_cannot_be_written_is_not_rotated() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].weight = nn.Parameter(torch.randn(16, 1).expand(16, 16))
    message = r"prepare_: 1: expected a weight .* after expand"
    refused(baraquant.qat.prepare_, message, model, ROTATED)


@pytest.mark.parametrize("scheme", [SmoothQuant(0.5), AWQ(W4A16(16))])
def test_nothing_is_folded_into_a_norm_that_cannot_be_written(scheme: Any) -> None:
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)).eval()
    model[0].weight = nn.Parameter(torch.ones(1).expand(16))
    x = torch.randn(8, 16) * torch.linspace(0.1, 20, 16)
    with torch.no_grad():
        before = model(x)
        baraquant.quantize_(model, scheme, calibration=[x], progress=False)
        assert (model(x) - before).norm() < 0.2 * before.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_zeros_get_their_sign_back(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    model.register_buffer("zero", torch.zeros(4).to(dtype))
    hook = model[0].register_forward_hook(lambda *_: model.zero.copy_(torch.full((4,), -0.0)))
    model(torch.randn(2, 16))
    assert model.zero.float().signbit().all()
    model.zero.copy_(torch.zeros(4))
    baraquant.quantize_(model, W8A8Static(), calibration=[torch.randn(2, 16)])
    assert not model.zero.float().signbit().any()
    hook.remove()


def test_a_hook_that_raises_leaves_the_float_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried("load_")

    def raises(*args: Any) -> None:
        raise InjectedError

    handle = tried.model.norm.register_load_state_dict_pre_hook(raises)
    tried.state = state_of(tried.model)
    with pytest.raises(InjectedError):
        _load(tried.model)
    assert tried.changed() == []
    handle.remove()
    tried.again()


@pytest.mark.parametrize("context_of", (evaluating, transaction._without_inference_tensors))
def test_a_context_that_is_collected_late_changes_no_other_call(context_of: Any) -> None:
    """An exception between a block and its end leaves the end to the garbage collector."""
    suspended = []

    @transaction.in_one_transaction
    def interrupted(model: nn.Module) -> None:
        context = context_of(model)
        context.__enter__()
        suspended.append(context)
        raise InjectedError

    @transaction.in_one_transaction
    def later(model: nn.Module) -> None:
        with torch.no_grad():
            suspended.clear()
            assert not torch.is_grad_enabled()
        transaction.switch_off_fast_path()
        raise InjectedError

    with torch.inference_mode():
        model = nn.Linear(4, 4)
        with pytest.raises(InjectedError):
            interrupted(model)
        assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
        suspended.clear()
    for call in (interrupted, later):
        with pytest.raises(InjectedError):
            call(nn.Linear(4, 4))
        assert torch.backends.mha.get_fastpath_enabled() and torch.is_grad_enabled()


def test_two_threads_leave_the_fused_attention_on() -> None:
    turns = [threading.Event() for _ in range(3)]

    def data(thread: int) -> Iterator[Tensor]:
        assert thread == 0 or turns[0].wait(PATIENCE), "the first thread began no calibration"
        yield torch.randn(2, 16)
        turns[thread].set()
        assert turns[thread + 1].wait(PATIENCE), f"thread {thread} waited for the other"

    def run(thread: int) -> None:
        model = nn.Sequential(nn.Linear(16, 16))
        baraquant.quantize_(model, W8A8Static(), calibration=data(thread))

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(run, thread) for thread in (0, 1)]
        done[0].result(PATIENCE)
        assert not torch.backends.mha.get_fastpath_enabled()  # the second still runs
        turns[2].set()
        done[1].result(PATIENCE)
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_error_in_a_trial_is_raised_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Written(16, 16))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "allclose", lambda *args, **kwargs: 1 // 0)
        patch.setattr("baraquant.nn.shared.subclassed._SAME", {})
        with pytest.raises(ZeroDivisionError):
            baraquant.quantize_(model, W8A8())
        assert type(model[0]) is Written
    assert baraquant.quantize_(model, W8A8()).changed == {"0": "QuantizedLinear"}
