# SPDX-License-Identifier: BSD-3-Clause
"""Runs a model on calibration data while watchers see the inputs of its modules."""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..._table import some
from .progress import ProgressBar
from .state import State

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
    """Observes the calls of one module."""

    def observe_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Observe one call: what ``forward`` was given, after pre-hooks, and what it returned."""


@runtime_checkable
class StateWatcher(CallWatcher, Protocol):
    """Observes the calls of one module, and what it holds before them."""

    def before_call(self) -> None:
        """Note what the module holds before a call."""


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
        """Check that the data can be gone through more than once.

        Args:
            times: How often, for the message: ``"2 times"``.

        Raises:
            ValueError: It is a generator or another iterator.
        """
        if runs_once(self.data):
            raise ValueError(
                f"{self.where}: expected calibration data that can be gone through {times} (a list"
                f", a DataLoader, a function of the model), but got a {type(self.data).__name__}"
            )


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
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        bar = stack.enter_context(ProgressBar(description, length(calibration), progress))
        for path, watcher in watchers.items():
            stack.enter_context(watching(modules[path], watcher))
        is_empty = True
        for _ in _run(model, calibration, where):
            is_empty = False
            bar.advance()
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
            stacklevel=3,
        )


def _read(tensors: Mapping[str, Tensor | None]) -> dict[str, int]:
    """Return the numbers in one-element tensors, with one wait for all of them."""
    given = {path: tensor for path, tensor in tensors.items() if tensor is not None}
    if not given:
        return {}
    device = next(iter(given.values())).device
    flat = [tensor.reshape(()).to(device, torch.int64) for tensor in given.values()]
    return dict(zip(given, torch.stack(flat).tolist(), strict=True))


def _run(model: nn.Module, calibration: Calibration, where: str) -> Iterator[None]:
    """Run the model; yield after each batch."""
    if isinstance(calibration, (Tensor, Mapping, str, bytes)):
        raise TypeError(
            f"{where}: expected calibration to be an iterable of batches, but got one "
            f"{type(calibration).__name__}; a single batch is a list of one"
        )
    if isinstance(calibration, Iterable):
        for index, batch in enumerate(calibration):
            try:
                _call(model, batch)
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


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, (tuple, list)):
        model(*batch)
    else:
        model(batch)


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


def runs_once(calibration: Calibration | None) -> bool:
    """Return whether the data can only be read once, like a generator."""
    return isinstance(calibration, Iterator)


@contextmanager
def watching(module: nn.Module, watcher: Watcher | CallWatcher) -> Iterator[None]:
    """Let ``watcher`` see each call of ``module``, or the first argument of each call."""
    handles = []
    if isinstance(watcher, CallWatcher):
        observe_call = watcher.observe_call

        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            observe_call(args, kwargs, out)

        # Before other hooks, which may change the output.
        handles.append(module.register_forward_hook(after, with_kwargs=True, prepend=True))
        if isinstance(watcher, StateWatcher):
            before_call = watcher.before_call
            handles.append(module.register_forward_pre_hook(lambda _, args: before_call()))
    else:
        observe = watcher.observe

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs.get("input")
            if isinstance(value, Tensor):
                observe(value)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
    state = State([model])
    modes = {module: module.training for module in model.modules()}
    # The fused path of nn.TransformerEncoderLayer would bypass the hooks of its children.
    fused = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes.items():
            module.training = training
        state.restore()
