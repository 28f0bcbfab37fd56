# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the range family: the scales of each sample come from its own data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import PER_CHANNEL, InDims, check_axis, in_front, refusal, scale_per_sample, to_front


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
        qparams = found[outputs:]
        if granularity == PER_CHANNEL:
            qparams = (t.unflatten(0, (info.batch_size, -1)) for t in qparams)
        return in_front((*map(layout.unfold, found[:outputs]), *qparams))

    return rule


_IN_PLACE = (
    "a running range is changed in place, which the samples of torch.vmap cannot share; observe "
    "outside vmap, or use dynamic_fake_quantize"
)
RULES: dict[str, Callable[..., Any]] = {
    "_choose_qparams": _rule("_choose_qparams", 0),
    "_dynamic_quantize": _rule("_dynamic_quantize", 1),
    "_dynamic_fake_quantize": _rule("_dynamic_fake_quantize", 1),
    "_observe_min_max_": refusal(f"observe_min_max_: {_IN_PLACE}"),
    "_observe_qparams_": refusal(f"observe_fake_quantize: {_IN_PLACE}"),
}
