# SPDX-License-Identifier: BSD-3-Clause
"""Swaps modules of a model in place: all chosen ones, or none if one of them fails."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..nn.training.quantizers import QuantizesWeight
from .arithmetic import arithmetic_of
from .layers import further_names, weights_of
from .references import Places, still_reached, user_attributes
from .report import (
    CHOSEN,
    FILTERED,
    ROOT,
    Report,
    float_weights,
    multiply_adds,
    total_bytes,
    total_parameters,
)

FilterFn = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class Swap:
    """A new module and its description, which a function that makes modules may return."""

    module: nn.Module
    about: str


# The old and the new module at each first path.
Swaps = dict[str, tuple[nn.Module, nn.Module]]
# The decision on a module: a new module, a reason to leave it out, or None to ignore it.
Decision = Swap | str | None
Decide = Callable[[nn.Module, str], Decision]


def replace_modules(
    model: nn.Module,
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None = None,
    is_candidate: Callable[[nn.Module], bool] = lambda module: True,
) -> Report:
    """Swap the modules of ``model`` for which ``decide`` returns a new one.

    Every decision comes before the first swap: if one raises an error, the model is unchanged, and
    the error has the module's path. The arguments and errors are those of :func:`choose_swaps`.
    """
    swaps, report = choose_swaps(model, caller, decide, filter_fn, is_candidate)
    return swap(model, swaps, report)


def choose_swaps(
    model: nn.Module,
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None = None,
    is_candidate: Callable[[nn.Module], bool] = lambda module: True,
    *,
    keeps_ties: bool = False,
) -> tuple[Swaps, Report]:
    """Return what :func:`replace_modules` would swap.

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
    swaps: Swaps = {}
    changed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    seen: set[int] = set()
    waiting = [("", model)]  # no function that calls itself: its frame would keep the model
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        decision = _decision(module, paths[id(module)], caller, decide, filter_fn, is_candidate)
        if isinstance(decision, Swap):
            _check_place(module, model, paths[id(module)], caller)
            swaps[name] = module, decision.module
            changed[name] = decision.about
            left_out |= _parts_left_out(module, name, seen)
            continue
        if decision is not None:
            left_out[name] = decision
            if isinstance(module, nn.MultiheadAttention):
                continue  # it reads the weight of the layer in it, and does not call it
        waiting += [
            (f"{name}.{child_name}" if name else child_name, child)
            for child_name, child in reversed(module._modules.items())
            if child is not None
        ]
    if keeps_ties:
        _leave_out_tied(model, swaps, changed, left_out)
    at = dict(model.named_modules())
    parameters: dict[str, int] = {}
    products: dict[str, int] = {}
    counted: set[int] = set()
    for name in (*changed, *left_out):
        whole = isinstance(at[name], nn.MultiheadAttention)
        parameters[name] = float_weights(at[name], counted, whole=whole)
        products[name] = multiply_adds(at[name], whole=whole)
    total, size = total_parameters(model), total_bytes(model)
    return swaps, Report(changed, left_out, parameters, total, size, multiply_adds=products)


def _parts_left_out(module: nn.Module, name: str, seen: set[int]) -> dict[str, str]:
    """Return why what a layer has registered beside its weight stays floating."""
    left_out: dict[str, str] = {}
    for child_name in further_names(module) & module._modules.keys():
        part = module._modules[child_name]
        prefix = f"{name}.{child_name}"
        for path, each in () if part is None else part.named_modules(prefix=prefix):
            if id(each) not in seen and weights_of(each):
                seen.add(id(each))
                left_out[path] = f"it is a part of {name}, beside the weight of that layer"
    return left_out


def _leave_out_tied(
    model: nn.Module, swaps: Swaps, changed: dict[str, str], left_out: dict[str, str]
) -> None:
    """Cancel the swaps of modules whose weight stays floating in another module."""
    floating: dict[int, str] = {}  # paths of those other modules, by the id of the parameter
    for name, module in model.named_modules():
        if name in swaps or isinstance(module, QuantizesWeight):
            continue
        if left_out.get(name) not in (FILTERED, *CHOSEN):
            floating |= {id(p): name for p in module._parameters.values() if p is not None}
    for name, module in model.named_modules():
        other = floating.get(id(module._parameters.get("weight")))
        if name in swaps and other is not None:
            del swaps[name], changed[name]
            left_out[name] = f"its weight is also that of {other or ROOT}, which stays floating"


def check_is_module(model: Any, caller: str) -> None:
    """Check that something is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected model to be a Module, but got {type(model).__name__}")


def check_model(model: Any, caller: str) -> None:
    """Check that modules can be swapped in a model at all."""
    check_is_module(model, caller)
    wrappers = nn.parallel.DataParallel, nn.parallel.DistributedDataParallel
    for name, module in model.named_modules():
        where = f"{name}: " if name else ""
        wrapped = type(module).__name__
        if isinstance(module, wrappers) or _is_sharded(module):
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
    """Give a new module the mode, the hooks and the user's attributes of the one it replaces."""
    new.train(old.training)
    for name, hooks in vars(old).items():
        if name.endswith("_hooks") and isinstance(hooks, dict) and not name.startswith("_state"):
            getattr(new, name).update(hooks)
    for name in ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"):
        getattr(new, name).update(getattr(old, name))
    new._forward_hooks_always_called.update(old._forward_hooks_always_called)
    new._is_full_backward_hook = old._is_full_backward_hook
    vars(new).update(user_attributes(old, new))


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
        # torch.compile of a layer keeps a reference to the old layer, and so does layer.compile().
        if name.split(".")[-1] == "_orig_mod" or module._compiled_call_impl is not None:
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


def put(model: nn.Module, pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Replace the first module of each pair by the second, wherever the model refers to it."""
    pairs = list(pairs)
    places = Places(model, [old for old, _ in pairs])
    for old, new in pairs:
        places.put(old, new)


def put_at(model: nn.Module, paths: list[str], new: nn.Module) -> None:
    """Put a module at all of its paths."""
    for path in paths:
        parent, _, leaf = path.rpartition(".")
        model.get_submodule(parent)._modules[leaf] = new


def swap(model: nn.Module, swaps: Swaps, report: Report) -> Report:
    """Replace modules, and return the report with the current size; empties ``swaps``."""
    olds = {path: weakref.ref(old) for path, (old, _) in swaps.items()}
    news = [new for _, new in swaps.values()]
    put(model, swaps.values())
    swaps.clear()
    return finished(model, olds, news, report)


def swap_in_turn(
    model: nn.Module,
    olds: dict[str, nn.Module],
    groups: Iterable[list[str]],
    make: Callable[[list[str]], dict[str, nn.Module]],
    report: Report,
) -> Report:
    """Make new modules and put them into the model, one group after the other.

    A module is freed as soon as it is replaced, if the caller does not keep it.

    Args:
        model: The model.
        olds: The modules to replace, by path. They are taken out.
        groups: The paths of those that are made together.
        make: Returns the new modules of a group by their paths.
        report: What is changed.
    """
    places = Places(model, olds.values())
    references = {path: weakref.ref(old) for path, old in olds.items()}
    news: list[nn.Module] = []
    for paths in groups:
        for path, new in make(paths).items():
            places.put(olds.pop(path), new)
            news.append(new)
    return finished(model, references, news, report)


def finished(
    model: nn.Module,
    olds: Mapping[str, weakref.ref[nn.Module]],
    news: Iterable[nn.Module],
    report: Report,
) -> Report:
    """Return the report of a model whose modules have been replaced.

    Args:
        model: The model.
        olds: The modules that were replaced, by path.
        news: What has taken their places.
        report: A report of them.
    """
    leave_fast_paths(model, news)
    changed = dict(report.changed)
    for path, place in still_reached(model, olds).items():
        changed[path] += f"; {place} still refers to the layer before"
    at = dict(model.named_modules())
    computes = {path: how for path in olds if (how := arithmetic_of(at[path])) is not None}
    return replace(report, changed=changed, bytes_after=total_bytes(model), computes=computes)


def leave_fast_paths(model: nn.Module, news: Iterable[nn.Module]) -> None:
    """Make Transformers call their layers where new ones are among these.

    In evaluation PyTorch's encoder gives the weights of its layers to one fused kernel and bypasses
    their forward methods.
    """
    ids = {id(module) for module in news}
    for module in model.modules():
        kinds = (nn.TransformerEncoderLayer, nn.TransformerEncoder)
        if not isinstance(module, kinds) or all(id(one) not in ids for one in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        else:
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
