# SPDX-License-Identifier: BSD-3-Clause
"""The weight that a prepared layer with an adapter quantizes.

``W' = W + D``, and with a magnitude ``m`` of each channel, as in DoRA (Liu et al. 2024),
``W' = (m / |V + D|) * (W + D)``. ``D`` is what the adapter adds, and ``V`` the weight before any
adapter; the norm is that of a channel, and has no gradient, as in their section 4.3. The sum is
computed in the wider dtype of the two, with a magnitude in float32 at least, and is rounded once,
to the dtype of ``W``. This is how PEFT merges.

It is an op, and so it has the same bits in compiled code: a compiler would contract the addition
with the multiplication that comes before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._library import of_python_ops
from .precision import wide

_LIBRARY = of_python_ops(__name__, "baraquant_nn")
_LIBRARY.define(
    "adapted_weight(Tensor weight, Tensor delta, Tensor? magnitude=None, Tensor? unadapted=None, "
    "int[] dims=[]) -> Tensor"
)


def norm_of(weight: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the norms of the channels of a weight, with their dimensions kept as 1."""
    return torch.linalg.vector_norm(weight, dim=list(dims), keepdim=True)


def _adapted_weight(
    weight: Tensor,
    delta: Tensor,
    magnitude: Tensor | None = None,
    unadapted: Tensor | None = None,
    dims: Sequence[int] = (),
) -> Tensor:
    if magnitude is None or unadapted is None:
        return (weight + delta).to(weight.dtype)
    norm = norm_of(wide(unadapted) + delta, dims)
    return (magnitude.reshape(norm.shape) / norm * (wide(weight) + delta)).to(weight.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, delta, magnitude, unadapted, ctx.dims = inputs
    ctx.dtypes = weight.dtype, delta.dtype
    kept = () if magnitude is None else (weight, delta, magnitude, unadapted)
    ctx.save_for_backward(*kept)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_magnitude = None
    scaled = grad
    saved = ctx.saved_tensors
    if saved:
        weight, delta, magnitude, unadapted = saved
        norm = norm_of(wide(unadapted) + delta, ctx.dims)
        scaled = grad * (magnitude.reshape(norm.shape) / norm)
        sums = (grad * (wide(weight) + delta)).sum(dim=list(ctx.dims), keepdim=True)
        to_magnitude = (sums / norm).reshape(magnitude.shape).to(magnitude.dtype)
    to_weight, to_delta = (scaled.to(dtype) for dtype in ctx.dtypes)
    return to_weight, to_delta, to_magnitude, None, None


_LIBRARY.impl("adapted_weight", _adapted_weight, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "baraquant_nn::adapted_weight", _backward, setup_context=_keep, lib=_LIBRARY
)


def adapted_weight(
    weight: Tensor,
    delta: Tensor,
    magnitude: Tensor | None = None,
    unadapted: Tensor | None = None,
    dims: tuple[int, ...] = (),
) -> Tensor:
    """Return a weight with an adapter in it, in the dtype of the weight.

    Args:
        weight: The weight, in which other adapters may be already.
        delta: What is added, of the same shape.
        magnitude: The norms that the channels get, of any shape with one value for each; None: the
            sum is not scaled.
        unadapted: With a magnitude: the weight before any adapter.
        dims: With a magnitude: the dimensions of a channel.
    """
    result: Tensor = torch.ops.baraquant_nn.adapted_weight(
        weight, delta, magnitude, unadapted, dims
    )
    return result
