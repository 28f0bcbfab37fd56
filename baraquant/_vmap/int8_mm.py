# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the integer matrix family: a batch of inputs is one more leading dimension.

The scales and zero points of the input may be batched with it. A batch of weights is refused. So is
any batch in the grouped ops, whose groups are rows of one matrix.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import call_in_order, refuse_others, sample_shape, to_front


def _of_batch(qparams: Tensor, dim: int | None, tokens: torch.Size, size: int) -> Tensor:
    """Return ``[size, *tokens, 1]`` from one value for all tokens of a sample, or one for each."""
    shape = sample_shape(qparams, dim)
    qparams = to_front(qparams, dim, size)
    if shape == tokens:
        return qparams.unsqueeze(-1)
    if shape == (*tokens, 1):
        return qparams
    if shape in ((), (1,)):
        return qparams.reshape(size, *(1,) * len(tokens), 1).expand(size, *tokens, 1)
    raise ValueError(
        "baraquant (in vmap): expected a scale or zero point to have 1 element (shape [] or [1]) "
        f"or one for each token (shape {list(tokens)}), but got shape {list(shape)}"
    )


def _int8_linear(given: dict[str, Any]) -> Tensor:
    """Call ``int8_linear`` with the arguments of ``smoothquant_linear``: the same formula."""
    names = ("input", "weight", "act_scale", "weight_scale", "bias")
    args, zero_point = [given.pop(name) for name in names], given.pop("act_zero_point")
    result: Tensor = torch.ops.baraquant.int8_linear(*args, input_zero_point=zero_point, **given)
    return result


def rule(op: torch._ops.OpOverload, batched: tuple[str, ...]) -> Callable[..., Any]:
    """Return the rule of an op; all of ``batched`` but the first are scales or zero points."""

    def of_batch(info: Any, dims: dict[str, Any], given: dict[str, Any]) -> tuple[Tensor, int]:
        refuse_others(op, dims, batched)
        if sample_shape(given["input"], dims["input"]) == ():
            raise ValueError(
                f"{op._schema.name} (in vmap): expected input to have at least 1 dimension, but "
                "got 0"
            )
        tokens = sample_shape(given["input"], dims["input"])[:-1]
        given["input"] = to_front(given["input"], dims["input"], info.batch_size)
        for name in batched[1:]:
            qparams, dim = given[name], dims[name]
            if qparams is not None and (dim is not None or qparams.shape not in ((), (1,))):
                given[name] = _of_batch(qparams, dim, tokens, info.batch_size)
        if dims.get("act_scale") is not None:  # one for each sample, which the op itself lacks
            return _int8_linear(given), 0
        return call_in_order(op, tuple(given.values())), 0

    return of_batch
