# SPDX-License-Identifier: BSD-3-Clause
"""Swaps modules of a model in place: all chosen ones, or none if one of them fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..nn.training._quantizers import QuantizesWeight
from .layers import further_names, weights_of
from .report import (
    CHOSEN,
    FILTERED,
    ROOT,
    Report,
    float_weights,
    total_bytes,
    total_parameters,
)

FilterFn = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class Swap:
    """A new module and its description, which a function that makes modules may return."""

    module: nn.Module
    about: str


# The decision on a module: a new module, a reason to leave it out, or None to ignore it.
Decision = Swap | str | None
Decide = Callable[[nn.Module, str], Decision]


def replace_modules(
    model: nn.Module,
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None = None,
    is_candidate: Callable[[nn.Module], bool] = lambda module: True,
    *,
    keeps_ties: bool = False,
) -> Report:
    """Swap the modules of ``model`` for which ``decide`` returns a new one.

    Every decision comes before the first swap: if one raises an error, the model is unchanged, and
    the error has the module's path. The arguments and errors are those of :func:`choose_swaps`.
    """
    swaps, report = choose_swaps(
        model, caller, decide, filter_fn, is_candidate, keeps_ties=keeps_ties
    )
    return swap(model, swaps, report)


def choose_swaps(
    model: nn.Module,
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None = None,
    is_candidate: Callable[[nn.Module], bool] = lambda module: True,
    *,
    keeps_ties: bool = False,
) -> tuple[dict[int, nn.Module], Report]:
    """Return what :func:`replace_modules` would swap, by the ids of the old modules.

    Args:
        model: Left as it is.
        caller: The public function, for the messages.
        decide: Called once for each candidate that passes ``filter_fn``, and once for each module
            that is not a candidate. The children of a module that is not swapped are visited too.
        filter_fn: Says whether to swap a candidate; called for each of its paths.
        is_candidate: Says whether ``filter_fn`` applies to a module.
        keeps_ties: Whether to leave out a module whose weight is shared with a module that stays
            floating for a reason other than ``filter_fn``: the model would hold the weight twice.

    Raises:
        TypeError: ``model`` is not a module, or is scripted, or the filter is not a function.
        ValueError: The root or a layer that is compiled separately would be swapped; ``filter_fn``
            gives both answers for one shared module; the model is wrapped for several processes; or
            ``decide`` raises it.
    """
    check_model(model, caller)
    if filter_fn is not None and not callable(filter_fn):
        raise TypeError(
            f"{caller}: expected filter_fn to be a function of a module and its name, "
            f"but got {type(filter_fn).__name__}"
        )
    paths = paths_of(model)
    swaps: dict[int, nn.Module] = {}
    changed: dict[str, str] = {}
    left_out: dict[str, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        decision = _decision(module, paths[id(module)], caller, decide, filter_fn, is_candidate)
        if isinstance(decision, Swap):
            _check_place(module, model, paths[id(module)], caller)
            swaps[id(module)] = decision.module
            changed[name] = decision.about
            for child_name in further_names(module) & module._modules.keys():
                leave_out_parts(module._modules[child_name], f"{name}.{child_name}", name)
            return
        if decision is not None:
            left_out[name] = decision
            if isinstance(module, nn.MultiheadAttention):
                return  # it reads the weight of the layer in it, and does not call it
        for child_name, child in module._modules.items():
            if child is not None:
                visit(child, f"{name}.{child_name}" if name else child_name)

    def leave_out_parts(part: nn.Module | None, path: str, whole: str) -> None:
        for name, module in () if part is None else part.named_modules(prefix=path):
            if id(module) not in seen and weights_of(module):
                seen.add(id(module))
                left_out[name] = f"it is a part of {whole}, whose class has a forward of its own"

    seen: set[int] = set()
    visit(model, "")
    if keeps_ties:
        _leave_out_tied(model, swaps, changed, left_out)
    at = dict(model.named_modules())
    parameters: dict[str, int] = {}
    counted: set[int] = set()
    for name in (*changed, *left_out):
        whole = isinstance(at[name], nn.MultiheadAttention)
        parameters[name] = float_weights(at[name], counted, whole=whole)
    return swaps, Report(changed, left_out, parameters, total_parameters(model), total_bytes(model))


def _leave_out_tied(
    model: nn.Module,
    swaps: dict[int, nn.Module],
    changed: dict[str, str],
    left_out: dict[str, str],
) -> None:
    """Cancel the swaps of modules whose weight stays floating in another module."""
    floating: dict[int, str] = {}  # paths of those other modules, by the id of the parameter
    for name, module in model.named_modules():
        if id(module) in swaps or isinstance(module, QuantizesWeight):
            continue
        if left_out.get(name) not in (FILTERED, *CHOSEN):
            floating |= {id(p): name for p in module._parameters.values() if p is not None}
    for name, module in model.named_modules():
        other = floating.get(id(module._parameters.get("weight")))
        if id(module) in swaps and other is not None:
            del swaps[id(module)], changed[name]
            left_out[name] = f"its weight is also that of {other or ROOT}, which stays floating"


def check_model(model: Any, caller: str) -> None:
    """Check that modules can be swapped in a model at all."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected model to be a Module, but got {type(model).__name__}")
    for name, module in model.named_modules():
        where = f"{name}: " if name else ""
        wrapped = type(module).__name__
        if isinstance(module, (DataParallel, DistributedDataParallel)) or _is_sharded(module):
            raise ValueError(
                f"{caller}: {where}expected a model before it is wrapped for several processes, "
                f"but got {wrapped}"
            )
        _check_whole(module, caller, where)
        if _is_scripted(module):
            raise TypeError(
                f"{caller}: {where}expected a model in Python, but got {wrapped}; swap its "
                "modules first, then script it"
            )


def check_whole(model: nn.Module, caller: str) -> None:
    """Check that no layer lies on several processes."""
    for name, module in model.named_modules():
        _check_whole(module, caller, f"{name}: " if name else "")


def _check_whole(module: nn.Module, caller: str, where: str) -> None:
    if getattr(module, "_is_on_several_processes", False):
        raise ValueError(
            f"{caller}: {where}expected a model before it is split over processes, but got "
            f"{type(module).__name__}; gather its state (get_model_state_dict with "
            "full_state_dict=True), load it into a model that is whole, and go on with that"
        )


def take_over(new: nn.Module, old: nn.Module) -> None:
    """Give a new module the mode and the hooks of the one that it replaces."""
    new.train(old.training)
    for name, hooks in vars(old).items():
        if name.endswith("_hooks") and isinstance(hooks, dict) and not name.startswith("_state"):
            getattr(new, name).update(hooks)
    for name in ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"):
        getattr(new, name).update(getattr(old, name))
    new._forward_hooks_always_called.update(old._forward_hooks_always_called)
    new._is_full_backward_hook = old._is_full_backward_hook


def paths_of(model: nn.Module) -> dict[int, list[str]]:
    """Return all paths of each module, by its id."""
    paths: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(name)
    return paths


def _check_place(module: nn.Module, model: nn.Module, names: list[str], caller: str) -> None:
    """Check that a module can be replaced."""
    kind = type(module).__name__
    if module is model:
        raise ValueError(
            f"{caller}: expected a model that contains the layers to swap, but got a {kind} "
            "itself; wrap it in nn.Sequential"
        )
    for name in names:
        # torch.compile of a layer keeps a reference to the old layer.
        if name.split(".")[-1] == "_orig_mod":
            raise ValueError(
                f"{caller}: {name}: expected a {kind} that is not compiled by itself; compile it "
                "after it is swapped"
            )


def _decision(
    module: nn.Module,
    names: list[str],
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None,
    is_candidate: Callable[[nn.Module], bool],
) -> Decision:
    if filter_fn is not None and is_candidate(module):
        answers = [bool(filter_fn(module, name)) for name in names]
        if any(answers) and not all(answers):
            yes, no = names[answers.index(True)], names[answers.index(False)]
            raise ValueError(
                f"{caller}: {yes}: expected filter_fn to say the same of one shared module, but "
                f"it took {yes} and refused {no}"
            )
        if not all(answers):
            return FILTERED
    try:
        return decide(module, names[0])
    except (ValueError, TypeError) as error:
        where = f"{names[0]}: " if names[0] else ""
        raise type(error)(f"{caller}: {where}{error}") from error


def put(model: nn.Module, swaps: dict[int, nn.Module]) -> None:
    """Replace modules, which are given by their ids.

    Some models keep a layer in a plain list or attribute beside the registered one, and call that:
    they get the other module too.
    """
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and id(child) in swaps:
                parent._modules[name] = swaps[id(child)]
        for name, value in list(vars(parent).items()):
            holds_modules = type(value) in (list, tuple, dict) or isinstance(value, nn.Module)
            if holds_modules and name not in ("_modules", "_parameters", "_buffers"):
                vars(parent)[name] = _with_swaps(value, swaps)


def put_at(model: nn.Module, paths: list[str], new: nn.Module) -> None:
    """Put a module at all of its paths."""
    for path in paths:
        parent, _, leaf = path.rpartition(".")
        model.get_submodule(parent)._modules[leaf] = new


def _with_swaps(value: Any, swaps: dict[int, nn.Module], depth: int = 0) -> Any:
    """Return a value with the modules in it swapped; lists and dictionaries change in place."""
    if isinstance(value, nn.Module):
        return swaps.get(id(value), value)
    if depth > 3:
        return value
    if type(value) is list:
        value[:] = [_with_swaps(entry, swaps, depth + 1) for entry in value]
    elif type(value) is dict:
        value.update({key: _with_swaps(v, swaps, depth + 1) for key, v in value.items()})
    elif type(value) is tuple:
        new = tuple(_with_swaps(entry, swaps, depth + 1) for entry in value)
        is_same = all(one is other for one, other in zip(new, value, strict=True))
        return value if is_same else new
    return value


def swap(model: nn.Module, swaps: dict[int, nn.Module], report: Report) -> Report:
    """Replace modules, and return the report with the current size."""
    put(model, swaps)
    news = {id(module) for module in swaps.values()}
    for module in model.modules():
        if any(id(child) in news for child in module.modules()):
            _leave_fast_path(module)
    return replace(report, bytes_after=total_bytes(model))


def _leave_fast_path(module: nn.Module) -> None:
    """Make a Transformer call its layers.

    In evaluation PyTorch's encoder gives the weights of its layers to one fused kernel and bypasses
    their forward methods.
    """
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    elif isinstance(module, nn.TransformerEncoder):
        module.enable_nested_tensor = False
        module.use_nested_tensor = False


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def _is_sharded(module: nn.Module) -> bool:
    # The classes are found by name: importing them would initialize torch.distributed.
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__}
    return any(
        name.startswith("torch.distributed.fsdp") and name.endswith(("FSDPModule", "DataParallel"))
        for name in names
    )
