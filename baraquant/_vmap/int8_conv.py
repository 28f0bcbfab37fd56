# SPDX-License-Identifier: BSD-3-Clause
"""The batching rule of the convolution of integers: a batch of inputs is only more images."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import InDims, to_front
from .int8_mm import call_in_order, register_rule


def _rule(op: torch._ops.OpOverload) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]

    def rule(info: Any, in_dims: InDims, *args: Any) -> tuple[Tensor, int]:
        given = dict(zip(names, args, strict=True))
        # NB: a list of numbers has a list of None in place of None.
        dims = dict(zip(names, in_dims, strict=True))
        for name in names[1:]:
            if isinstance(dims[name], int):
                raise NotImplementedError(
                    f"{op._schema.name}: torch.vmap over {name} is not implemented; only input can "
                    "be batched. Call the op in a loop instead"
                )
        input = to_front(given["input"], dims["input"], info.batch_size)
        is_batched = input.dim() > given["weight"].dim()
        given["input"] = input.flatten(0, 1) if is_batched else input
        output = call_in_order(op, tuple(given.values()))
        return (output.unflatten(0, input.shape[:2]) if is_batched else output), 0

    return rule


def register(library: torch.library.Library) -> None:
    """Register the rule."""
    register_rule(library, "int8_conv", _rule)
