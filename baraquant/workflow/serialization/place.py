# SPDX-License-Identifier: BSD-3-Clause
"""Puts modules and tensors that were read into a model, after everything has been checked."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from ...nn._subclassed import with_forward_of
from ..layers import form_of, inside, layer_of, layer_with
from ..replace import Swap, replace_modules, take_over
from .meta import put_aliases, put_constants


def put(
    model: nn.Module,
    caller: str,
    modules: dict[str, nn.Module],
    values: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
) -> None:
    """Change the model. No step here can fail.

    Args:
        model: The model.
        caller: The public function, for messages.
        modules: The quantized modules, by the first path of the module that each replaces.
        values: All tensors that were read, by name; the same object for one with several names.
        constants: The values of buffers that are in no state dict.
    """
    before = registered(model)

    def decide(module: nn.Module, name: str) -> Swap | None:
        if name not in modules:
            return None
        form = form_of(modules[name])
        assert form is not None
        layer = layer_of(module) or layer_with(form)
        modules[name] = with_forward_of(modules[name], module, layer.base_of(module))
        take_over(modules[name], module)
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
    model.load_state_dict(rest, strict=False, assign=True)
    put_constants(model, constants, is_inside)
    after = registered(model)
    put_aliases(model, {id(old): after[name] for name, old in before.items() if name in after})


def registered(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers by all of their names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
