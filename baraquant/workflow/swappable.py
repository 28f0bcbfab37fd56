# SPDX-License-Identifier: BSD-3-Clause
"""Whether a module of a known kind can be swapped: nothing has changed its weight or forward."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from ..nn._subclassed import computes_parent, extends_forward

# What the ops compute on.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def why_not(module: nn.Module, base: type[nn.Module]) -> str | None:
    """Return why a module of a known kind cannot be swapped; None if it can.

    Args:
        module: An instance of ``base``.
        base: The float class, such as ``nn.Linear``.
    """
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "its shape is not known yet: run a batch first"
    if parametrize.is_parametrized(module):
        return "its weight is computed by a parametrization"
    for method in ("forward", "_conv_forward", "__call__"):
        is_own = getattr(type(module), method, None) is not getattr(base, method, None)
        if is_own and not (method == "forward" and _is_known(module, base)):
            return f"{type(module).__name__} has a forward of its own"
    if getattr(type(module), "weight", None) is not getattr(base, "weight", None):
        return f"{type(module).__name__} has a weight of its own"
    if vars(module).keys() & {"forward", "_conv_forward", "_call_impl", "_wrapped_call_impl"}:
        return "its forward was replaced by another"
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed by a hook"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.dtype not in _DTYPES:
        return f"its weight is {weight.dtype}"
    return None


def _is_known(module: nn.Module, base: type[nn.Module]) -> bool:
    """Whether a subclass's forward computes its parent's, or calls it."""
    return computes_parent(module, base) or extends_forward(module, base)
