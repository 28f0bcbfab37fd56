# SPDX-License-Identifier: BSD-3-Clause
"""Replaces modules of a model in place, wherever the model refers to them.

A model may keep a layer in a plain list or set, as a bound method, in a partial, a closure, a hook
or an object of its own, and call that. All of it gets the new layer when the old one is replaced.
"""

from __future__ import annotations

import collections
import functools
import gc
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..nn.shared.subclassed import REGISTERED
from .layers import is_adapter
from .report import Report, completed
from .transaction import keep, refill, undo_by
from .view import Decide, FilterFn, ModelView, Swaps, choose_swaps


def replace_modules(
    model: nn.Module,
    caller: str,
    decide: Decide,
    filter_fn: FilterFn | None = None,
    is_candidate: Callable[[nn.Module], bool] = lambda module: True,
) -> Report:
    """Swap the modules of ``model`` for which ``decide`` returns a new one.

    The arguments and errors are those of :class:`ModelView` and :func:`choose_swaps`.
    """
    swaps, report = choose_swaps(ModelView(model, caller), caller, decide, filter_fn, is_candidate)
    return completed(swap(model, swaps, report), model)


def put(model: nn.Module, pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Replace the first module of each pair by the second, wherever the model refers to it."""
    pairs = list(pairs)
    if not pairs:
        return
    places = Places(model, [old for old, _ in pairs])
    for old, new in pairs:
        places.put(old, new)


def put_at(model: nn.Module, paths: list[str], new: nn.Module) -> None:
    """Put a module at all of its paths."""
    for path in paths:
        parent, _, leaf = path.rpartition(".")
        children = model.get_submodule(parent)._modules
        keep(children)
        children[leaf] = new


def swap(model: nn.Module, swaps: Swaps, report: Report) -> Report:
    """Replace modules, and return the report with what still refers to them; empties ``swaps``."""
    olds, news = ({path: pair[index] for path, pair in swaps.items()} for index in (0, 1))
    swaps.clear()
    return swap_in_turn(model, olds, [list(olds)], lambda paths: news, report)


def swap_in_turn(
    model: nn.Module,
    olds: dict[str, nn.Module],
    groups: Iterable[list[str]],
    make: Callable[[list[str]], dict[str, nn.Module]],
    report: Report,
) -> Report:
    """Make new modules and put them into the model, one group of paths after the other.

    A module is freed as soon as it is replaced, if the caller does not keep it: ``olds`` is
    emptied.
    """
    places = Places(model, olds.values())
    references = {path: weakref.ref(old) for path, old in olds.items()}
    news: list[nn.Module] = []
    for paths in groups:
        for path, new in make(paths).items():
            places.put(olds.pop(path), new)
            news.append(new)
    leave_fast_paths(model, news)
    follow(model)
    changed = dict(report.changed)
    for path, place in still_reached(model, references).items():
        changed[path] += f"; {place} still refers to the layer before"
    return replace(report, changed=changed)


# What switches off PyTorch's fused evaluation: in it an encoder gives the weights of its layers to
# one kernel, and bypasses their forward methods.
FAST_PATHS: dict[type[nn.Module], dict[str, Any]] = {
    nn.TransformerEncoderLayer: {"activation_relu_or_gelu": 0},
    nn.TransformerEncoder: {"enable_nested_tensor": False, "use_nested_tensor": False},
}


def leave_fast_paths(model: nn.Module, news: Iterable[nn.Module]) -> None:
    """Make Transformers call their layers where new ones are among these."""
    ids = {id(module) for module in news}
    for module in model.modules():
        for kind, values in FAST_PATHS.items():
            if isinstance(module, kind) and any(id(one) in ids for one in module.modules()):
                keep(vars(module))
                vars(module).update(values)


# What else changes where layers were replaced; baraquant.peft adds a function of the model.
FOLLOWERS: list[Callable[[nn.Module], None]] = []


def follow(model: nn.Module) -> None:
    """Let what stands over the layers of a model know those that are new."""
    if any(map(is_adapter, model.modules())):
        importlib.import_module("baraquant.peft")  # which adds its function
    for each in FOLLOWERS:
        each(model)


# ---- Where a model refers to its modules --------------------------------------------------------

_DEPTH = 8  # of objects in objects
# What holds no layer, and is met often.
_PLAIN = (str, bytes, int, float, bool, complex, type(None), type, types.ModuleType, Tensor)
# Objects of these packages hold no layers of a model, or are entered in a way of their own.
_FOREIGN = {*sys.stdlib_module_names, "torch", "numpy", "baraquant"}
_FOREIGN -= {"argparse", "collections", "types", "weakref", "_weakrefset", "__main__"}

_Swap = Callable[[nn.Module], nn.Module]


class Places:
    """Where a model has modules that will be replaced one after the other.

    It keeps neither the modules nor what refers to them: a module is freed as soon as it is
    replaced.
    """

    def __init__(self, model: nn.Module, modules: Iterable[nn.Module]) -> None:
        self._slots: dict[int, list[tuple[weakref.ref[nn.Module], str, bool]]] = {
            id(module): [] for module in modules
        }
        self._news: dict[int, tuple[weakref.ref[nn.Module], nn.Module]] = {}
        owners = list(model.modules())
        self._registered = {id(module) for module in owners}
        for owner in owners:
            self._note(owner)

    def put(self, old: nn.Module, new: nn.Module) -> None:
        """Put ``new`` at all places of ``old``."""
        slots = self._slots.pop(id(old), [])
        self._news[id(old)] = weakref.ref(old), new
        self._slots.setdefault(id(new), [])
        self._registered.add(id(new))
        walk = _Walk(self._new_of, self._registered)
        for reference, name, is_child in slots:
            owner = reference()
            if owner is not None:
                held = owner._modules if is_child else vars(owner)
                if name in held:
                    keep(held)
                    held[name] = walk.mapped(held[name])
        keep(vars(new), new._modules)
        for name in _own_names(new):
            vars(new)[name] = walk.mapped(vars(new)[name])
        for name, child in new._modules.items():  # it may have been replaced before
            new._modules[name] = None if child is None else self._new_of(child)
        self._slots[id(new)] += slots  # where it may be replaced again
        self._note(new)

    def _new_of(self, module: nn.Module) -> nn.Module:
        reference, new = self._news.get(id(module), (None, module))
        # The address of a module that was freed may be that of another one now.
        return new if reference is not None and reference() is module else module

    def _note(self, owner: nn.Module) -> None:
        """Note which attributes of a module lead to modules that will be replaced."""
        reference = weakref.ref(owner)
        for name, child in owner._modules.items():
            if id(child) in self._slots:
                self._slots[id(child)].append((reference, name, True))
        for name in _own_names(owner):
            found: set[int] = set()

            def look(module: nn.Module, found: set[int] = found) -> nn.Module:
                found.add(id(module))
                return module

            _Walk(look, self._registered).mapped(vars(owner)[name])
            for each in found & self._slots.keys():
                self._slots[each].append((reference, name, False))


def _own_names(module: nn.Module) -> list[str]:
    """Return the names of a module's attributes that may lead to other modules."""
    return [
        name
        for name, value in vars(module).items()
        if name not in REGISTERED and not isinstance(value, _PLAIN)
    ]


class _Walk:
    """Goes through a value, and replaces the modules in it: in place where that is possible.

    ``swap`` returns what takes the place of a module, or the module itself. The model's modules,
    whose ids are ``registered``, are not entered.
    """

    def __init__(self, swap: _Swap, registered: set[int]) -> None:
        self._swap, self._registered = swap, registered
        # Each value, so that no other one gets the same id, and what became of it.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def mapped(self, value: Any, depth: int = 0) -> Any:
        """Return the value with its modules replaced."""
        # Not isinstance: a proxy claims to be of the class of what it stands for.
        kind = type(value)
        if issubclass(kind, _PLAIN) or depth > _DEPTH:
            return value
        if issubclass(kind, nn.Module):
            new = self._swap(value)
            if new is not value or id(value) in self._registered:
                return new
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        self._seen[id(value)] = value, value
        new = self._within(value, kind, depth + 1)
        self._seen[id(value)] = value, new
        return new

    def _all_of(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.mapped(value, depth) for value in list(values)]

    def _within(self, value: Any, kind: type, depth: int) -> Any:
        for base, enter in _ENTER.items():
            if issubclass(kind, base):
                return enter(self, value, depth)
        if kind.__module__.partition(".")[0] not in _FOREIGN:  # its attributes may hold layers
            self._object(value, depth)
        return value

    def _object(self, value: Any, depth: int) -> Any:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._dict(attributes, depth)
        for base in type(value).__mro__:
            for slot in vars(base).values():
                if isinstance(slot, types.MemberDescriptorType):
                    try:
                        own = slot.__get__(value)
                    except AttributeError:  # it has not been set
                        continue
                    new = self.mapped(own, depth)
                    if new is not own:
                        undo_by(slot.__set__, value, own)
                        slot.__set__(value, new)
        return value

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        news = self._all_of(value.values(), depth)
        keys = self._all_of(value, depth)
        if _differs(news, value.values()) or _differs(keys, value):
            keep(value)
            refill(value, dict(zip(keys, news, strict=True)))
        return value

    def _collection(self, value: Any, depth: int) -> Any:
        news = self._all_of(value, depth)
        if _differs(news, value):
            keep(value)
            refill(value, set(news) if isinstance(value, set) else news)
        return value

    def _items(self, value: Any, depth: int) -> Any:
        items = self._all_of(value, depth)
        if not _differs(items, value):
            return value
        make = getattr(type(value), "_make", type(value))  # a named tuple has `_make`
        return make(items)

    def _proxy_of_mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        for own in gc.get_referents(value):  # the dictionary behind it
            self.mapped(own, depth)
        return value

    def _partial(self, value: functools.partial[Any], depth: int) -> Any:
        call, given = self.mapped(value.func, depth), self.mapped(value.args, depth)
        self._dict(value.keywords, depth)
        if call is not value.func or given is not value.args:
            set_state: Any = value.__setstate__  # type: ignore[attr-defined]
            rest = value.keywords, vars(value) or None
            undo_by(set_state, (value.func, value.args, *rest))
            set_state((call, given, *rest))
        return value

    def _method(self, value: Any, depth: int) -> Any:
        owner = value.__self__
        new = self.mapped(owner, depth)
        if new is owner:
            return value
        same = getattr(new, value.__name__, None)
        return same if callable(same) else types.MethodType(value.__func__, new)

    def _builtin_method(self, value: Any, depth: int) -> Any:
        self.mapped(value.__self__, depth)  # a dictionary's `get`: it changes in place
        return value

    def _function(self, value: types.FunctionType, depth: int) -> Any:
        for cell in value.__closure__ or ():
            try:
                own = cell.cell_contents
            except ValueError:  # it is empty
                continue
            new = self.mapped(own, depth)
            if new is not own:
                undo_by(setattr, cell, "cell_contents", own)
                cell.cell_contents = new
        if value.__defaults__:
            undo_by(setattr, value, "__defaults__", value.__defaults__)
            value.__defaults__ = self.mapped(value.__defaults__, depth)
        if value.__kwdefaults__:
            self._dict(value.__kwdefaults__, depth)
        self._dict(vars(value), depth)
        return value

    def _weak(self, value: Any, depth: int) -> Any:
        if isinstance(value, weakref.WeakMethod):
            target = value()
            new = target if target is None else self.mapped(target, depth)
            return value if new is target else weakref.WeakMethod(new)
        target = value()
        if target is None or not issubclass(type(target), nn.Module):
            return value
        new = self._swap(target)
        if new is target:
            return value
        if isinstance(value, weakref.KeyedRef):
            return weakref.KeyedRef(new, value.__callback__, value.key)
        return weakref.ref(new, value.__callback__)

    def _weak_proxy(self, value: Any, depth: int) -> Any:
        try:
            target = value.train.__self__  # a bound method has what the proxy stands for
        except (AttributeError, ReferenceError):
            return value
        if not issubclass(type(target), nn.Module):
            return value
        new = self._swap(target)
        return value if new is target else weakref.proxy(new)


def _differs(news: Iterable[Any], olds: Iterable[Any]) -> bool:
    return any(new is not old for new, old in zip(news, olds, strict=True))


# How the values of some classes are entered; the first that fits counts.
_ENTER: dict[Any, Callable[[_Walk, Any, int], Any]] = {
    weakref.ReferenceType: _Walk._weak,
    weakref.ProxyType: _Walk._weak_proxy,
    weakref.CallableProxyType: _Walk._weak_proxy,
    types.MethodType: _Walk._method,
    types.FunctionType: _Walk._function,
    (types.BuiltinMethodType, types.MethodWrapperType): _Walk._builtin_method,
    functools.partial: _Walk._partial,
    nn.Module: _Walk._object,
    dict: _Walk._dict,
    (list, collections.deque, set): _Walk._collection,
    (tuple, frozenset): _Walk._items,
    types.MappingProxyType: _Walk._proxy_of_mapping,
}


def still_reached(model: nn.Module, olds: Mapping[str, weakref.ref[nn.Module]]) -> dict[str, str]:
    """Return by which attribute of the model a replaced layer can still be reached, by its path.

    Python's collector knows what every object refers to, also those that :class:`Places` does not
    enter, such as generators and functions with a cache.
    """
    alive = {id(old): path for path, one in olds.items() if (old := one()) is not None}
    found: dict[str, str] = {}
    if not alive:
        return found
    ends = (type, types.ModuleType, types.FrameType, Tensor)
    seen = {id(module) for module in model.modules()}
    for name, owner in model.named_modules():
        for attribute in _own_names(owner):
            waiting = [vars(owner)[attribute]]
            while waiting:
                value = waiting.pop()
                if id(value) in seen or issubclass(type(value), ends):
                    continue
                seen.add(id(value))
                if id(value) in alive:
                    place = f"{name}.{attribute}" if name else attribute
                    found.setdefault(alive[id(value)], place)
                elif isinstance(value, types.FunctionType):  # and not its module's globals
                    waiting += [value.__closure__, value.__defaults__, vars(value)]
                    waiting.append(value.__kwdefaults__)
                else:
                    waiting += gc.get_referents(value)
    return found
