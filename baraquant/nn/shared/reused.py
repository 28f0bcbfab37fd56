# SPDX-License-Identifier: BSD-3-Clause
"""What several layers compute of one tensor, computed once in eager mode.

The norms of :mod:`baraquant.nn.fused` return tensors that are ``reusable``: the first layer that
quantizes one leaves the integers for those that read it too, such as ``q``, ``k`` and ``v``. They
are kept as long as the tensor, and do not count once it was written in place. A graph needs none
of this: :class:`baraquant.graph.Fuse` sees what reads a value.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")


class _Results(NamedTuple):
    version: int  # of the tensor that they were computed of
    by_key: dict[Hashable, Any]


_RESULTS = WeakTensorKeyDictionary()


def reusable(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """Return ``function(*args)``, a new tensor; what is computed of it is kept with it."""
    if _is_traced() or (torch.is_grad_enabled() and _requires_grad(args)):
        return function(*args)
    if torch.is_inference_mode_enabled():
        # Tensors of inference mode have no version.
        with torch.inference_mode(False), torch.no_grad():
            output = function(*args)
    else:
        output = function(*args)
    if type(output) is Tensor and not output.is_inference():
        _RESULTS[output] = _Results(output._version, {})
    return output


def computed_once(input: Tensor, key: Hashable, compute: Callable[[Tensor], T]) -> T | None:
    """Return ``compute(input)``, by an earlier call with that key; None if nothing is kept of it.

    The result has no gradient.
    """
    if not _RESULTS or _is_traced() or type(input) is not Tensor:
        return None
    results = _RESULTS.get(input)
    if results is None or results.version != input._version:
        return None
    if key not in results.by_key:
        results.by_key[key] = compute(input)
    found: T = results.by_key[key]
    return found


def _is_traced() -> bool:
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def _requires_grad(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
