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


def _check(name: str, tensor: Tensor, dim: int | None) -> None:
    if sample_shape(tensor, dim) == ():
        raise ValueError(
            f"baraquant (in vmap): expected {name} to have at least 1 dimension, but got 0"
        )


def _one_by_one(op: Callable[..., Any], size: int, in_dims: InDims, args: tuple[Any, ...]) -> Any:
    results = []
    for i in range(size):
        own = (a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))
        results.append(op(*own))
    if isinstance(results[0], Tensor):
        return torch.stack(results)
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _rule(name: str, rows: int, vectors: int = 0) -> Callable[..., Any]:
    """Return the rule of an op whose first arguments are ``rows``, then ``vectors``."""

    def rule(info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
        op = getattr(torch.ops.baraquant, name)
        _check("input", args[0], in_dims[0])
        if any(d is not None for d in in_dims[rows : rows + vectors]):
            return in_front(_one_by_one(op, info.batch_size, in_dims, args))
        batch = [
            None if a is None else to_front(a, d, info.batch_size)
            for a, d in zip(args[:rows], in_dims[:rows], strict=True)
        ]
        return in_front(op(*batch, *args[rows:]))

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "_norm": _rule("_norm", 1, 2),
    "_norm_residual": _rule("_norm_residual", 2, 2),
    "_norm_quantize": _rule("_norm_quantize", 1, 2),
    "_norm_residual_quantize": _rule("_norm_residual_quantize", 2, 2),
    "_activation": _rule("_activation", 2),
    "_activation_quantize": _rule("_activation_quantize", 2),
    "_hadamard": _rule("_hadamard", 1),
    "_hadamard_quantize": _rule("_hadamard_quantize", 1),
}
