# SPDX-License-Identifier: BSD-3-Clause
"""Lets the public functions be called under ``torch.inference_mode()``.

A tensor that is created there can never be saved for a gradient, nor written to later. So models
are changed outside of that mode, and get copies of the inference tensors that they hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def makes_normal_tensors(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Return a function whose model, its first argument, has no inference tensors afterwards."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        is_enabled = torch.is_grad_enabled() or torch.is_inference_mode_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(is_enabled):
            model = args[0] if args else kwargs.get("model")
            if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
                replace_inference_tensors(model)
            return function(*args, **kwargs)

    return call


@torch.inference_mode(False)  # type: ignore[untyped-decorator]
def replace_inference_tensors(model: nn.Module) -> None:
    """Replace each inference tensor of a model by a copy; a tensor of several modules by one."""
    copies: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copy = tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            copies[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
        return copies[id(tensor)]

    olds: list[Any] = []  # whose ids are those keys
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is None or is_lazy(tensor):
                    continue
                if tensor.is_inference():
                    olds.append(tensor)
                    own[name] = copied(tensor)
