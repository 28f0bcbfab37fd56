# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the range family: the scales of each sample come from its own data."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .batch import PER_CHANNEL, InDims, check_axis, in_front, scale_per_sample, to_front


def _rule(name: str, outputs: int) -> Callable[..., Any]:
    """Rule for an op whose first results are shaped like the input; scales and the like follow."""
    op = getattr(torch.ops.baraquant, name)

    def rule(info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
        input, granularity, axis, *rest = args
        input = to_front(input, in_dims[0], info.batch_size)
        check_axis(input, granularity, axis)
        layout = scale_per_sample(granularity, axis, info.batch_size)
        found = op(layout.fold(input), layout.granularity, layout.axis, *rest)
        if isinstance(found, Tensor):
            return layout.unfold(found), 0
        qparams = (_per_sample(t, granularity, info.batch_size) for t in found[outputs:])
        return in_front((*map(layout.unfold, found[:outputs]), *qparams))

    return rule


def _per_sample(qparams: Tensor, granularity: int, size: int) -> Tensor:
    """Return ``[batch, ...]`` from the scales or zero points of a layout."""
    return qparams.unflatten(0, (size, -1)) if granularity == PER_CHANNEL else qparams


def _refused(name: str) -> Callable[..., NoReturn]:
    """Rule for an op that changes a running range in place."""

    def rule(info: Any, in_dims: InDims, *args: Any) -> NoReturn:
        raise NotImplementedError(
            f"baraquant::{name}: a running range is changed in place, which the samples of "
            "torch.vmap cannot share; observe outside vmap, or use dynamic_fake_quantize"
        )

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "_choose_qparams": _rule("_choose_qparams", 0),
    "_dynamic_quantize": _rule("_dynamic_quantize", 1),
    "_dynamic_fake_quantize": _rule("_dynamic_fake_quantize", 1),
    "_observe_min_max_": _refused("observe_min_max_"),
    "_observe_qparams_": _refused("observe_fake_quantize"),
}
