# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the range family: the scales of each sample come from its own data."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .batch import PER_CHANNEL, InDims, Layout, check_axis, scale_per_sample, to_front

Results = tuple[Tensor, ...]


def _batched(
    op: Callable[..., Any], info: Any, in_dims: InDims, args: tuple[Any, ...]
) -> tuple[Any, Layout]:
    """Call the op once for all samples; return its results and their layout."""
    input, granularity, axis, *rest = args
    input = to_front(input, in_dims[0], info.batch_size)
    check_axis(input, granularity, axis)
    layout = scale_per_sample(granularity, axis, info.batch_size)
    return op(layout.fold(input), layout.granularity, layout.axis, *rest), layout


def _per_sample(qparams: Tensor, granularity: int, size: int) -> Tensor:
    """Return ``[batch, ...]`` from the scales or zero points of a layout."""
    return qparams.unflatten(0, (size, -1)) if granularity == PER_CHANNEL else qparams


def _choose_qparams(info: Any, in_dims: InDims, *args: Any) -> tuple[Results, tuple[int, ...]]:
    qparams, _ = _batched(torch.ops.baraquant._choose_qparams, info, in_dims, args)
    return tuple(_per_sample(t, args[1], info.batch_size) for t in qparams), (0, 0)


def _dynamic_quantize(info: Any, in_dims: InDims, *args: Any) -> tuple[Results, tuple[int, ...]]:
    op = torch.ops.baraquant._dynamic_quantize
    (output, *qparams), layout = _batched(op, info, in_dims, args)
    samples = (_per_sample(t, args[1], info.batch_size) for t in qparams)
    return (layout.unfold(output), *samples), (0, 0, 0)


def _dynamic_fake_quantize(info: Any, in_dims: InDims, *args: Any) -> tuple[Tensor, int]:
    op = torch.ops.baraquant._dynamic_fake_quantize
    output, layout = _batched(op, info, in_dims, args)
    return layout.unfold(output), 0


def _refused(name: str) -> Callable[..., NoReturn]:
    """Rule for an op that changes a running range in place."""

    def rule(info: Any, in_dims: InDims, *args: Any) -> NoReturn:
        raise NotImplementedError(
            f"baraquant::{name}: a running range is changed in place, which the samples of "
            "torch.vmap cannot share; observe outside vmap, or use dynamic_fake_quantize"
        )

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "_choose_qparams": _choose_qparams,
    "_dynamic_quantize": _dynamic_quantize,
    "_dynamic_fake_quantize": _dynamic_fake_quantize,
    "_observe_min_max_": _refused("observe_min_max_"),
    "_observe_qparams_": _refused("observe_fake_quantize"),
}
