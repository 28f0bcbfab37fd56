# SPDX-License-Identifier: BSD-3-Clause
"""Ops without batching rules: a batch is refused by name, not run in a slow loop."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

_NAMES = (
    "scaled_quantize_per_token",
    "scaled_quantize_transposed",
    "transpose_int8",
    "draw_random",
    "_integer_backward",
    "choose_int4_qparams",
    "quantize_int4",
    "expand_int4",
    "pack_int4",
)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"baraquant::{name}: torch.vmap is not implemented; call the op in a loop instead"
        )

    return refuse


def register(library: torch.library.Library) -> None:
    """Register the refusals."""
    for name in _NAMES:
        library.impl(name, _refusal(name), "FuncTorchBatchedDecomposition")
