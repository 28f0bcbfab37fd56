# SPDX-License-Identifier: BSD-3-Clause
"""What the batching rules share: they bring tensors into the layout of a batch, and back."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

PER_TENSOR, PER_CHANNEL, PER_TOKEN, PER_GROUP = range(4)
InDims = Sequence[int | None]


class Layout(NamedTuple):
    """How a granularity with a scale per sample becomes one of the batch.

    Attributes:
        granularity: The granularity of the batch.
        axis: The axis of the batch.
        fold: Brings ``[batch, *sample]`` into the layout.
        unfold: Undoes that.
    """

    granularity: int
    axis: int
    fold: Callable[[Tensor], Tensor]
    unfold: Callable[[Tensor], Tensor]


def unchanged(tensor: Tensor) -> Tensor:
    """Return ``tensor``: used if batch and sample have the same layout."""
    return tensor


def to_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return ``[size, *sample]``, repeated if the tensor is not batched."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def in_front(results: Any) -> tuple[Any, Any]:
    """Return the results of all samples as a rule does: with their batch dimensions, all 0."""
    return results, (0,) * len(results) if isinstance(results, tuple) else 0


def sample_shape(tensor: Tensor, dim: int | None) -> torch.Size:
    """Return the shape of one sample."""
    return tensor.shape if dim is None else tensor.movedim(dim, 0).shape[1:]


def shifted(axis: int) -> int:
    """Return the axis after one more leading dimension; a negative axis counts from the end."""
    return axis if axis < 0 else axis + 1


def scale_per_sample(granularity: int, axis: int, size: int) -> Layout:
    """Return the layout in which each of ``size`` samples has its own scales."""
    if granularity == PER_TENSOR:
        return Layout(PER_CHANNEL, 0, unchanged, unchanged)
    if granularity != PER_CHANNEL:
        return Layout(granularity, shifted(axis), unchanged, unchanged)
    axis = shifted(axis)

    def fold(tensor: Tensor) -> Tensor:  # [batch, ..., C, ...] -> [batch * C, ...]
        return tensor.movedim(axis, 1).flatten(0, 1)

    def unfold(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (size, -1)).movedim(1, axis)

    return Layout(PER_CHANNEL, 0, fold, unfold)


def check_axis(batch: Tensor, granularity: int, axis: int) -> None:
    """Refuse an axis that is invalid for a sample: the op checks only the batch."""
    dim = batch.dim() - 1
    if granularity != PER_TENSOR and not -dim <= axis < dim:
        raise IndexError(
            f"baraquant (in vmap): expected axis to be in [{-dim}, {dim - 1}] for an input with "
            f"{dim} dimensions, but got {axis}"
        )


def refuse_others(
    op: torch._ops.OpOverload, dims: dict[str, Any], batched: tuple[str, ...]
) -> None:
    """Refuse a batch of another argument. A list of numbers has a list of None in its place."""
    for name, dim in dims.items():
        if isinstance(dim, int) and name not in batched:
            others = f"; only {' and '.join(batched)} can be batched" if batched else ""
            raise NotImplementedError(
                f"{op._schema.name}: torch.vmap over {name} is not implemented{others}. Call the "
                "op in a loop instead"
            )


def refusal(words: str) -> Callable[..., NoReturn]:
    """Return a rule that refuses every batch; ``words`` begin with the name of the op."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"baraquant::{words}")

    return refuse


def call_in_order(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> Tensor:
    """Call with all arguments in the order of the schema."""
    arguments = op._schema.arguments
    positional = sum(not argument.kwarg_only for argument in arguments)
    keywords = {a.name: v for a, v in zip(arguments[positional:], args[positional:], strict=True)}
    result: Tensor = op(*args[:positional], **keywords)
    return result
