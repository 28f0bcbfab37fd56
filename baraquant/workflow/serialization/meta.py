# SPDX-License-Identifier: BSD-3-Clause
"""Builds models without weights, and puts in what was read, after everything was checked.

A model that will be loaded from a file needs no values. On the meta device it takes no memory, but
it also lacks what its constructor computes: buffers that are in no state dict, such as rotary
frequencies or position ids, and plain tensors. A file holds these buffers. A model that a function
builds here has both, because only its parameters are on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...nn.shared.subclassed import successor
from ..layers import form_of, inside, layer_of, layer_with
from ..replace import replace_modules
from ..transaction import keep_all
from ..view import Swap


class Built:
    """A model, given or built by a function, and the devices where its parameters were created."""

    def __init__(self, model: nn.Module | Callable[[], nn.Module], caller: str) -> None:
        if not isinstance(model, nn.Module) and not callable(model):
            raise TypeError(
                f"{caller}: expected model to be a Module or a function that builds one, but got "
                f"{type(model).__name__}"
            )
        self._devices: dict[int, torch.device] = {}
        self.model = model if isinstance(model, nn.Module) else self._build(model)

    def _build(self, function: Callable[[], nn.Module]) -> nn.Module:
        # The caller's device, except meta, on which a constructor computes nothing.
        device = torch.get_default_device()
        with torch.device("cpu" if device.type == "meta" else device):
            try:
                with self._empty_parameters():
                    return function()
            except (RuntimeError, NotImplementedError):
                # The function reads the values of a parameter, or moves it: create them.
                self._devices.clear()
                return function()

    @contextmanager
    def _empty_parameters(self) -> Iterator[None]:
        """Put each parameter on the meta device as soon as a module gets it."""

        def empty(module: nn.Module, name: str, parameter: Any) -> Any:
            if type(parameter) is not nn.Parameter or parameter.is_meta:
                return None
            new = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            self._devices[id(new)] = parameter.device
            return new

        hook = register_module_parameter_registration_hook(empty)
        try:
            yield
        finally:
            hook.remove()

    def devices(self) -> dict[str, torch.device]:
        """Return the device of each tensor of the state dict; the CPU for the meta device."""
        where = {name: tensor.device for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            where[name] = self._devices.get(id(parameter), parameter.device)
        cpu = torch.device("cpu")
        return {name: cpu if device.type == "meta" else device for name, device in where.items()}


def other_buffers(model: nn.Module, is_inside: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the buffers that are in no state dict, except those within given modules."""
    persistent = model.state_dict().keys()
    return {
        name: buffer
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if name not in persistent and not is_inside(name)
    }


def check_alike(name: str, wanted: Tensor, stored: Tensor) -> None:
    """Check that a tensor of the file has the shape and the dtype of the model's."""
    if stored.shape != wanted.shape or stored.dtype != wanted.dtype:
        raise ValueError(
            f"{name}: expected {wanted.dtype} {list(wanted.shape)} as in the model, but the "
            f"file has {stored.dtype} {list(stored.shape)}"
        )


def check_constants(
    model: nn.Module, constants: Mapping[str, Tensor], is_inside: Callable[[str], bool], call: str
) -> None:
    """Check that the file holds what is on the meta device and in no state dict, outside of layers.

    ``call`` is one of the public function with a function that builds the model, for messages.

    Raises:
        ValueError: The file lacks a buffer or holds a different one, or a tensor is not a buffer.
    """
    instead = (
        "give a function that builds the model, so that everything is there that the constructor "
        f"computes: {call}"
    )
    for name, buffer in other_buffers(model, is_inside).items():
        if not buffer.is_meta:
            continue
        stored = constants.get(name)
        if stored is None:
            raise ValueError(
                f"{name}: expected a buffer with data, but it is on the meta device, and the file "
                f"has none; {instead}"
            )
        check_alike(name, buffer, stored)
    for name in _unregistered(model):
        if not is_inside(name):
            raise ValueError(
                f"{name}: expected a tensor with data, but it is on the meta device, and is no "
                f"buffer that a file could hold; {instead}"
            )


def _unregistered(model: nn.Module) -> Iterator[str]:
    """Yield the names of attributes with tensors on the meta device that are not registered.

    An attribute is a tensor, or a list, a tuple or a dict that holds it.
    Such a tensor may once have been a buffer: ``model.to(dtype)`` replaces the buffer, and leaves
    a second name of it as it is.
    """
    registered = {id(t) for t in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            values = list(value.values()) if isinstance(value, dict) else value
            listed = values if isinstance(values, (list, tuple)) else [values]
            tensors = (each for each in listed if isinstance(each, Tensor))
            if any(tensor.is_meta and id(tensor) not in registered for tensor in tensors):
                yield f"{path}.{name}" if path else name


def put_constants(
    model: nn.Module, constants: Mapping[str, Tensor], is_inside: Callable[[str], bool]
) -> None:
    """Set the buffers of :func:`other_buffers`; a buffer with several names stays one.

    Buffers that a constructor has computed are set too, because they may be random or were changed
    later. A buffer whose shape or dtype differs in the model is not changed.
    """
    made: dict[int, Tensor] = {}
    for name, buffer in other_buffers(model, is_inside).items():
        stored = constants.get(name)
        if stored is None or (stored.shape, stored.dtype) != (buffer.shape, buffer.dtype):
            continue
        path, _, own = name.rpartition(".")
        device = stored.device if buffer.is_meta else buffer.device
        new = made.setdefault(id(buffer), stored.to(device, copy=True))
        model.get_submodule(path)._buffers[own] = new


def put(
    model: nn.Module,
    caller: str,
    modules: dict[str, nn.Module],
    values: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
) -> None:
    """Change the model: modules by first paths, tensors, and buffers that are in no state dict.

    A tensor with several names is the same object in ``values``. What hooks raise undoes all of it.
    """
    before = registered(model)

    def decide(module: nn.Module, name: str) -> Swap | None:
        if name not in modules:
            return None
        form = form_of(modules[name])
        assert form is not None
        layer = layer_of(module) or layer_with(form)
        modules[name] = successor(modules[name], module, layer.base_of(module))
        return Swap(modules[name], "")

    replace_modules(model, caller, decide)
    quantized = {id(module) for module in modules.values()}
    is_inside = inside(
        {
            path: module
            for path, module in model.named_modules(remove_duplicate=False)
            if id(module) in quantized
        }
    )
    rest = {name: tensor for name, tensor in values.items() if not is_inside(name)}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    made: dict[int, nn.Parameter] = {}
    for name, tensor in rest.items():
        if name in parameters:
            grad = parameters[name].requires_grad
            rest[name] = made.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=grad))
    keep_all(model)
    model.load_state_dict(rest, strict=False, assign=True)
    put_constants(model, constants, is_inside)
    after = registered(model)
    news = {id(old): after[name] for name, old in before.items() if name in after}
    for module in model.modules():  # plain attributes that refer to a replaced tensor
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and id(value) in news:
                object.__setattr__(module, name, news[id(value)])


def registered(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers by all of their names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
