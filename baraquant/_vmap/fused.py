# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the fused family: a batch of vectors is only a larger number of them.

Weights and biases that are batched too belong to a sample each: the op is called for one sample
after the other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import InDims, in_front, sample_shape, to_front


def _one_by_one(op: Callable[..., Any], size: int, in_dims: InDims, args: tuple[Any, ...]) -> Any:
    results = []
    for i in range(size):
        own = (a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))
        results.append(op(*own))
    if isinstance(results[0], Tensor):
        return torch.stack(results)
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _rule(name: str, rows: int, vectors: int) -> Callable[..., Any]:
    """Return the rule of an op whose first arguments are ``rows``, then ``vectors``."""

    def rule(info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
        op = getattr(torch.ops.baraquant, name)
        if sample_shape(args[0], in_dims[0]) == ():
            raise ValueError(
                "baraquant (in vmap): expected input to have at least 1 dimension, but got 0"
            )
        if any(d is not None for d in in_dims[rows : rows + vectors]):
            return in_front(_one_by_one(op, info.batch_size, in_dims, args))
        batch = [
            None if a is None else to_front(a, d, info.batch_size)
            for a, d in zip(args[:rows], in_dims[:rows], strict=True)
        ]
        return in_front(op(*batch, *args[rows:]))

    return rule


# How many rows and vectors an op takes, and the same op that quantizes.
_TAKEN = {"_norm": (1, 2), "_norm_residual": (2, 2), "_activation": (2, 0), "_hadamard": (1, 0)}
RULES: dict[str, Callable[..., Any]] = {
    name: _rule(name, *taken) for op, taken in _TAKEN.items() for name in (op, f"{op}_quantize")
}
