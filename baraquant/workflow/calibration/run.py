# SPDX-License-Identifier: BSD-3-Clause
"""Runs a model on calibration data while watchers see the inputs of its modules.

Afterwards the model is as it was. Models keep state in buffers (a cache of keys, a position,
running statistics), in attributes (a recurrent state, a counter) and in the generators of random
numbers.
"""

from __future__ import annotations

import importlib
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..._table import some
from ..transaction import (
    as_it_is,
    generators_as_they_are,
    in_one_transaction,
    restore_values,
    switch_off_fast_path,
    undo_by,
    undone,
)

# Batches, or a function that is called with the model and runs it.
Calibration = Iterable[Any] | Callable[[nn.Module], Any]

_NAMED = 8  # modules in a warning

UNREACHED = (
    "expected the calibration data to reach the module, but it saw no input; leave it out with "
    "filter_fn, or add data that uses it"
)


class Counts(Protocol):
    """Says what a watcher of one module has seen."""

    def unusable(self) -> Tensor | None:
        """Return whether no finite input was seen, as a bool tensor; None if no input was seen."""

    @property
    def skipped_batches(self) -> Tensor | None:
        """The number of inputs ignored for a NaN or an infinity; None: not counted."""


class Watcher(Counts, Protocol):
    """Observes the inputs of one module."""

    def observe(self, input: Tensor) -> None:
        """Observe one input."""


@runtime_checkable
class CallWatcher(Counts, Protocol):
    """Observes the calls of one module; a method ``before_call`` is called before each of them."""

    def observe_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Observe one call: what ``forward`` was given, after pre-hooks, and what it returned."""


@dataclass(frozen=True)
class Run:
    """How a public function calibrates.

    Attributes:
        model: The float model.
        data: Batches, or a function that runs the model; None: there are none.
        progress: Whether to show a bar.
        where: The name of the function, for messages.
    """

    model: nn.Module
    data: Calibration | None
    progress: bool
    where: str

    def __call__(
        self, watchers: Mapping[str, Watcher | CallWatcher], description: str = "calibration"
    ) -> set[str]:
        """Run the model on the data; return the paths of the watchers that saw no input."""
        assert self.data is not None
        return calibrate(
            self.model,
            self.data,
            watchers,
            description=description,
            progress=self.progress,
            where=self.where,
            allows_unreached=True,
        )

    def again(self, watchers: Mapping[str, Watcher | CallWatcher]) -> None:
        """Run the model once more for watchers that all see an input, without a bar."""
        assert self.data is not None
        calibrate(self.model, self.data, watchers, progress=False, where=self.where)

    def check_repeatable(self, times: str) -> None:
        """Check that the data can be gone through as often as ``times`` says, as in ``"2 times"``.

        Raises:
            ValueError: It is a generator or another iterator.
        """
        if isinstance(self.data, Iterator):
            raise ValueError(
                f"{self.where}: expected calibration data that can be gone through {times} (a list"
                f", a DataLoader, a function of the model), but got a {type(self.data).__name__}"
            )


@in_one_transaction
def calibrate(
    model: nn.Module,
    calibration: Calibration,
    watchers: Mapping[str, Watcher | CallWatcher],
    *,
    description: str = "calibration",
    progress: bool = True,
    where: str = "baraquant.calibration.calibrate",
    allows_unreached: bool = False,
) -> set[str]:
    """Run ``model`` on the data; each watcher sees all inputs of the module at its path.

    The model runs in evaluation mode and without gradients. Afterwards each module has its former
    mode, buffers and attributes, and the generators of random numbers go on as if nothing had run.
    What the model keeps from one call to the next, it keeps within the run. A batch is passed as
    ``model(*batch)`` if it is a tuple or a list, as ``model(**batch)`` if it is a mapping, else as
    ``model(batch)``.

    Args:
        model: The model.
        calibration: Batches, or a function that is called with the model and runs it.
        watchers: A watcher for each path of a module (as in ``model.named_modules()``).
        description: The label of the progress bar.
        progress: Whether to show a progress bar, on a terminal and if rich is installed.
        where: The function name for error messages.
        allows_unreached: Whether modules may see no input, as long as one does.

    Returns:
        The paths of the modules that saw no input.

    Raises:
        ValueError: There is no data, a module never ran, or all of its inputs held a NaN or an
            infinity. The message has the module's path.
        TypeError: ``calibration`` is neither iterable nor callable, or the model does not take the
            first batch as its arguments, for example because batches also hold labels.

    Warns:
        UserWarning: Inputs with a NaN or an infinity were ignored; the warning has the modules and
            the counts.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    with evaluating(model), counting(description, length(calibration), progress) as advance:
        for path, watcher in watchers.items():
            watch(modules[path], watcher)
        is_empty = True
        for _ in ran(model, calibration, where):
            is_empty = False
            advance()
    if is_empty:
        raise ValueError(f"{where}: expected calibration data, but got no batch")
    unreached = [path for path, watcher in watchers.items() if watcher.unusable() is None]
    if unreached and (not allows_unreached or len(unreached) == len(watchers)):
        raise ValueError(f"{where}: {unreached[0]}: {UNREACHED}")
    _check_finite(watchers, where)
    return set(unreached)


def _check_finite(watchers: Mapping[str, Counts], where: str) -> None:
    """Raise if a watcher saw no finite input; warn if it ignored inputs."""
    unusable = _read({path: watcher.unusable() for path, watcher in watchers.items()})
    skipped = _read({path: watcher.skipped_batches for path, watcher in watchers.items()})
    for path, is_unusable in unusable.items():
        if is_unusable:
            raise ValueError(
                f"{where}: {path}: expected finite calibration data, but every batch gives its "
                "input a NaN or an infinity"
            )
    counts = [f"{path} ({count})" for path, count in skipped.items() if count > 0]
    if counts:
        warnings.warn(
            f"{where}: inputs with a NaN or an infinity were left out of the calibration of "
            f"{some(counts, _NAMED)}: each with the number of its inputs that were",
            stacklevel=4,
        )


def _read(tensors: Mapping[str, Tensor | None]) -> dict[str, int]:
    """Return the numbers in one-element tensors, with one wait for all of them."""
    given = {path: tensor for path, tensor in tensors.items() if tensor is not None}
    if not given:
        return {}
    device = next(iter(given.values())).device
    flat = [tensor.reshape(()).to(device, torch.int64) for tensor in given.values()]
    return dict(zip(given, torch.stack(flat).tolist(), strict=True))


def ran(model: nn.Module, calibration: Calibration, where: str) -> Iterator[None]:
    """Run the model; yield after each batch."""
    if isinstance(calibration, (Tensor, Mapping, str, bytes)):
        raise TypeError(
            f"{where}: expected calibration to be an iterable of batches, but got one "
            f"{type(calibration).__name__}; a single batch is a list of one"
        )
    if isinstance(calibration, Iterable):
        for index, batch in enumerate(calibration):
            try:
                if isinstance(batch, Mapping):
                    model(**batch)
                elif isinstance(batch, (tuple, list)):
                    model(*batch)
                else:
                    model(batch)
            except TypeError as error:
                if index > 0 or not isinstance(batch, (Mapping, tuple, list)):
                    raise
                raise TypeError(_not_arguments(model, batch, error, where)) from error
            yield
    elif callable(calibration):
        calibration(model)
        yield
    else:
        raise TypeError(
            f"{where}: expected calibration to be an iterable of batches or a function of the "
            f"model, but got {type(calibration).__name__}"
        )


def _not_arguments(model: nn.Module, batch: Any, error: TypeError, where: str) -> str:
    call = "model(**batch)" if isinstance(batch, Mapping) else "model(*batch)"
    return (
        f"{where}: batch 0: expected the batch, a {type(batch).__name__} of {len(batch)}, to be "
        f"the arguments of {type(model).__name__}, but {call} raised: {error}. Where batches hold "
        "labels too, pass a function, lambda model: [model(x) for x, _ in loader], or a generator "
        "of inputs, (x for x, _ in loader)"
    )


def length(calibration: Calibration) -> int | None:
    """Return the number of batches, or None if it is unknown."""
    try:
        return len(calibration)  # type: ignore[arg-type]
    except TypeError:
        return None


def watch(module: nn.Module, watcher: Watcher | CallWatcher) -> None:
    """Let a watcher see a module's calls, or first arguments, until :func:`evaluating` ends."""
    if isinstance(watcher, CallWatcher):
        observe_call = watcher.observe_call

        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            observe_call(args, kwargs, out)

        # Before other hooks, which may change the output.
        module.register_forward_hook(after, with_kwargs=True, prepend=True)
        before_call = getattr(watcher, "before_call", None)
        if before_call is not None:
            module.register_forward_pre_hook(lambda _, args: before_call())
    else:
        observe = watcher.observe

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs.get("input")
            if isinstance(value, Tensor):
                observe(value)

        module.register_forward_pre_hook(before, with_kwargs=True)


def import_apart(name: str) -> None:
    """Import a module in a thread of its own.

    What PyTorch imports late may keep the frame that imports it, with all of its callers, until
    Python's collector runs; and a caller holds the model.
    """
    if name not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=(name,))
        thread.start()
        thread.join()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Let the model run in evaluation mode, without gradients, calling every module's forward.

    Afterwards it has its former state, whatever the calls have changed.
    """
    with undone():
        undo_by(State([model]).restore)
        for module in model.modules():
            undo_by(setattr, module, "training", module.training)
        switch_off_fast_path()
        model.eval()
        undo_by(torch._C._set_grad_enabled, torch.is_grad_enabled())
        torch._C._set_grad_enabled(False)
        yield


# ---- The bar on the terminal, with rich if it is installed --------------------------------------


@contextmanager
def counting(description: str, total: int | None, shown: bool) -> Iterator[Callable[[], object]]:
    """Yield a function that counts a step on standard error, if that is a terminal.

    The number of steps is None if it is unknown.
    """
    bar = _bar() if shown else None
    if bar is None:
        yield lambda: None
    else:
        with bar:
            yield partial(bar.advance, bar.add_task(description, total=total))


def _bar() -> Any:
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=console) if console.is_terminal else None


# ---- What calls of a model may change, so that a run leaves it as it was ------------------------

_KEPT = ("_parameters", "_modules")  # what no call is expected to change
# A cache is an object that holds objects. What is deeper, or of these packages, may reach weights,
# optimizers and data.
_DEPTH = 2
_FOREIGN = {"accelerate", "baraquant", "deepspeed", "lightning", "pytorch_lightning", "torch"}


class State:
    """The state of modules, and of all that are in them, as it is now; and that of random numbers.

    Tensors are copied, and so are collections and objects with what they hold. Parameters are not:
    that would take the memory of a second model. Where calls change parameters, as models do that
    divide their weights once, attributes stay as the calls have left them: they may say so.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        modules = {id(module): module for root in roots for module in root.modules()}
        self._modules = list(modules.values())
        self._marks = _marks(self._modules)
        self._attributes = [as_it_is(vars(module)) for module in self._modules]
        # What gives a tensor, a collection or a generator its state back.
        self._saved = generators_as_they_are()
        self._seen: dict[int, Any] = {}
        with torch.no_grad():
            for module in self._modules:
                for name, value in vars(module).items():
                    if name.endswith("_hooks") and isinstance(value, dict):
                        self._saved.append(as_it_is(value))  # what watches goes on
                    elif name not in _KEPT:
                        self._visit(value)
        self._seen.clear()

    def restore(self) -> None:
        """Put everything back that has changed since; it can be called several times."""
        if self._marks == _marks(self._modules):
            for restore in self._attributes:
                restore()
        for restore in self._saved:
            restore()

    def _visit(self, value: Any, depth: int = 0) -> None:
        """Note a value and what it holds; ``depth`` objects lead to it. Modules are noted apart."""
        if id(value) in self._seen or isinstance(value, (nn.Module, nn.Parameter, type)):
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            if not is_lazy(value) and not value.is_meta:
                self._saved.append(partial(restore_values, value, value.detach().clone()))
        elif isinstance(value, torch.Generator):
            self._saved.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._saved.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, (dict, list, deque, set)):
            self._saved.append(as_it_is(value))
            self._visit(tuple(value.values() if isinstance(value, dict) else value), depth)
        elif isinstance(value, (tuple, frozenset)):
            for one in value:
                self._visit(one, depth)
        elif depth < _DEPTH and _is_record(value):
            self._visit(vars(value), depth + 1)


def _is_record(value: Any) -> bool:
    """Whether an object may hold state of a model, such as a cache."""
    kind = type(value)
    is_foreign = kind.__module__.partition(".")[0] in _FOREIGN | sys.stdlib_module_names
    is_namespace = kind.__module__ == "types" and kind.__name__ == "SimpleNamespace"
    has_names = isinstance(getattr(value, "__dict__", None), dict)
    return has_names and (is_namespace or not is_foreign)


def _marks(modules: Iterable[nn.Module]) -> list[tuple[str, int, int]]:
    """Return what differs where a parameter was replaced, or written to."""
    return [
        (name, id(parameter), -1 if parameter.is_inference() else parameter._version)
        if not is_lazy(parameter)
        else (name, id(parameter), -2)
        for module in modules
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]
