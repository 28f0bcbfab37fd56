# SPDX-License-Identifier: BSD-3-Clause
"""Copies of models in which some layers are others."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.shared.subclassed import with_forward_of
from ._layers import IntegerLayer


class RewrittenLinear(nn.Module):  # type: ignore[misc]
    """The base of layers that stand for a quantized linear layer in a copy."""

    bias: Tensor | None

    def __init__(self, layer: IntegerLayer) -> None:
        super().__init__()
        self._float = [layer.module]  # in a list, so that it is no submodule
        self.out_features, self.in_features = layer.qweight.shape
        self.register_buffer("bias", layer.bias)
        self.rotate = layer.rotate

    def rotated(self, input: Tensor) -> Tensor:
        """Return :func:`baraquant.ops.hadamard` of the input in plain arithmetic, bit for bit."""
        if self.rotate == 0:
            return input
        values, step = input.float(), 1
        while step < self.rotate:
            count = self.in_features // (2 * step)
            pairs = values.reshape(*input.shape[:-1], count, 2, step)
            first, second = pairs.select(-2, 0), pairs.select(-2, 1)
            values = torch.stack([first + second, first - second], -2)
            step *= 2
        return (values.reshape(input.shape) * (1 / math.sqrt(self.rotate))).to(input.dtype)

    @property
    def weight(self) -> Any:
        """The dequantized weight, for parents that read it."""
        return self._float[0].weight


def rewritten(
    model: nn.Module,
    layers: dict[str, IntegerLayer],
    replace: Callable[[str, nn.Module, IntegerLayer | None], nn.Module],
) -> nn.Module:
    """Return a copy of a model, in evaluation mode, that shares its tensors.

    Args:
        model: A converted model; it does not change.
        layers: Its integer layers.
        replace: ``replace(path, module, layer)`` returns what a module becomes in the copy: itself,
            if it stays. A module of several paths is asked for once. The new module gets the hooks
            of the old one, and the forward of a subclass of ``Linear``.
    """
    made: dict[int, nn.Module] = {}
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in made:
            continue
        new = made[id(module)] = replace(path, module, layers.get(path))
        if new is module:
            continue
        if path in layers:
            new = with_forward_of(new, module, nn.Linear)
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            getattr(new, name).update(getattr(module, name))
        memo[id(module)] = new
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied.eval()
