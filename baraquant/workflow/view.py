# SPDX-License-Identifier: BSD-3-Clause
"""A model as the tools see it: walked once, and what they decide on each of its modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .._table import placed
from ..nn.training.quantizers import QuantizesWeight
from .computed import is_computed
from .layers import (
    Layer,
    further_names,
    layer_of,
    parts_of_adapters,
    stage_of,
    unknown_weights,
    weights_of,
)
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


@dataclass
class Seen:
    """What the walk through a model found of one module.

    Attributes:
        layer: Its kind, if it is a float layer that can be quantized.
        prepared_for: Its kind, if it is a prepared layer.
        is_converted: Whether it is a converted layer.
        rounds_weight: Whether it is a layer in training, of any class.
        weights: The ids of the parameters that quantization turns into integers.
        unknown: Why it has no quantized form, if it has weights.
        is_computed: Whether PyTorch computes its weight or its bias.
        paths: All of its paths.
    """

    layer: Layer | None
    prepared_for: Layer | None
    is_converted: bool
    rounds_weight: bool
    weights: list[int]
    unknown: str | None
    is_computed: bool
    paths: list[str] = field(default_factory=list)


class ModelView:
    """A model as one walk sees it: where each module is, of which kind, and what modules share.

    It keeps no module but the model, so that a module that is replaced is freed. It has to look
    again before it is asked about a module that was put into the model.

    Attributes:
        seen: What was found of each module, by its id, in the order of ``model.modules()``.
        ids: The id of the module at each path.
        holders: The ids of the modules that have a parameter, by the parameter's id.

    Raises:
        TypeError: ``model`` is not a module, or is scripted.
        ValueError: It is wrapped for several processes, or a layer lies on several.
    """

    def __init__(self, model: nn.Module, caller: str) -> None:
        check_model(model, caller)
        self.model = model
        self.look()

    def look(self) -> None:
        """Walk through the model."""
        self.seen: dict[int, Seen] = {}
        self.ids: dict[str, int] = {}
        self.holders: dict[int, list[int]] = {}
        added = parts_of_adapters(self.model)
        for path, module in self.model.named_modules(remove_duplicate=False):
            key = self.ids[path] = id(module)
            if key not in self.seen:
                prepared_for, form = stage_of(module)
                layer, unknown = layer_of(module), unknown_weights(module)
                if key in added:
                    layer, unknown = None, None if layer is None else "it is a part of an adapter"
                self.seen[key] = Seen(
                    layer,
                    prepared_for,
                    form is not None,
                    isinstance(module, QuantizesWeight),
                    [id(weight) for weight in weights_of(module)],
                    unknown,
                    is_computed(module),
                )
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self.holders.setdefault(id(parameter), []).append(key)
            self.seen[key].paths.append(path)

    def shares_weight(self, module: nn.Module) -> bool:
        """Whether other modules have a weight of a float layer too."""
        own = module._parameters.get("weight")
        weights = self.seen[id(module)].weights if own is None else [id(own)]
        return any(len(self.holders[weight]) > 1 for weight in weights)

    def sharing(self) -> set[int]:
        """Return the ids of the modules that share a parameter with another one."""
        return {one for held in self.holders.values() if len({*held}) > 1 for one in held}


def choose_swaps(
    view: ModelView,
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None = None,
    is_candidate: Callable[[nn.Module], bool] = lambda module: True,
    *,
    keeps_ties: bool = False,
) -> tuple[Swaps, Report]:
    """Return which modules would be swapped for which, and a report; nothing is swapped yet.

    Every decision is made before the first swap: an error, which has the module's path, leaves the
    model unchanged.

    Args:
        view: The model.
        caller: The public function, for the messages.
        decide: Called once for each candidate that passes ``filter_fn``, and once for each module
            that is not a candidate. The children of a module that is not swapped are visited too.
        filter_fn: Says whether to swap a candidate; called for each of its paths.
        is_candidate: Says whether ``filter_fn`` applies to a module.
        keeps_ties: Whether to leave out a module whose weight is shared with a module that stays
            floating for a reason other than ``filter_fn``: the model would hold the weight twice.

    Raises:
        TypeError: The filter is not a function, or ``decide`` raises it.
        ValueError: The root or a layer that is compiled separately would be swapped; ``filter_fn``
            gives both answers for one shared module; or ``decide`` raises it.
    """
    if filter_fn is not None and not callable(filter_fn):
        raise TypeError(
            f"{caller}: expected filter_fn to be a function of a module and its name, "
            f"but got {type(filter_fn).__name__}"
        )
    swaps: Swaps = {}
    changed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    told: dict[str, nn.Module] = {}
    seen: set[int] = set()
    waiting = [("", view.model)]  # no function that calls itself: its frame would keep the model
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        paths = view.seen[id(module)].paths
        decision = _decision(module, paths, caller, decide, filter_fn, is_candidate)
        if isinstance(decision, Swap):
            _check_place(module, view.model, paths, caller)
            swaps[name] = module, decision.module
            changed[name] = decision.about
            parts = _parts(module, name, seen)
            reason = f"it is a part of {name}, beside the weight of that layer"
            told |= {name: module} | parts
            left_out |= dict.fromkeys(parts, reason)
            continue
        if decision is not None:
            left_out[name], told[name] = decision, module
            if isinstance(module, nn.MultiheadAttention):
                continue  # it reads the weight of the layer in it, and does not call it
        waiting += [
            (f"{name}.{child_name}" if name else child_name, child)
            for child_name, child in reversed(module._modules.items())
            if child is not None
        ]
    if keeps_ties:
        _leave_out_tied(view, swaps, changed, left_out)
    parameters: dict[str, int] = {}
    products: dict[str, int] = {}
    counted: set[int] = set()
    for name in (*changed, *left_out):
        module = told[name]
        whole = isinstance(module, nn.MultiheadAttention)
        parameters[name] = float_weights(module, counted, whole=whole)
        products[name] = multiply_adds(module, whole=whole)
    total, size = total_parameters(view.model), total_bytes(view.model)
    return swaps, Report(changed, left_out, parameters, total, size, multiply_adds=products)


def _parts(module: nn.Module, name: str, seen: set[int]) -> dict[str, nn.Module]:
    """Return what with weights a layer has registered beside its own, by path."""
    parts: dict[str, nn.Module] = {}
    for child_name in further_names(module) & module._modules.keys():
        part = module._modules[child_name]
        prefix = f"{name}.{child_name}"
        for path, each in () if part is None else part.named_modules(prefix=prefix):
            if id(each) not in seen and weights_of(each):
                seen.add(id(each))
                parts[path] = each
    return parts


def _leave_out_tied(
    view: ModelView, swaps: Swaps, changed: dict[str, str], left_out: dict[str, str]
) -> None:
    """Cancel the swaps of modules whose weight stays floating in another module."""
    tied: dict[str, str] = {}  # the path of the other module
    for name, (module, _) in swaps.items():
        for key in view.holders.get(id(module._parameters.get("weight")), ()):
            other = view.seen[key].paths[0]
            was_asked = left_out.get(other) in (FILTERED, *CHOSEN)
            if other not in swaps and not view.seen[key].rounds_weight and not was_asked:
                tied[name] = other
    for name, other in tied.items():
        del swaps[name], changed[name]
        left_out[name] = f"its weight is also that of {other or ROOT}, which stays floating"


def paths_of(model: nn.Module) -> dict[int, list[str]]:
    """Return all paths of each module, by its id."""
    paths: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(name)
    return paths


def check_is_module(model: Any, caller: str) -> None:
    """Check that something is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected model to be a Module, but got {type(model).__name__}")


def check_model(model: Any, caller: str) -> None:
    """Check that modules can be swapped in a model at all."""
    check_is_module(model, caller)
    for path, module in model.named_modules():
        where = f"{path}: " if path else ""
        wrapped = type(module).__name__
        wrappers = nn.parallel.DataParallel, nn.parallel.DistributedDataParallel
        # The classes are found by name: importing them would initialize torch.distributed.
        is_sharded = any(
            kind.__module__.startswith("torch.distributed.fsdp")
            and kind.__qualname__.endswith(("FSDPModule", "DataParallel"))
            for kind in type(module).__mro__
        )
        if isinstance(module, wrappers) or is_sharded:
            raise ValueError(
                f"{caller}: {where}expected a model before it is wrapped for several processes, "
                f"but got {wrapped}"
            )
        check_whole(module, caller, where)
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{caller}: {where}expected a model in Python, but got {wrapped}; swap its "
                "modules first, then script it"
            )


def check_whole(module: nn.Module, caller: str, where: str) -> None:
    """Check that a module is no layer that lies on several processes."""
    if getattr(module, "_is_on_several_processes", False):
        raise ValueError(
            f"{caller}: {where}expected a model before it is split over processes, but got "
            f"{type(module).__name__}; gather its state (get_model_state_dict with "
            "full_state_dict=True), load it into a model that is whole, and go on with that"
        )


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
    with placed(caller, names[0]):
        return decide(module, names[0])
