# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers that read one input: one call computes all of them when the first is called.

The layers of a group keep their tensors and their places in the model. The first one that is called
computes the outputs of all, and each of the others gets its own when it is called with the same
input. Whatever could make an output another one is compared at each call: the input and its
version, and the tensors of the layers and their versions. What differs is computed again. And what
is no plain call in eager mode (a graph that is made, a gradient, autocast, a subclass of tensors, a
hook) each layer computes by itself.

It has to cost less than the calls that it saves. So what layers have in common is compared once,
and again when a layer holds other tensors or was set an attribute.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

# How often in a row layers of a group may not read the input of those before them, until they are
# a group of their own.
_PATIENCE = 3
_PLAIN = (Tensor, nn.Parameter, type(None))

# Each look-up of a name counts.
_tracing, _dispatch_modes = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack
_is_autocast = torch._C._is_any_autocast_enabled
_transforms = torch._C._functorch.peek_interpreter_stack

Columns: TypeAlias = list[Any]  # of each tensor of a layer, those of some layers, or None
Slots: TypeAlias = list[tuple[dict[str, Any], str]]


class State(NamedTuple):
    """What the output of a layer depends on, beside its input.

    Attributes:
        kind: Plain values, equal in layers that one call may compute.
        own: Where the layer holds its weight, the scale, the bias and what else belongs to them.
        inputs: Where it holds the tensors by which an input becomes integers; they are equal in
            layers that one call may compute.
        is_fixed: Whether ``kind`` changes only where an attribute of the layer itself is set.
    """

    kind: tuple[Any, ...]
    own: Slots
    inputs: Slots
    is_fixed: bool = True


class _Member:
    """A layer of a group, with the tensors that it held when the group looked at it."""

    __slots__ = ("floats", "kind", "layer", "own", "places", "state", "versioned")

    def __init__(self, layer: Any) -> None:
        self.layer = weakref.ref(layer)
        self.state: State = layer._merge_state()
        slots = (*self.state.own, *self.state.inputs)
        self.places = [(held, name, held[name]) for held, name in slots]
        self.own = [held[name] for held, name in self.state.own]
        tensors = [tensor for _, _, tensor in self.places if tensor is not None]
        self.versioned = [tensor for tensor in tensors if not tensor.is_inference()]
        self.floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        signs = [None if one is None else (one.dtype, one.device) for one in self.own]
        self.kind = (type(layer), self.state.kind, signs)

    def is_plain(self) -> bool:
        """Whether its tensors are no subclasses, as those are that lie on several processes."""
        return all(type(tensor) in _PLAIN for _, _, tensor in self.places)

    def is_same(self, layer: Any) -> bool:
        """Whether this is the layer, and holds the same tensors."""
        if self.layer() is not layer or layer is None:
            return False
        for held, name, tensor in self.places:  # noqa: SIM110 - a generator takes twice as long
            if held.get(name) is not tensor:
                return False
        return True

    def versions(self) -> list[int]:
        """Return numbers that change when the tensors are written to."""
        return [tensor._version for tensor in self.versioned]

    def requires_grad(self) -> bool:
        """Whether a gradient is asked for."""
        return any(tensor.requires_grad for tensor in self.floats)

    def fits(self, other: _Member) -> bool:
        """Whether one call may compute two layers."""
        if self.kind != other.kind:
            return False
        pairs = zip(self.state.inputs, other.state.inputs, strict=True)
        return all(_equal(one[name], two[name]) for (one, name), (two, _) in pairs)


class _Plan:
    """Some layers that one call computes, by their places, as long as it holds.

    It holds the tensors of the layers, but not the layers.
    """

    def __init__(self, members: dict[int, _Member]) -> None:
        self.members = members
        owns = zip(*[member.own for member in members.values()], strict=True)
        self.columns: Columns = [None if column[0] is None else [*column] for column in owns]
        layers = [member.layer() for member in members.values()]
        self.hooks = [
            hooks
            for layer in layers
            if layer is not None
            for hooks in (layer._forward_pre_hooks, layer._forward_hooks)
        ]
        held = [one for m in members.values() for _, _, one in m.places if one is not None]
        self._tensors = held
        self._compared = [
            held[name]
            for m in members.values()
            for held, name in m.state.inputs
            if isinstance(held[name], Tensor) and not held[name].is_inference()
        ]
        self._state = self._now()

    def _now(self) -> tuple[list[int], list[int]]:
        # The data of a parameter may be swapped, for those of another dtype or device too.
        pointers = [tensor.data_ptr() for tensor in self._tensors]
        return pointers, [tensor._version for tensor in self._compared]

    def holds(self) -> bool:
        """Whether one call may still compute the layers."""
        for member in self.members.values():
            layer: Any = member.layer()
            if not member.is_same(layer):
                return False
            if not member.state.is_fixed and layer._merge_state().kind != member.state.kind:
                return False
        return self._now() == self._state


class _Waiting:
    """Outputs that were computed and not asked for yet.

    Args:
        input: The input.
        mark: What tells whether the input is as it was.
        outputs: By the place of a layer: its output, the layer, and the versions of its tensors.
    """

    __slots__ = ("input", "mark", "outputs")

    def __init__(self, input: Any, mark: Any, outputs: dict[int, tuple[Tensor, _Member, Any]]):
        self.input, self.mark, self.outputs = input, mark, outputs


class LinearGroup:
    """Layers that read one input. Each holds ``(group, place)`` in its attribute ``_merged``.

    A group refers weakly to its layers, and a copy of one, by ``copy.deepcopy`` or from a file,
    refers to none: a layer enters it when it is called, and computes by itself until all have
    entered. Each thread has its own outputs.

    Args:
        size: The number of layers.
    """

    def __init__(self, size: int) -> None:
        self._layers: list[weakref.ref[Any] | None] = [None] * size
        self._of_thread = threading.local()
        self._plan: _Plan | None = None
        self._misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return LinearGroup, (len(self._layers),)

    @staticmethod
    def of(layers: Sequence[nn.Module]) -> None:
        """Put layers into a new group; a single one into none."""
        group = LinearGroup(len(layers))
        for place, layer in enumerate(layers):
            group._layers[place] = weakref.ref(layer)
            vars(layer)["_merged"] = (group, place) if len(layers) > 1 else None

    def forget(self) -> None:
        """Look at the layers again at the next call."""
        self._plan = None

    def output(self, layer: Any, place: int, input: Any) -> Tensor | None:
        """Return the output of a layer, or None if it computes by itself."""
        mark = _mark_of(input, layer._integer_input)
        if mark is None:
            return None
        waiting = getattr(self._of_thread, "waiting", None)
        if waiting is not None:
            if waiting.input is input and waiting.mark == mark:
                found = waiting.outputs.pop(place, None)
                if not waiting.outputs:
                    self._of_thread.waiting, self._misses = None, 0
                if found is not None:
                    output, member, versions = found
                    return output if self._is_of(layer, member, versions) else None
            else:
                self._of_thread.waiting = None
                self._misses += 1
                if self._misses >= _PATIENCE:
                    self._separate(waiting.outputs)
                    return None
        plan = self._plan
        if plan is None or place not in plan.members or not plan.holds():
            plan = self._plan = self._planned(layer, place)
        if plan is None or any(plan.hooks) or not plan.members[place].is_same(layer):
            return None
        members = plan.members
        if torch.is_grad_enabled() and any(one.requires_grad() for one in members.values()):
            return None
        stamps = [member.versions() for member in members.values()]
        try:
            outputs: list[Tensor] = layer._merged_outputs(plan.columns, input)
        except (TypeError, ValueError, IndexError, NotImplementedError):
            return None  # the layer's own call says what is wrong with the input
        kept = dict(zip(members, zip(outputs, members.values(), stamps, strict=True), strict=True))
        own = kept.pop(place)[0]
        self._of_thread.waiting = _Waiting(input, mark, kept)
        return own

    def _is_of(self, layer: Any, member: _Member, versions: list[int]) -> bool:
        """Whether an output is the one that a layer would compute now."""
        if not member.is_same(layer) or member.versions() != versions:
            return False
        plan = self._plan
        if plan is None or member not in plan.members.values() or not member.state.is_fixed:
            now = member_of(layer)  # an attribute may have been set since
            if now is None or not now.fits(member):
                return False
        return not (torch.is_grad_enabled() and member.requires_grad())

    def _planned(self, layer: Any, place: int) -> _Plan | None:
        """Look at the layers. Those that do not fit this one become a group of their own."""
        reference = self._layers[place]
        if reference is None or reference() is None:
            self._layers[place] = weakref.ref(layer)
        known = [None if one is None else one() for one in self._layers]
        if None in self._layers or known[place] is not layer:
            return None
        layers = {other: one for other, one in enumerate(known) if one is not None}
        if len(layers) == 1:
            LinearGroup.of([layer])
            return None
        found = {other: member_of(one) for other, one in layers.items()}
        members = {other: one for other, one in found.items() if one is not None}
        own = members.get(place)
        if own is None or len(members) < 2 or _is_capturing(own):
            return None
        misfits = [other for other, member in members.items() if not own.fits(member)]
        if misfits:
            self._separate(misfits)
            return None
        return _Plan(members)

    def _separate(self, places: Iterable[int]) -> None:
        """Make two groups of this one."""
        parts: tuple[list[nn.Module], list[nn.Module]] = ([], [])
        for place, reference in enumerate(self._layers):
            layer = None if reference is None else reference()
            if layer is not None:
                parts[place in places].append(layer)
        for part in parts:
            LinearGroup.of(part)


def merged_output(layer: Any, input: Any) -> Tensor | None:
    """Return the output of a layer in a group, or None if the layer computes by itself."""
    if (
        torch.compiler.is_compiling()
        or _tracing() is not None
        or _dispatch_modes() > 0
        or _is_autocast()
        or _transforms() is not None
        or forward_ad._current_level >= 0
    ):
        return None
    merged, is_replaced = layer._merged, "forward" in vars(layer)
    if merged is None or is_replaced:
        return None
    output: Tensor | None = merged[0].output(layer, merged[1], input)
    return output


def member_of(layer: Any) -> _Member | None:
    """Return a layer as one of a group; None if it has to compute by itself.

    Tools put subclasses, or tensors that are computed, in the place of parameters. Those that keep
    tensors elsewhere replace ``forward``, as accelerate does.
    """
    if "forward" in vars(layer):
        return None
    try:
        member = _Member(layer)
    except KeyError:
        return None
    return member if member.is_plain() else None


def _mark_of(input: Any, integer_input: tuple[type[Any], ...] = ()) -> Any:
    """Return what is another value once an input was written to, or other outputs are wanted.

    None: it requires a gradient, or is neither a plain tensor nor, of such tensors, an instance of
    ``integer_input``.
    """
    if type(input) is Tensor:
        if input.layout != torch.strided or (input.requires_grad and torch.is_grad_enabled()):
            return None
        version = -1 if input.is_inference() else input._version
        stream = torch._C._cuda_getCurrentRawStream(input.device.index) if input.is_cuda else 0
        place = input.data_ptr(), input.shape, input.dtype
        return version, stream, torch.is_inference_mode_enabled(), place
    if not isinstance(input, integer_input):
        return None
    marks = [_mark_of(one) for one in input[:3]]
    return None if None in marks else marks


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is b:
        return True
    if a is None or b is None or a.is_inference() or b.is_inference():
        return False  # it may be written to, and nobody knows
    alike = (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)
    return alike and not a.is_meta and bool(torch.equal(a, b))


def _is_capturing(member: _Member) -> bool:
    """Whether a CUDA graph is captured, in which nothing can wait for a comparison."""
    is_on_gpu = any(tensor.is_cuda for tensor in member.floats)
    return is_on_gpu and torch.cuda.is_current_stream_capturing()
