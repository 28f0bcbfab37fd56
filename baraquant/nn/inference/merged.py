# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers that read one input: one call computes all of them when the first is called.

The layers of a group keep their tensors and their places in the model. The first one that is called
computes the outputs of all, and each of the others gets its own when it is called with the same
input. What makes an output wrong is compared at each call: the input and its version, and the
layer's own tensors, their versions and options. Whatever differs is computed again, and whatever is
no plain call in eager mode (a graph that is made, a gradient, autocast, a subclass of tensors, a
hook) each layer computes by itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..shared.straight_through import makes_graph

# How often in a row layers of a group may read another input than the one before them, until they
# become a group of their own.
_PATIENCE = 3
_PLAIN = (Tensor, nn.Parameter)
_Tensors = tuple[Tensor | None, ...]


class State(NamedTuple):
    """What the output of a layer depends on, beside its input.

    Attributes:
        kind: Plain values. Layers of one kind may be computed by one call.
        inputs: What makes integers of an input; equal in layers that are computed by one call.
        own: The weight, its scale, the bias and what else belongs to the weight.
    """

    kind: tuple[Any, ...]
    inputs: _Tensors
    own: _Tensors

    def versions(self) -> list[int]:
        """Return a number for each tensor that changes when the tensor is written to."""
        return [_version(tensor) for tensor in (*self.inputs, *self.own)]

    def is_same(self, other: State) -> bool:
        """Whether another state has the same tensors and values."""
        pairs = zip((*self.inputs, *self.own), (*other.inputs, *other.own), strict=True)
        return self.kind == other.kind and all(a is b for a, b in pairs)


def state_of(layer: Any) -> State | None:
    """Return the state of a layer; None if one of its tensors is not where it is expected.

    Tools put subclasses, or tensors that are computed, in the place of parameters.
    """
    try:
        options, inputs, own = layer._merge_state()
    except KeyError:
        return None
    tensors = [tensor for tensor in (*inputs, *own) if tensor is not None]
    if any(type(tensor) not in _PLAIN for tensor in tensors):
        return None
    places = tuple(None if tensor is None else (tensor.dtype, tensor.device) for tensor in own)
    return State((type(layer), options, places), inputs, own)


class _Waiting(NamedTuple):
    """Outputs that were computed and not asked for yet.

    Attributes:
        input: The input.
        mark: What tells whether the input is as it was.
        outputs: By the place of a layer: its output, its state, and the versions of its tensors.
    """

    input: Any
    mark: tuple[Any, ...]
    outputs: dict[int, tuple[Tensor, State, list[int]]]


class LinearGroup:
    """Layers that read one input. Each holds ``(group, place)`` in its attribute ``_merged``.

    A group refers weakly to its layers, and a copy of one, by ``copy.deepcopy`` or from a file,
    refers to none: a layer enters it when it is called. Each thread has its own outputs.

    Args:
        size: The number of layers.
    """

    def __init__(self, size: int) -> None:
        self._members: list[weakref.ref[Any] | None] = [None] * size
        self._of_thread = threading.local()
        self._compared: dict[tuple[int, int], tuple[Tensor, Tensor, int, int, bool]] = {}
        self._misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return LinearGroup, (len(self._members),)

    @staticmethod
    def of(layers: Iterable[nn.Module]) -> None:
        """Put layers into a new group."""
        layers = list(layers)
        group = LinearGroup(len(layers))
        for place, layer in enumerate(layers):
            group._members[place] = weakref.ref(layer)
            vars(layer)["_merged"] = group, place

    def layers(self) -> list[nn.Module]:
        """Return the layers that are known."""
        return [found for one in self._members if one is not None and (found := one()) is not None]

    def output(self, layer: Any, place: int, input: Any) -> Tensor | None:
        """Return the output of a layer, or None if it computes by itself."""
        tensors = _tensors_of(input)
        if tensors is None or not self._holds(layer, place):
            return None
        state = _callable_state(layer)
        if state is None or _needs_gradient(tensors, state):
            return None
        waiting, mark = getattr(self._of_thread, "waiting", None), _mark(tensors)
        if waiting is not None:
            if waiting.input is input and waiting.mark == mark:
                found = waiting.outputs.pop(place, None)
                if not waiting.outputs:
                    self._of_thread.waiting, self._misses = None, 0
                if found is not None:
                    output, before, versions = found
                    is_same = before.is_same(state) and versions == state.versions()
                    return output if is_same else None
            else:
                self._of_thread.waiting = None
                if self._separates(waiting.outputs):
                    return merged_output(layer, input)
        return self._compute(layer, place, state, input, tensors, mark)

    def _holds(self, layer: Any, place: int) -> bool:
        """Whether a layer has a place, which it takes if no other one has it."""
        reference = self._members[place]
        known = None if reference is None else reference()
        if known is None:
            self._members[place] = weakref.ref(layer)
        return known is layer or known is None

    def _compute(
        self, layer: Any, place: int, state: State, input: Any, tensors: list[Tensor], mark: Any
    ) -> Tensor | None:
        """Compute the outputs of all layers of one kind; keep those of the others."""
        states = {place: state}
        for other, reference in enumerate(self._members):
            member = None if other == place or reference is None else reference()
            found = None if member is None else _callable_state(member)
            if found is not None and self._fits(state, found):
                if not _needs_gradient(tensors, found):
                    states[other] = found
        if len(states) == 1:
            return None
        outputs = layer._merged_outputs([one.own for one in states.values()], input)
        by_place = dict(zip(states, outputs, strict=True))
        own: Tensor = by_place.pop(place)
        kept = {p: (one, states[p], states[p].versions()) for p, one in by_place.items()}
        self._of_thread.waiting = _Waiting(input, mark, kept)
        return own

    def _fits(self, state: State, other: State) -> bool:
        """Whether one call may compute two layers."""
        pairs = zip(state.inputs, other.inputs, strict=True)
        return state.kind == other.kind and all(a is b or self._equal(a, b) for a, b in pairs)

    def _equal(self, a: Tensor | None, b: Tensor | None) -> bool:
        """Whether two tensors are equal. They are read once, and again when one has changed."""
        if a is None or b is None or a.is_inference() or b.is_inference():
            return False
        key, now = (id(a), id(b)), (a._version, b._version)
        known = self._compared.get(key)
        if known is None or known[0] is not a or known[1] is not b or known[2:4] != now:
            if a.is_cuda and torch.cuda.is_current_stream_capturing():
                return False  # it would have to wait for the device
            if len(self._compared) > len(self._members) ** 2:
                self._compared.clear()
            known = self._compared[key] = a, b, *now, equal(a, b)
        return known[4]

    def _separates(self, missed: Iterable[int]) -> bool:
        """Note that layers did not read an input; whether they became a group of their own."""
        self._misses += 1
        if self._misses < _PATIENCE:
            return False
        self._misses = 0
        others = set(missed)
        apart = [one for p in others if (one := self._members[p]) is not None]
        for p in others:
            self._members[p] = None
        LinearGroup.of(layer for one in apart if (layer := one()) is not None)
        return True


def merged_output(layer: Any, input: Any) -> Tensor | None:
    """Return the output of a layer in a group, or None if the layer computes by itself."""
    if torch.compiler.is_compiling() or not _is_eager():
        return None
    group, place = layer._merged
    output: Tensor | None = group.output(layer, place, input)
    return output


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same numbers, dtype and device, and have numbers at all."""
    alike = (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)
    return alike and not a.is_meta and bool(torch.equal(a, b))


def lists_of(owns: list[_Tensors]) -> list[list[Any]]:
    """Return the tensors of layers as lists with one of each layer; empty where they have none."""
    return [[] if column[0] is None else [*column] for column in zip(*owns, strict=True)]


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _tensors_of(input: Any) -> list[Tensor] | None:
    """Return the tensors of an input, if they are plain; of a QuantizedInput all three."""
    if type(input) is Tensor:
        return [input]
    if not isinstance(input, tuple):
        return None
    tensors = [one for one in input if isinstance(one, Tensor)]
    return tensors if tensors and all(type(one) is Tensor for one in tensors) else None


def _mark(tensors: list[Tensor]) -> tuple[Any, ...]:
    """Return what is another value if an input was written to, or another output is wanted."""
    first = tensors[0]
    stream = torch._C._cuda_getCurrentRawStream(first.device.index) if first.is_cuda else 0
    state = [(_version(one), one.data_ptr(), one.dtype, one.shape) for one in tensors]
    return stream, torch.is_inference_mode_enabled(), state


def _callable_state(layer: Any) -> State | None:
    """Return the state of a layer that may be computed when another one is called.

    Hooks may fetch its tensors, or change them; so may a forward that was replaced.
    """
    if layer._forward_pre_hooks or layer._forward_hooks or "forward" in vars(layer):
        return None
    return state_of(layer)


def _needs_gradient(tensors: list[Tensor], state: State) -> bool:
    if not torch.is_grad_enabled():
        return False
    given = (*tensors, *state.inputs, *state.own)
    return any(one is not None and one.requires_grad for one in given)


def _is_eager() -> bool:
    """Whether a call computes numbers, in the dtype of its input, and nothing records it."""
    return not (
        makes_graph()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
