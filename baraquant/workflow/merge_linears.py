# SPDX-License-Identifier: BSD-3-Clause
"""``merge_linears_``: linear layers that read one input are computed by one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.inference.merged import LinearGroup, member_of
from .calibration.run import evaluating
from .report import Report
from .served import LINEAR_LAYERS
from .shared_inputs import FUSED, fused_paths
from .transaction import changes_model, in_one_transaction, keep
from .view import check_is_module, check_model

_MERGE, _SPLIT = "baraquant.merge_linears_", "baraquant.split_linears_"
# And names of models that no server fuses. Each call compares what the layers read.
_NAMES = (
    *FUSED,
    ("q", "k", "v"),
    ("to_q", "to_k", "to_v"),
    ("Wq", "Wk", "Wv"),
    ("q_lin", "k_lin", "v_lin"),
    ("linear_q", "linear_k", "linear_v"),
    ("query_proj", "key_proj", "value_proj"),
    ("query_key", "value"),
    ("k_head", "v_head"),
    ("sampling_offsets", "attention_weights"),
    ("q_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkvz", "in_proj_ba"),
    ("linear_x", "linear_y"),
    ("wi_0", "wi_1"),
)
_NEAR = 4  # inputs that are held while an example runs
_ALONE = "no other layer reads its input"
_UNNAMED = f"{_ALONE}, by the names; example_inputs shows what layers read"
_DIFFERENT = "the scheme, the bias or the scale of its input differs from those beside it"
_OTHER_CLASS = "its class adds to the layer that it is made of"


@changes_model
def merge_linears_(model: nn.Module, example_inputs: Any = None) -> Report:
    """Let one call compute the quantized linear layers that read one input, in eager mode.

    ``q_proj``, ``k_proj`` and ``v_proj`` read one tensor, and so do ``gate_proj`` and ``up_proj``.
    When the first of them is called, it quantizes the input once and computes the outputs of all by
    one op, and the others give theirs when they are called. For few rows on a GPU the op is one
    kernel. On a CPU it brings nothing. No bit of a result changes.

    Nothing else changes: each layer stays where it is, with its own weight, and the state dict is
    the same. Copies of the model have its groups. Files do not: call this again after
    :func:`baraquant.load_`. :func:`split_linears_` takes it back.

    The input is compared at each call, by its identity and version, and so are the tensors of the
    layers. A layer that is called with another input, after a write to it, or with other tensors
    than when its output was computed, computes it again. Layers compute by themselves where a
    gradient is asked for, under autocast, with hooks, under accelerate's offloading, on several
    processes, and in a compiled, exported, traced or scripted model; in graphs
    :class:`baraquant.graph.Fuse` merges. Layers that did not read the input of the others three
    times in a row become a group of their own.

    A group has layers of one kind: of the same class, widths, granularity, rotation and group size,
    with a bias each or none, and, where the input has a given scale or is smoothed, with equal
    numbers for it. The others stay as they are.

    Until all outputs of a group are asked for, the group keeps them, and the input.

    Note:
        A tensor that was made under ``torch.inference_mode()`` has no version. If a model writes
        into such an input in place between the calls of ``q_proj`` and ``k_proj``, the latter gives
        the output for the input before. With ``example_inputs`` such layers are found, and left
        out.

    Args:
        model: The model, with layers for inference. It may hold adapters of PEFT.
        example_inputs: What to call the model with, in evaluation mode and without gradients, to
            see which layers read one tensor, one after the other, or, if they are children of one
            module, with few layers in between: a tuple or list of arguments, a mapping of keyword
            arguments, or a tensor. None: they are found by the names that models of transformers,
            diffusers and Meta use, where they are children of one module.

    Returns:
        A report of the layers that are computed by one call, and of the other quantized linear
        layers, with the reasons; ``print`` shows it. A second call gives the same report.

    Raises:
        ValueError: There are no such layers, or the model is wrapped for several processes.
        TypeError: ``model`` is not a module or is scripted.

    Example:
        >>> names = "q_proj", "k_proj", "v_proj"
        >>> layers = {name: torch.nn.Linear(8, size) for name, size in zip(names, (8, 4, 4))}
        >>> model = torch.nn.ModuleDict(layers)
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> print(baraquant.merge_linears_(model))
        q_proj  one call with k_proj, v_proj
        k_proj  one call with q_proj, v_proj
        v_proj  one call with q_proj, k_proj
        3 changed, 0 left out
    """
    report = merge(model, example_inputs, _MERGE)
    if not report.changed:
        raise ValueError(
            f"{_MERGE}: expected a model with quantized linear layers that read one input, but "
            f"{type(model).__name__} has none{report.reasons()}"
        )
    return report


def merge(model: nn.Module, example_inputs: Any, caller: str) -> Report:
    """Merge what can be merged, which may be nothing."""
    check_model(model, caller)
    layers, left_out = dict[str, nn.Module](), dict[str, str]()
    for path, module in model.named_modules():
        if type(module) in LINEAR_LAYERS:
            layers[path] = module
        elif isinstance(module, LINEAR_LAYERS):
            left_out[path] = _OTHER_CLASS
    if example_inputs is None:
        found, lonely = _named(layers), _UNNAMED
    else:
        found, lonely = _observed(model, layers, example_inputs, caller), _ALONE
    left_out |= dict.fromkeys(layers, lonely)
    left_out |= {path: _DIFFERENT for group in found for path in group}
    groups = [alike for group in found for alike in _alike(group, layers)]
    _leave_groups(layers.values())
    for group in groups:
        LinearGroup.of([layers[path] for path in group])
    changed = {path: _about(path, group) for group in groups for path in group}
    ordered = {path: changed[path] for path in layers if path in changed}
    return Report(ordered, {path: why for path, why in left_out.items() if path not in changed})


@in_one_transaction
def split_linears_(model: nn.Module) -> Report:
    """Let each linear layer compute by itself again: undoes :func:`merge_linears_`.

    Args:
        model: The model.

    Returns:
        A report of the layers that were in groups; empty if there were none.

    Raises:
        TypeError: ``model`` is not a module.

    Example:
        >>> layers = {name: torch.nn.Linear(8, 8) for name in ("gate_proj", "up_proj")}
        >>> model = torch.nn.ModuleDict(layers)
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> _ = baraquant.merge_linears_(model)
        >>> baraquant.split_linears_(model).changed
        {'gate_proj': 'computes by itself', 'up_proj': 'computes by itself'}
    """
    check_is_module(model, _SPLIT)
    merged = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, LINEAR_LAYERS) and module._merged is not None
    }
    _leave_groups(merged.values())
    return Report(dict.fromkeys(merged, "computes by itself"))


def _leave_groups(layers: Iterable[nn.Module]) -> None:
    for layer in layers:
        keep(vars(layer))
        vars(layer).pop("_merged", None)


def _about(path: str, group: list[str]) -> str:
    """Return what a report says of a layer: the others, by what is not common to all paths."""
    parts = [one.split(".") for one in group]
    common = 0
    while len({tuple(part[: common + 1]) for part in parts}) == 1:
        common += 1
    names = {one: ".".join(part[common:]) for one, part in zip(group, parts, strict=True)}
    others = [name for one, name in names.items() if one != path]
    return f"one call with {', '.join(others)}"


def _alike(paths: list[str], layers: Mapping[str, nn.Module]) -> list[list[str]]:
    """Return the largest groups of at least two layers of one kind."""
    groups: list[list[str]] = []
    members = {path: member for path in paths if (member := member_of(layers[path])) is not None}
    for path, member in members.items():
        group = next((one for one in groups if members[one[0]].fits(member)), None)
        if group is None:
            groups.append([path])
        else:
            group.append(path)
    return [group for group in groups if len(group) > 1]


def _named(layers: Mapping[str, nn.Module]) -> list[list[str]]:
    """Return the paths of layers whose names say that they read one input."""
    at = {_name(path): path for path in layers}
    return [[at[path] for path in group] for group in fused_paths(at, _NAMES)]


def _name(path: str) -> str:
    """Return the path of a layer, without what PEFT adds for the layer that its own holds."""
    return path.removesuffix(".base_layer")


def _parent(path: str) -> str:
    return _name(path).rpartition(".")[0]


class _Readers:
    """Notes which layers read one tensor with no write in between.

    They are called one after the other, or they are children of one module and few are in between.
    """

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self._near: deque[tuple[Any, list[int], list[str]]] = deque(maxlen=_NEAR)

    def note(self, path: str, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of the layer at a path."""
        input = args[0] if args else kwargs.get("input")
        tensors = input if isinstance(input, tuple) else [input]
        versions = [
            one._version for one in tensors if isinstance(one, Tensor) and not one.is_inference()
        ]
        for read, then, group in self._near:
            is_near = group is self._near[-1][2] or _parent(group[0]) == _parent(path)
            if is_near and read is input and then == versions and path not in group:
                group.append(path)
                return
        self.groups.append([path])
        self._near.append((input, versions, self.groups[-1]))


def _observed(
    model: nn.Module, layers: Mapping[str, nn.Module], example_inputs: Any, caller: str
) -> list[list[str]]:
    """Return the paths of layers that read one tensor when the model is called."""
    readers = _Readers()
    with evaluating(model):
        for path, layer in layers.items():
            layer.register_forward_pre_hook(partial(readers.note, path), with_kwargs=True)
        with torch.no_grad():
            if isinstance(example_inputs, Mapping):
                model(**example_inputs)
            elif isinstance(example_inputs, (tuple, list)):
                model(*example_inputs)
            else:
                model(example_inputs)
    seen: set[str] = set()
    found = []
    for group in readers.groups:
        new = [path for path in group if path not in seen]
        seen.update(new)
        if len(new) > 1:
            found.append(new)
    return found
