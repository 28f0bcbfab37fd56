# SPDX-License-Identifier: BSD-3-Clause
"""One transaction for every call that changes a model: it changes as a whole, or not at all.

A public function that changes a model is decorated with :func:`changes_model`, and one that only
looks at it with :func:`in_one_transaction`. Whatever writes to a model first notes how to undo
that, with :func:`keep`, :func:`keep_all`, :func:`write` or :func:`undo_by`. Any exception that
leaves the function, also ``KeyboardInterrupt``, undoes everything in reverse order. What is only
for a while, such as the evaluation mode of a calibration, stands within :func:`undone`.

The layers before live as long as they may have to come back. Where their weights take more than
:data:`KEPT_BYTES`, a function checks everything first and then calls :func:`run_to_end`: from there
on it undoes nothing, and an interrupt waits until it is done.
"""

from __future__ import annotations

import functools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _python_dispatch

# The bytes of weights that are kept until the end, so that they can be put back.
KEPT_BYTES = 1 << 30

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


class _Transaction:
    """How to undo what was done so far, the last first.

    Attributes:
        undos: What undoes each step, however often it is called; None if the function runs to its
            end.
    """

    def __init__(self) -> None:
        self.undos: list[Callable[[], object]] | None = []
        is_main = threading.current_thread() is threading.main_thread()  # it handles Ctrl-C
        self._handler = signal.getsignal(signal.SIGINT) if is_main else None
        self._is_interrupted = False

    def undo(self, mark: int = 0) -> None:
        """Undo what was noted after the first ``mark`` steps."""
        if self.undos is None:
            return
        try:
            self.hold_interrupts()
        finally:
            try:
                self._undo(self.undos, mark)
            finally:
                self.let_interrupts_go()

    def _undo(self, undos: list[Callable[[], object]], mark: int) -> None:
        try:
            while len(undos) > mark:
                step = undos[-1]
                try:
                    step()
                except BaseException:
                    step()
                    raise
                finally:
                    undos.pop()
        finally:  # a step that cannot be undone does not keep the others
            if len(undos) > mark:
                self._undo(undos, mark)

    def close(self) -> None:
        """Forget how to undo anything."""
        self.undos = None
        self.let_interrupts_go()

    def hold_interrupts(self) -> None:
        """Let Ctrl-C wait."""
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: Any) -> None:
        self._is_interrupted = True

    def let_interrupts_go(self) -> None:
        """Let Ctrl-C arrive, also the one that has waited."""
        if callable(self._handler) and signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._handler)
        if self._is_interrupted:
            self._is_interrupted = False
            signal.raise_signal(signal.SIGINT)


_current: ContextVar[_Transaction | None] = ContextVar("baraquant_transaction", default=None)


def _open() -> _Transaction | None:
    """Return the transaction of this thread that notes how to undo steps; None if there is none."""
    current = _current.get()
    return None if current is None or current.undos is None else current


def in_one_transaction(
    function: Callable[_Given, _Returned],
    within: Callable[..., AbstractContextManager[None]] = nullcontext,
) -> Callable[_Given, _Returned]:
    """Return a function that undoes what was noted within it if an exception leaves it.

    In another transaction it is a part of that one.

    Args:
        function: The function.
        within: Returns the context to call it in, for its first argument.
    """

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        outer, before = _open(), _current.get()
        own = _Transaction() if outer is None else outer
        mark = len(own.undos or ())
        try:  # no context manager: a signal may come before its block begins
            _current.set(own)
            if outer is None:
                _keep_switches()
            with within(args[0] if args else kwargs.get("model")):
                result = function(*args, **kwargs)
            if outer is None:
                own.close()
            return result
        except BaseException:
            own.undo(mark)
            raise
        finally:
            _current.set(before)
            if outer is None:
                own.close()

    return call


@contextmanager
def undone() -> Iterator[None]:
    """Undo at the end of the context what is noted within it."""
    outer, before = _open(), _current.get()
    own = _Transaction() if outer is None else outer
    mark = len(own.undos or ())
    try:
        _current.set(own)
        yield
    finally:  # if this does not come about, the outer transaction undoes it
        own.undo(mark)
        # NB: or this comes late, where an exception kept the context from its end: when the garbage
        # collector finds it, maybe within another transaction.
        if _current.get() is own:
            _current.set(before)


def run_to_end() -> None:
    """Undo nothing from here on, and let an interrupt wait until the transaction ends."""
    current = _open()
    if current is not None:
        current.hold_interrupts()
        current.undos = None


def are_kept(weights: Iterable[Tensor]) -> bool:
    """Whether weights that are replaced are kept until the end, so that an error puts them back."""
    sizes = {id(weight): 0 if weight.is_meta else weight.nbytes for weight in weights}
    return sum(sizes.values()) <= KEPT_BYTES


# ---- What is about to be changed ----------------------------------------------------------------


def undo_by(function: Callable[..., object], *args: Any) -> None:
    """Note that a call of ``function`` undoes what is done next."""
    current = _open()
    if current is not None and current.undos is not None:
        current.undos.append(functools.partial(function, *args))


def keep(*collections: Any) -> None:
    """Note what dictionaries, lists, sets and deques hold, such as ``vars(module)``."""
    for held in collections if _open() is not None else ():
        undo_by(as_it_is(held))


def keep_all(model: nn.Module) -> None:
    """Note the attributes, parameters, buffers and modules of every module."""
    for module in model.modules():
        keep(vars(module), module._parameters, module._buffers, module._modules)


def keep_values(*tensors: Tensor) -> None:
    """Note the values of tensors that are written to in place."""
    for tensor in tensors if _open() is not None else ():
        place = tensor.detach()  # the tensor itself may get another place
        undo_by(restore_values, place, place.clone())


@torch.no_grad()  # type: ignore[untyped-decorator]
def write(tensor: Tensor, values: Tensor) -> None:
    """Write to a tensor of a model."""
    keep_values(tensor)
    tensor.copy_(values)


def as_it_is(held: Any) -> Callable[[], None]:
    """Return what lets a collection hold again what it holds now."""
    kind = next((kind for kind in (dict, set) if isinstance(held, kind)), list)
    return functools.partial(refill, held, kind(held))


def refill(held: Any, saved: Any) -> None:
    """Let a collection hold what it held before."""
    if isinstance(held, dict):
        if [*map(id, held)] != [*map(id, saved)]:  # also where only the order differs
            held.clear()
        for key, value in saved.items():
            if key not in held or held[key] is not value:
                held[key] = value
    elif isinstance(held, set):
        held.intersection_update(saved)
        held.update(saved)
    else:
        if len(held) != len(saved):
            held.clear()
            held.extend(saved)
        for index, value in enumerate(saved):
            if held[index] is not value:
                held[index] = value


@torch.no_grad()  # type: ignore[untyped-decorator]
def restore_values(tensor: Tensor, copy: Tensor) -> None:
    """Write a copy back, unless the tensor has its bits: a graph may have kept the tensor."""
    if tensor.shape != copy.shape:
        tensor.data = copy.clone()
    elif not _same_bits(tensor, copy):
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(copy)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, also in the signs of zeros; of NaNs and complex ones: no."""
    if a.is_floating_point():  # eight bits have no signbit
        return bool(torch.equal(a, b) and torch.equal(a.float().signbit(), b.float().signbit()))
    return not a.is_complex() and bool(torch.equal(a, b))


def generators_as_they_are() -> list[Callable[[], Any]]:
    """Return what gives each generator of random numbers the state that it has now."""
    found: list[Callable[[], Any]] = [
        functools.partial(torch.set_rng_state, torch.get_rng_state()),
        functools.partial(random.setstate, random.getstate()),
    ]
    if torch.cuda.is_initialized():
        states = torch.cuda.get_rng_state_all()
        found.append(functools.partial(torch.cuda.set_rng_state_all, states))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found.append(functools.partial(numpy.random.set_state, numpy.random.get_state()))
    return found


def _keep_switches() -> None:
    """Note what is one for all models: random numbers, and modes of PyTorch for this thread."""
    for restore in generators_as_they_are():
        undo_by(restore)
    undo_by(torch._C._set_grad_enabled, torch.is_grad_enabled())
    undo_by(_leave_modes, _python_dispatch._len_torch_dispatch_stack())


def _leave_modes(count: int) -> None:
    while _python_dispatch._len_torch_dispatch_stack() > count:
        _python_dispatch._pop_mode()


class _OneAtATime(ContextDecorator):
    """Lets one thread at a time into a function.

    The lock's own methods, so that no line of ours lies between them and the function: an error at
    such a line, as a debugger may raise it, would never let go of the lock.
    """

    _lock = threading.Lock()
    __enter__, __exit__ = _lock.__enter__, _lock.__exit__


# PyTorch's fused evaluation of attention, one switch for the process: who needs it off, and what it
# was before.
_needs_slow_path: set[object] = set()
_fast_path_before = True


def switch_off_fast_path() -> None:
    """Let every module's forward be called until the context of :func:`undone` ends.

    The fused evaluation of ``nn.TransformerEncoderLayer`` would bypass hooks. Several threads may
    need it off at the same time.
    """
    key = object()
    undo_by(_release_fast_path, key)
    _hold_fast_path(key)


@_OneAtATime()
def _hold_fast_path(key: object) -> None:
    global _fast_path_before
    if not _needs_slow_path:
        _fast_path_before = torch.backends.mha.get_fastpath_enabled()
    _needs_slow_path.add(key)
    torch.backends.mha.set_fastpath_enabled(False)


@_OneAtATime()
def _release_fast_path(key: object) -> None:
    if _needs_slow_path == {key}:  # before the key goes, so that a second try does it too
        torch.backends.mha.set_fastpath_enabled(_fast_path_before)
    _needs_slow_path.discard(key)


# ---- Calls under torch.inference_mode(), and tensors that cannot be written to ------------------
# A tensor that is created there can never be saved for a gradient, nor written to later. So models
# are changed outside of that mode, and get copies of the inference tensors that they hold.


def changes_model(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Return a function that changes its first argument, a model, as a whole or not at all.

    Afterwards the model has no inference tensors.
    """
    return in_one_transaction(function, _without_inference_tensors)


@contextmanager
def _without_inference_tensors(model: Any) -> Iterator[None]:
    is_enabled = torch.is_grad_enabled() or torch.is_inference_mode_enabled()
    own, modes = _current.get(), torch._C._InferenceMode(False)
    undo_by(modes.__exit__, None, None, None)  # restores the grad mode too
    try:
        modes.__enter__()
        torch._C._set_grad_enabled(is_enabled)
        if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
            replace_inference_tensors(model)
        yield
    finally:
        if _current.get() is own:  # as in undone()
            modes.__exit__(None, None, None)


@torch.inference_mode(False)  # type: ignore[untyped-decorator]
def replace_inference_tensors(model: nn.Module) -> None:
    """Replace each inference tensor of a model by a copy; a tensor of several modules by one."""
    copies: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor, whose id no other one gets

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copy = tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            new = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
            copies[id(tensor)] = new, tensor
        return copies[id(tensor)][0]

    for module in model.modules():
        for own in (module._parameters, module._buffers):
            news = {
                name: copied(tensor)
                for name, tensor in own.items()
                if tensor is not None and not is_lazy(tensor) and tensor.is_inference()
            }
            if news:
                keep(own)
                own.update(news)


def unwritable(model: nn.Module) -> dict[int, str]:
    """Return why some tensors of a model cannot be written to in place, by their ids."""
    found: dict[int, str] = {}
    spans: list[tuple[str, int, int, int]] = []
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for key, tensor in tensors.items():
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        if not is_plain or tensor.is_meta or tensor.numel() == 0:
            continue
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        length = 1 + sum((size - 1) * stride for size, stride in steps)
        if length < tensor.numel():
            found[key] = "its elements share memory, as after expand"
        start = tensor.data_ptr()
        end = start + length * tensor.element_size()
        spans.append((str(tensor.device), start, end, key))
    furthest = ("", 0, 0)
    for device, start, end, key in sorted(spans):
        if device == furthest[0] and start < furthest[1]:
            for each in (key, furthest[2]):
                found.setdefault(each, "it shares memory with another tensor of the model")
        furthest = max(furthest, (device, end, key))
    return found
