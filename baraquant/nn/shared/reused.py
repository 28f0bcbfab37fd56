# SPDX-License-Identifier: BSD-3-Clause
"""What several layers compute of one tensor, computed once in eager mode.

The norms of :mod:`baraquant.nn.fused` return tensors that are ``reusable``: the first layer that
quantizes one leaves the integers for those that read it too, such as ``q``, ``k`` and ``v``. They
are kept as long as the tensor. They do not count once it was written in place, on another stream,
or in a CUDA graph that does not hold the norm. A compiled graph needs none of this:
:class:`baraquant.graph.Fuse` sees what reads a value.
"""

import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Results(NamedTuple):
    tensor: weakref.ref[Tensor]  # that they were computed of
    state: Hashable
    by_key: dict[Hashable, Any]


# By the id of the tensor, while it is there.
_RESULTS: dict[int, _Results] = {}


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
        key = id(output)
        tensor = weakref.ref(output, lambda _: _RESULTS.pop(key, None))
        _RESULTS[key] = _Results(tensor, _state(output), {})
    return output


def results_of(input: Tensor) -> dict[Hashable, Any] | None:
    """Return what was computed of a tensor, to look up and to add to; None if nothing is kept.

    The results have no gradient, so there are none for a tensor that asks for one.
    """
    if _is_traced():
        return None
    results = _RESULTS.get(id(input))
    is_its = results is not None and results.tensor() is input and results.state == _state(input)
    if results is None or not is_its or (torch.is_grad_enabled() and input.requires_grad):
        return None
    return results.by_key


def _state(tensor: Tensor) -> Hashable:
    """Return how often a tensor was written, and in what order the device works on it now."""
    if not tensor.is_cuda:
        return (tensor._version,)
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return tensor._version, stream, torch.cuda.is_current_stream_capturing()


def _is_traced() -> bool:
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def _requires_grad(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
