# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose weight or bias PyTorch computes: weight_norm, spectral_norm, pruning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from ..nn.shared.subclassed import REGISTERED
from ..nn.training.quantizers import QuantizesWeight
from .transaction import keep, undone

# The attribute of a layer that says of what the float layer computes its weight.
_HOW = "_weight_computed_as"
_PARAMETRIZED = ("parametrizations.weight.original0", "parametrizations.weight.original1")
_HOOKED = ("weight_g", "weight_v")


def is_computed(module: nn.Module) -> bool:
    """Whether parametrizations or hooks of PyTorch's compute the weight or the bias of a layer."""
    names = computed_names(module)
    return bool(names) and len(set(names)) == len(names) and {*names} <= {"weight", "bias"}


def computed_names(module: nn.Module) -> list[str]:
    """Return the names of the tensors that parametrizations or hooks of PyTorch's compute."""
    parametrized = list(getattr(module, "parametrizations", ()))
    return [*parametrized, *(names_of_hook(hook)[0] for hook in computing_hooks(module))]


def computing_hooks(module: nn.Module) -> list[Any]:
    """Return PyTorch's hooks that compute tensors of a module."""
    return [hook for hook in module._forward_pre_hooks.values() if is_computing(hook)]


def is_computing(hook: Any) -> bool:
    """Whether a hook is one of PyTorch's that compute tensors."""
    # By names: PyTorch hides these modules behind functions, and load hooks are bound or wrapped.
    hook = getattr(hook, "hook", hook)
    is_norm = type(hook).__module__ in (
        "torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm",
    )  # fmt: skip
    return is_norm or isinstance(hook, prune.BasePruningMethod)


def names_of_hook(hook: Any) -> list[str]:
    """Return the name of the tensor that a hook computes, then of those that it may read."""
    name = hook._tensor_name if isinstance(hook, prune.BasePruningMethod) else hook.name
    return [name + end for end in ("", "_g", "_v", "_u", "_orig", "_mask")]


def names_of_hooks(module: nn.Module) -> set[str]:
    """Return the names of all tensors that PyTorch's hooks of a module compute, or may read."""
    return {name for hook in computing_hooks(module) for name in names_of_hook(hook)}


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
    for name in names_of_hooks(module):
        for held in (vars(new), new._parameters, new._buffers):
            held.pop(name, None)
    drop_hooks(new)
    new._modules.pop("parametrizations", None)
    vars(new)[_HOW] = _how(module)  # goes along when the layer is replaced, as other attributes
    names = computed_names(module)
    with settled(module), torch.no_grad():
        tensors = {n: nn.Parameter(getattr(module, n).detach(), False) for n in names}
    new._parameters = tensors | new._parameters
    return new


def compute_as(prepared: nn.Module, module: nn.Module) -> None:
    """Let a prepared layer compute its tensors as a float one does, of the same parameters.

    It was made of ``plain(module)``, and has the hooks of ``module``.
    """
    for name in getattr(module, "parametrizations", ()):
        parametrize.register_parametrization(prepared, name, nn.Identity(), unsafe=True)
        prepared.parametrizations[name] = module.parametrizations[name]
    if parametrize.is_parametrized(module, "weight"):
        # In evaluation the rounded weight is read, as of other prepared layers.
        type(prepared).weight = QuantizesWeight.weight
    for hook in computing_hooks(module):
        name, *_ = names = names_of_hook(hook)
        del prepared._parameters[name]
        for kind in REGISTERED:
            given = getattr(module, kind)
            getattr(prepared, kind).update({each: given[each] for each in names if each in given})
        setattr(prepared, name, getattr(module, name))
    prepared._held_dtype = None  # no single parameter has it
    prepared.train(module.training)


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
            for hook in computing_hooks(module):
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
        (hook,) = computing_hooks(module)
        if type(hook).__name__ == "WeightNorm":
            return _HOOKED, hook.dim
    return (), 0


def drop_hooks(module: nn.Module) -> None:
    """Remove the hooks of PyTorch's that compute tensors, and leave the tensors."""
    for kind in ("_forward_pre_hooks", "_load_state_dict_pre_hooks", "_state_dict_hooks"):
        hooks = getattr(module, kind)
        for key in [key for key, hook in hooks.items() if is_computing(hook)]:
            del hooks[key]
