# SPDX-License-Identifier: BSD-3-Clause
"""What calls of a model may change, so that a run that only looks leaves it as it was.

Models keep state in buffers (a cache of keys, a position, running statistics), in attributes (a
recurrent state, a counter) and in the generators of random numbers.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_KEPT = ("_parameters", "_modules")  # what no call is expected to change
# A cache is an object that holds objects. What is deeper, or of these packages, may reach weights,
# optimizers and data.
_DEPTH = 2
_FOREIGN = {"accelerate", "baraquant", "deepspeed", "lightning", "pytorch_lightning", "torch"}


class State:
    """The state of modules as it is now: buffers, attributes, and random numbers.

    Tensors are copied, and so are collections and objects with what they hold. Parameters are not:
    that would take the memory of a second model. Where calls change parameters, as models do that
    divide their weights once, attributes stay as the calls have left them: they may say so.

    Args:
        roots: The modules, with all that are in them.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        modules = {id(module): module for root in roots for module in root.modules()}
        self._modules = list(modules.values())
        self._marks = _marks(self._modules)
        self._attributes = [(vars(module), dict(vars(module))) for module in self._modules]
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._collections: list[tuple[Any, Any]] = []
        self._generators = _global_generators()
        self._seen: dict[int, Any] = {}
        with torch.no_grad():
            for _, own in self._attributes:
                for name, value in own.items():
                    if name.endswith("_hooks") and isinstance(value, dict):
                        self._collections.append((value, dict(value)))  # what watches goes on
                    elif name not in _KEPT:
                        self._visit(value)
        self._seen.clear()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def restore(self) -> None:
        """Put everything back that has changed since; it can be called several times."""
        if self._marks == _marks(self._modules):
            for own, saved in self._attributes:
                _restore_dict(own, saved)
        for collection, saved in self._collections:
            if isinstance(collection, dict):
                _restore_dict(collection, saved)
            elif isinstance(collection, set):
                collection.intersection_update(saved)
                collection.update(saved)
            elif len(collection) != len(saved) or any(
                one is not other for one, other in zip(collection, saved, strict=True)
            ):
                collection.clear()
                collection.extend(saved)
        for tensor, copy in self._tensors:
            _restore_tensor(tensor, copy)
        for set_state, value in self._generators:
            set_state(value)

    def _visit(self, value: Any, depth: int = 0) -> None:
        """Note a value and what it holds; ``depth`` objects lead to it. Modules are noted apart."""
        if id(value) in self._seen or isinstance(value, (nn.Module, nn.Parameter, type)):
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            if not is_lazy(value) and not value.is_meta:
                self._tensors.append((value, value.detach().clone()))
        elif isinstance(value, torch.Generator):
            self._generators.append((value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._generators.append((value.setstate, value.getstate()))
        elif isinstance(value, dict):
            self._note(value, dict(value), list(value.values()), depth)
        elif isinstance(value, (list, deque)):
            self._note(value, list(value), value, depth)
        elif isinstance(value, set):
            self._note(value, set(value), value, depth)
        elif isinstance(value, (tuple, frozenset)):
            for one in value:
                self._visit(one, depth)
        elif depth < _DEPTH and _is_record(value):
            self._visit(vars(value), depth + 1)

    def _note(self, collection: Any, saved: Any, values: Iterable[Any], depth: int) -> None:
        self._collections.append((collection, saved))
        for one in values:
            self._visit(one, depth)


def _is_record(value: Any) -> bool:
    """Whether an object may hold state of a model, such as a cache."""
    kind = type(value)
    is_foreign = kind.__module__.partition(".")[0] in _FOREIGN | sys.stdlib_module_names
    is_namespace = kind.__module__ == "types" and kind.__name__ == "SimpleNamespace"
    has_names = isinstance(getattr(value, "__dict__", None), dict)
    return has_names and (is_namespace or not is_foreign)


def _marks(modules: Iterable[nn.Module]) -> list[tuple[str, int, int]]:
    """Return what differs where a parameter was replaced, or written to."""
    return [
        (name, id(parameter), -1 if parameter.is_inference() else parameter._version)
        if not is_lazy(parameter)
        else (name, id(parameter), -2)
        for module in modules
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _restore_dict(own: dict[Any, Any], saved: dict[Any, Any]) -> None:
    for key in [key for key in own if key not in saved]:
        del own[key]
    for key, value in saved.items():
        if key not in own or own[key] is not value:
            own[key] = value


def _restore_tensor(tensor: Tensor, copy: Tensor) -> None:
    """Write a copy back, unless the tensor has its bits: a graph may have kept the tensor."""
    if tensor.shape != copy.shape:
        tensor.data = copy.clone()
    elif not torch.equal(tensor, copy):
        with torch.inference_mode(tensor.is_inference()):
            tensor.copy_(copy)


def _global_generators() -> list[tuple[Callable[[Any], Any], Any]]:
    found: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found.append((numpy.random.set_state, numpy.random.get_state()))
    return found
