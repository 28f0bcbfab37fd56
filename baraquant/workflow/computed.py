# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose weight PyTorch computes of other parameters: weight_norm, spectral_norm, pruning.

A parametrization (:mod:`torch.nn.utils.parametrize`) computes a tensor whenever it is read, the
hooks of ``torch.nn.utils`` before each call of the layer. After training the computed weight is
quantized; in training the prepared layer goes on to compute it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from ..nn.training.quantizers import QuantizesWeight

# The attribute of a layer that says of what the float layer computes its weight.
_HOW = "_weight_computed_as"
_PARAMETRIZED = ("parametrizations.weight.original0", "parametrizations.weight.original1")
_HOOKED = ("weight_g", "weight_v")
_REGISTERED = ("_parameters", "_buffers", "_modules")


def is_computed(module: nn.Module) -> bool:
    """Whether parametrizations or hooks of PyTorch's compute the weight or the bias of a layer."""
    names = _names(module)
    return bool(names) and len(set(names)) == len(names) and {*names} <= {"weight", "bias"}


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
    for hook in _hooks(module).values():
        for name in _of_hook(module, hook):
            vars(new).pop(name, None)
            new._parameters.pop(name, None)
            new._buffers.pop(name, None)
    drop_hooks(new)
    new._modules.pop("parametrizations", None)
    vars(new)[_HOW] = _how(module)  # goes along when the layer is replaced, as other attributes
    tensors = {}
    with settled(module), torch.no_grad():
        for name in _names(module):
            tensors[name] = nn.Parameter(getattr(module, name).detach(), requires_grad=False)
    new._parameters = tensors | new._parameters
    return new


def compute_as(prepared: nn.Module, module: nn.Module) -> None:
    """Let a prepared layer compute its tensors as a float one does, of the same parameters.

    Args:
        prepared: Made of ``plain(module)``. The hooks are still to be taken over.
        module: The float layer.
    """
    for name in getattr(module, "parametrizations", ()):
        parametrize.register_parametrization(prepared, name, nn.Identity(), unsafe=True)
        prepared.parametrizations[name] = module.parametrizations[name]
    if parametrize.is_parametrized(module, "weight"):
        # In evaluation the rounded weight is read, as of other prepared layers.
        type(prepared).weight = QuantizesWeight.weight
    for hook in _hooks(module).values():
        del prepared._parameters[_name_of(hook)]
        for kind in _REGISTERED:
            given = getattr(module, kind)
            getattr(prepared, kind).update(
                {name: given[name] for name in _of_hook(module, hook) if name in given}
            )
        setattr(prepared, _name_of(hook), getattr(module, _name_of(hook)))
    prepared._held_dtype = None  # no single parameter has it


@contextmanager
def settled(module: nn.Module) -> Iterator[None]:
    """Let a layer have the tensors that it evaluates with, of its current parameters."""
    modes = {}
    if parametrize.is_parametrized(module):
        modes = {part: part.training for part in module.parametrizations.modules()}
    for part in modes:
        part.training = False  # spectral_norm takes a step of its iteration in training
    training = module.training
    module.training = False
    try:
        with torch.no_grad():
            for hook in _hooks(module).values():
                hook(module, None)
        module.training = training
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def source_names(module: nn.Module) -> set[str]:
    """Return what a float layer registers to compute its tensors; the layer's kind includes it."""
    of_hooks = {name for hook in _hooks(module).values() for name in _of_hook(module, hook)}
    return of_hooks | {"parametrizations"}


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
    parts = _names(module)
    if parts == ["weight"] and parametrize.is_parametrized(module):
        listed = list(module.parametrizations["weight"])
        if [type(one).__name__ for one in listed] == ["_WeightNorm"]:
            return _PARAMETRIZED, listed[0].dim
    if parts == ["weight"] and not parametrize.is_parametrized(module):
        (hook,) = _hooks(module).values()
        if type(hook).__name__ == "WeightNorm":
            return _HOOKED, hook.dim
    return (), 0


def drop_hooks(module: nn.Module) -> None:
    """Remove the hooks of PyTorch's that compute tensors, and leave the tensors."""
    for kind in ("_forward_pre_hooks", "_load_state_dict_pre_hooks", "_state_dict_hooks"):
        hooks = getattr(module, kind)
        for key in [key for key, hook in hooks.items() if _is_of_torch(hook)]:
            del hooks[key]


def _names(module: nn.Module) -> list[str]:
    """Return the names of the tensors that are computed."""
    parametrized = list(getattr(module, "parametrizations", ()))
    return [*parametrized, *(_name_of(hook) for hook in _hooks(module).values())]


def _hooks(module: nn.Module) -> dict[int, Any]:
    """Return PyTorch's hooks that compute tensors."""
    return {key: hook for key, hook in module._forward_pre_hooks.items() if _is_of_torch(hook)}


def _is_of_torch(hook: Any) -> bool:
    # By names: PyTorch hides these modules behind functions, and load hooks are bound or wrapped.
    hook = getattr(hook, "hook", hook)
    is_norm = type(hook).__module__ in (
        "torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm",
    )  # fmt: skip
    return is_norm or isinstance(hook, prune.BasePruningMethod)


def _name_of(hook: Any) -> str:
    name: str = hook._tensor_name if isinstance(hook, prune.BasePruningMethod) else hook.name
    return name


def _of_hook(module: nn.Module, hook: Any) -> list[str]:
    """Return the names of the tensors of which a hook computes its own."""
    name = _name_of(hook)
    ends = ("", "_g", "_v", "_u", "_orig", "_mask")
    return [name + end for end in ends]
