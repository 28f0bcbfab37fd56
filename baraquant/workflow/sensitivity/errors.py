# SPDX-License-Identifier: BSD-3-Clause
"""The errors that quantized layers make in their own outputs, or in the output of the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..calibration.errors import OutputErrors
from ..calibration.run import Calibration, calibrate
from ..calibration.state import State
from ..layers import weights_of

_CHUNK = 1 << 22  # elements of an output at a time, so that the temporaries stay small


class Errors(OutputErrors):
    """The squared errors of an output, and last the square of the output.

    Args:
        module: The float layer.
        layers: The layers to compare with it.
    """

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module]) -> None:
        super().__init__(len(layers) + 1, weights_of(module)[0].device)
        self._module, self._layers = module, layers
        # A layer of a user's own class may keep something from one call to the next.
        self.keeps_state = type(module).__module__.partition(".")[0] != "torch"

    def state(self) -> State:
        """Return what the layers hold now."""
        return State([self._module, *self._layers])

    def add_parts(self, index: int, got: Tensor, wanted: Tensor, is_finite: Tensor) -> None:
        """Add the squared error of one tensor; ``is_finite`` is what :meth:`begin` returned."""
        dtype = torch.float64 if wanted.dtype == torch.float64 else torch.float32
        parts = got.reshape(-1).split(_CHUNK), wanted.reshape(-1).split(_CHUNK)
        for one, other in zip(*parts, strict=True):
            self.add(index, one.to(dtype), other.to(dtype), is_finite)

    def relative(self) -> list[float]:
        """Return the relative error of each layer; infinite or NaN if it is not finite."""
        *errors, square = self.errors.tolist()
        return [0.0 if error == 0 else error / square if square else math.inf for error in errors]


class LayerErrors(Errors):
    """The errors of one layer's output; each call starts from what the float layer's held."""

    _before: State | None = None

    def before_call(self) -> None:
        """Note the state before a call."""
        if self.keeps_state:
            self._before = self.state()

    def observe_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Add the errors of one call of the float layer."""
        wanted = floats(output)
        if not wanted:
            return
        before, self._before = self._before, None
        after = None if before is None else self.state()
        is_finite = self.begin(*floats((args, kwargs)), *wanted)
        for index, layer in enumerate(self._layers):
            if before is not None:
                before.restore()
            # Hooks of the float layer have changed its input already, and its output not yet.
            got = floats(layer.forward(*args, **kwargs))
            for one, other in zip(got, wanted, strict=True):
                self.add_parts(index, one, other, is_finite)
        if after is not None:
            after.restore()
        for other in wanted:
            self.add_parts(len(self._layers), torch.zeros_like(other), other, is_finite)


class OutputChanges(Errors):
    """The errors of the model's output that one layer makes, quantized alone."""

    is_reached = False

    def add_call(
        self, call: Callable[[], list[Tensor]], wanted: list[Tensor], before: State
    ) -> None:
        """Add the errors of one call of the model.

        Args:
            call: Calls the model again with the same inputs, and returns its floating outputs.
            wanted: Those of the float model.
            before: The state in which the float model was called.
        """
        device = self.errors.device
        is_finite = self.begin(*wanted).to(device)
        for index, layer in enumerate(self._layers):
            before.restore()
            with _in_place_of(self._module, layer):
                got = call()
            for one, other in zip(got, wanted, strict=True):
                self.add_parts(index, one.to(device), other.to(device), is_finite)
        for other in wanted:
            self.add_parts(
                len(self._layers), torch.zeros_like(other).to(device), other.to(device), is_finite
            )


@contextmanager
def _in_place_of(module: nn.Module, layer: nn.Module) -> Iterator[None]:
    """Let a module compute what another one does; its hooks stay."""
    known = vars(module).get("forward")
    vars(module)["forward"] = layer.forward
    try:
        yield
    finally:
        if known is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = known


class _Model:
    """Watches the calls of the whole model, and repeats each with one layer quantized at a time."""

    def __init__(self, model: nn.Module, layers: Mapping[str, OutputChanges], caller: str) -> None:
        self._model, self._layers, self._caller = model, layers, caller
        self._depth = 0
        self._repeats = False
        self._inputs: Any = None
        self._state: State | None = None  # before the call
        self.skipped_batches: Tensor | None = None
        self.calls = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
            self._model.register_forward_hook(self._after),
        ]
        for one in self._layers.values():
            handles.append(one._module.register_forward_pre_hook(self._reach(one)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _reach(self, one: OutputChanges) -> Any:
        def reach(module: nn.Module, args: Any) -> None:
            one.is_reached = one.is_reached or not self._repeats

        return reach

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            for one in self._layers.values():
                one.is_reached = False
            self._inputs = _copied((args, kwargs))  # a call may change them, as a cache
            self._state = self._state_now()

    def _state_now(self) -> State:
        news = [one._layers for one in self._layers.values() if one.keeps_state]
        return State([self._model, *(new for layers in news for new in layers)])

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        wanted = floats(output)
        if not wanted:
            raise ValueError(
                f"{self._caller}: expected the model to return floating tensors with "
                f"of='output', but got {type(output).__name__}"
            )
        self.calls += 1
        inputs, self._inputs, self._repeats = self._inputs, None, True
        before, self._state, after = self._state, None, self._state_now()
        assert before is not None
        self._depth += 1

        def call() -> list[Tensor]:
            args, kwargs = _copied(inputs)
            return floats(self._model(*args, **kwargs))

        try:
            for one in self._layers.values():
                if one.is_reached:
                    one.add_call(call, wanted, before)
        finally:
            after.restore()
            self._depth -= 1
            self._repeats = False


def measure_output(
    model: nn.Module,
    calibration: Calibration,
    layers: Mapping[str, OutputChanges],
    progress: bool,
    caller: str,
) -> None:
    """Run the model on the data, and again for each layer and configuration in its place.

    Raises:
        ValueError: The data does not call the model itself, or it returns no floating tensor.
    """
    watcher = _Model(model, layers, caller)
    with watcher.watching():
        calibrate(
            model,
            calibration,
            {},
            description="errors of the output",
            progress=progress,
            where=caller,
            allows_unreached=True,
        )
    if watcher.calls == 0:
        raise ValueError(
            f"{caller}: expected the calibration function to call the model itself with "
            "of='output', whose output is compared"
        )


def _copied(inputs: Any) -> Any:
    try:
        return copy.deepcopy(inputs)
    except Exception:  # what cannot be copied is used as it is
        return inputs


def floats(value: Any) -> list[Tensor]:
    """Return the floating tensors with elements in an argument or an output."""
    return [
        leaf.detach()
        for leaf in tree_leaves(value)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 0
    ]
