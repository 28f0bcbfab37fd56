# SPDX-License-Identifier: BSD-3-Clause
"""The batching rule of the convolution of integers: a batch of inputs is only more images."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import call_in_order, refuse_others, to_front


def rule(op: torch._ops.OpOverload, batched: tuple[str, ...]) -> Callable[..., Any]:
    """Return the rule of the op."""

    def of_batch(info: Any, dims: dict[str, Any], given: dict[str, Any]) -> tuple[Tensor, int]:
        refuse_others(op, dims, batched)
        input = to_front(given["input"], dims["input"], info.batch_size)
        is_batched = input.dim() > given["weight"].dim()
        given["input"] = input.flatten(0, 1) if is_batched else input
        output = call_in_order(op, tuple(given.values()))
        return (output.unflatten(0, input.shape[:2]) if is_batched else output), 0

    return of_batch
