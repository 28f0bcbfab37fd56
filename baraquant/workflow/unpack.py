# SPDX-License-Identifier: BSD-3-Clause
"""Swaps PyTorch's attention and recurrent modules for modules of linear layers, and back.

PyTorch's modules pack their weights into parameters of their own. The modules of
:mod:`baraquant.nn` hold a linear layer for each product, which can be quantized. In the same way a
layer whose weight is computed, as by weight_norm, becomes one that has the computed weight.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import nn as bnn
from ..nn.training.quantizers import QuantizesWeight
from .layers import computed_names, computing_hooks, is_computing, names_of_hook, parents
from .replace import REGISTERED, leave_fast_paths, put, take_over
from .report import Report
from .transaction import keep, undone
from .view import Decision, FilterFn, ModelView, Swap, choose_swaps

# PyTorch's classes, and the classes they become, which have `why_not(module)` and
# `from_float(module)`.
UNPACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: bnn.MultiheadAttention,
    nn.LSTM: bnn.LSTM,
    nn.GRU: bnn.GRU,
    nn.RNN: bnn.RNN,
    nn.LSTMCell: bnn.LSTMCell,
    nn.GRUCell: bnn.GRUCell,
    nn.RNNCell: bnn.RNNCell,
}

# What the names of their own parameters and modules begin with.
_OWN = (
    "weight_",
    "bias_",
    "in_proj_",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "out_proj",
)


def is_packed(module: nn.Module) -> bool:
    """Whether a module packs the weights of its products into its own parameters."""
    return isinstance(module, tuple(UNPACKED))


def why_not_unpacked(module: nn.Module) -> str | None:
    """Return why one of PyTorch's modules cannot be unpacked; None if it can."""
    reason: str | None = _unpacked_kind(module).why_not(module)
    names = {*module._parameters, *module._buffers, *module._modules}
    further = sorted(name for name in names if not name.startswith(_OWN))
    if reason is None and further:
        return f"it has {', '.join(further)} beside its own weights"
    return reason


def _unpacked_kind(module: nn.Module) -> type[nn.Module]:
    return next(new for old, new in UNPACKED.items() if isinstance(module, old))


@dataclass
class Unpacked:
    """The modules that were unpacked.

    Attributes:
        view: The model as it is with them.
        given: The sizes of the model before.
        before: The original modules, by all their paths.
        news: The new modules, by the ids of the original ones.
    """

    view: ModelView
    given: Report = field(default_factory=Report)
    before: dict[str, nn.Module] = field(default_factory=dict)
    news: dict[int, nn.Module] = field(default_factory=dict)

    def whole_of(self, name: str) -> tuple[str, nn.Module] | None:
        """Return the path and the original module that contains a path; None if there is none."""
        for parent in parents(name):
            if parent in self.before:
                return parent, self.before[parent]
        return None

    def repack(self, swapped: set[str]) -> set[str]:
        """Restore the modules with no path in ``swapped``, and return their paths."""
        used = {whole[0] for name in swapped if (whole := self.whole_of(name)) is not None}
        used |= swapped & self.before.keys()  # a layer whose weight was computed
        used_ids = {id(self.before[path]) for path in used}
        back = {path for path, module in self.before.items() if id(module) not in used_ids}
        olds = {id(self.before[path]): self.before[path] for path in back}
        put(self.view.model, [(self.news[each], old) for each, old in olds.items()])
        for path in back:
            del self.before[path]
        if back:
            self.view.look()
        return back

    def release(self) -> None:
        """Let go of the original modules, after what was in them has been swapped.

        What stays floating gets memory of its own.
        """
        self.before.clear()
        for new in self.news.values():
            if isinstance(new, bnn.MultiheadAttention):
                new.own_memory_()
        self.news.clear()


def unpack_modules(
    model: nn.Module, caller: str, filter_fn: FilterFn | None = None, *, computed: bool = True
) -> Unpacked:
    """Unpack all modules of a model that can be unpacked and that a filter takes.

    :meth:`Unpacked.release` has to be called in the end, unless it is undone. With ``computed``,
    layers get the weights that parametrizations or hooks compute.
    """
    view = ModelView(model, caller)

    def is_candidate(module: nn.Module) -> bool:
        return is_packed(module) or is_to_compute(module)

    def is_to_compute(module: nn.Module) -> bool:
        seen = view.seen[id(module)]
        return computed and seen.is_computed and seen.layer is not None

    def decide(module: nn.Module, name: str) -> Decision:
        if name != "" and is_to_compute(module):
            return Swap(plain(module), name)
        if not is_packed(module) or name == "" or why_not_unpacked(module) is not None:
            return None
        kind = _unpacked_kind(module)
        new = getattr(kind, "sharing", kind.from_float)(module)
        take_over(new, module)
        return Swap(new, name)

    swaps, given = choose_swaps(view, decide, filter_fn, is_candidate)
    pairs, result = list(swaps.values()), Unpacked(view, given)
    for old, new in pairs:
        result.news[id(old)] = new
        result.before |= dict.fromkeys(view.paths(old), old)
    if pairs:
        put(model, pairs)
        leave_fast_paths(model, [new for _, new in pairs])
        view.look()
    return result


# ---- Layers whose weight PyTorch computes: weight_norm, spectral_norm, pruning ------------------

# The attribute of a layer that says of what the float layer computes its weight.
_HOW = "_weight_computed_as"
_PARAMETRIZED = ("parametrizations.weight.original0", "parametrizations.weight.original1")
_HOOKED = ("weight_g", "weight_v")


def plain(module: nn.Module) -> nn.Module:
    """Return a layer without parametrizations and hooks that has the tensors they compute.

    It shares everything else with the module, and stands for it in evaluation.
    """
    new: nn.Module = object.__new__(parametrize.type_before_parametrizations(module))
    own = vars(nn.Module())
    vars(new).update(
        (name, copy.copy(value) if name in own and isinstance(value, (dict, set)) else value)
        for name, value in vars(module).items()
    )
    for hook in computing_hooks(module).values():
        for name in names_of_hook(hook):
            vars(new).pop(name, None)
            new._parameters.pop(name, None)
            new._buffers.pop(name, None)
    drop_hooks(new)
    new._modules.pop("parametrizations", None)
    vars(new)[_HOW] = _how(module)  # goes along when the layer is replaced, as other attributes
    tensors = {}
    with settled(module), torch.no_grad():
        for name in computed_names(module):
            tensors[name] = nn.Parameter(getattr(module, name).detach(), requires_grad=False)
    new._parameters = tensors | new._parameters
    return new


def compute_as(prepared: nn.Module, module: nn.Module) -> None:
    """Let a prepared layer compute its tensors as a float one does, of the same parameters.

    It was made of ``plain(module)``. The hooks are still to be taken over.
    """
    for name in getattr(module, "parametrizations", ()):
        parametrize.register_parametrization(prepared, name, nn.Identity(), unsafe=True)
        prepared.parametrizations[name] = module.parametrizations[name]
    if parametrize.is_parametrized(module, "weight"):
        # In evaluation the rounded weight is read, as of other prepared layers.
        type(prepared).weight = QuantizesWeight.weight
    for hook in computing_hooks(module).values():
        names = names_of_hook(hook)
        name = names[0]
        del prepared._parameters[name]
        for kind in REGISTERED:
            given = getattr(module, kind)
            getattr(prepared, kind).update({each: given[each] for each in names if each in given})
        setattr(prepared, name, getattr(module, name))
    prepared._held_dtype = None  # no single parameter has it


@contextmanager
def settled(module: nn.Module) -> Iterator[None]:
    """Let a layer have the tensors that it evaluates with, of its current parameters."""
    training, parts = module.training, list[nn.Module]()
    if parametrize.is_parametrized(module):
        parts = list(module.parametrizations.modules())
    with undone():
        keep(*(vars(part) for part in (module, *parts)))
        for part in (module, *parts):
            part.training = False  # spectral_norm takes a step of its iteration in training
        with torch.no_grad():
            for hook in computing_hooks(module).values():
                hook(module, None)
        module.training = training
        yield


def names_in_files(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors of which the float model computes a converted layer's weight.

    They are ``weight`` where nothing computes it, and none where they are not known.
    """
    names: tuple[str, ...] = getattr(layer, _HOW, (("weight",), 0))[0]
    return names


def in_files(layer: nn.Module) -> dict[str, Tensor]:
    """Return these tensors for the weight of a layer, by name."""
    names, weight = names_in_files(layer), layer.weight.detach().clone()
    if len(names) == 1:
        return {names[0]: weight}
    norm = torch.norm_except_dim(weight, 2, getattr(layer, _HOW)[1])
    return dict(zip(names, (norm, weight), strict=True))


def _how(module: nn.Module) -> tuple[tuple[str, ...], int]:
    """Return the names of the tensors that make up a weight, if it is weight_norm, and its axis."""
    parts = computed_names(module)
    if parts == ["weight"] and parametrize.is_parametrized(module):
        listed = list(module.parametrizations["weight"])
        if [type(one).__name__ for one in listed] == ["_WeightNorm"]:
            return _PARAMETRIZED, listed[0].dim
    if parts == ["weight"] and not parametrize.is_parametrized(module):
        (hook,) = computing_hooks(module).values()
        if type(hook).__name__ == "WeightNorm":
            return _HOOKED, hook.dim
    return (), 0


def drop_hooks(module: nn.Module) -> None:
    """Remove the hooks of PyTorch's that compute tensors, and leave the tensors."""
    for kind in ("_forward_pre_hooks", "_load_state_dict_pre_hooks", "_state_dict_hooks"):
        hooks = getattr(module, kind)
        for key in [key for key, hook in hooks.items() if is_computing(hook)]:
            del hooks[key]
