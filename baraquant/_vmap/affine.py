# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the affine family: the samples share their scales, or each has its own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .batch import (
    PER_CHANNEL,
    PER_GROUP,
    PER_TENSOR,
    PER_TOKEN,
    InDims,
    check_axis,
    sample_shape,
    scale_per_sample,
    shifted,
    to_front,
    unchanged,
)


class Arguments(NamedTuple):
    """The first arguments of every core op, in their order."""

    first: Tensor
    scale: Tensor | None
    zero_point: Tensor | None
    scale_number: float
    zero_point_number: int
    granularity: int
    axis: int
    group_size: int
    quant_min: int
    quant_max: int


class Batch(NamedTuple):
    """Arguments for all samples at once, and functions into their layout and back.

    ``fold`` brings a tensor ``[batch, *sample]`` into the layout of ``arguments.first``; ``unfold``
    undoes that.
    """

    arguments: Arguments
    fold: Callable[[Tensor], Tensor]
    unfold: Callable[[Tensor], Tensor]


def _share_qparams(a: Arguments, size: int) -> Batch:
    """All samples have the same scales."""
    if a.granularity in (PER_TOKEN, PER_GROUP):
        a = a._replace(
            scale=None if a.scale is None else to_front(a.scale, None, size),
            zero_point=None if a.zero_point is None else to_front(a.zero_point, None, size),
        )
    return Batch(a._replace(axis=shifted(a.axis)), unchanged, unchanged)


def _split_qparams(a: Arguments, size: int) -> Batch:
    """Each sample has its own scales; scale and zero point are ``[batch, ...]``."""
    assert a.scale is not None
    layout = scale_per_sample(a.granularity, a.axis, size)
    if a.granularity in (PER_TENSOR, PER_CHANNEL):
        a = a._replace(
            scale=a.scale.reshape(-1),
            zero_point=None if a.zero_point is None else a.zero_point.reshape(-1),
        )
    a = a._replace(first=layout.fold(a.first), granularity=layout.granularity, axis=layout.axis)
    return Batch(a, layout.fold, layout.unfold)


def _batch(size: int, in_dims: InDims, a: Arguments, *, per_sample: bool = False) -> Batch:
    """Turn the arguments of one sample into those of the batch.

    Args:
        size: How many samples there are.
        in_dims: The batch dimension of each argument, None where it has none.
        a: The arguments as the op got them.
        per_sample: Whether each sample needs its own scales, for example for its gradient.
    """
    a = a._replace(first=to_front(a.first, in_dims[0], size))
    check_axis(a.first, a.granularity, a.axis)
    if a.scale is None or not (per_sample or in_dims[1] is not None or in_dims[2] is not None):
        return _share_qparams(a, size)
    zero_point = None if a.zero_point is None else to_front(a.zero_point, in_dims[2], size)
    a = a._replace(scale=to_front(a.scale, in_dims[1], size), zero_point=zero_point)
    _check_qparams(a)
    return _split_qparams(a, size)


def _check_qparams(a: Arguments) -> None:
    # The op checks the shapes of the batch. This function refuses shapes that fit the batch but not
    # a sample.
    for name, tensor in (("scale", a.scale), ("zero_point", a.zero_point)):
        shape = None if tensor is None else list(tensor.shape[1:])
        if shape is None or a.granularity in (PER_TOKEN, PER_GROUP):
            continue
        if a.granularity == PER_TENSOR and shape not in ([], [1]):
            raise ValueError(
                f"baraquant (in vmap): expected {name} to have shape [] or [1], but got {shape}"
            )
        if a.granularity == PER_CHANNEL:
            channels = a.first.shape[1:][a.axis]
            if shape != [channels]:
                raise ValueError(
                    f"baraquant (in vmap): expected {name} to have shape [{channels}] "
                    f"(input.size({a.axis})), but got {shape}"
                )


# ---- The rules: (info, in_dims, *arguments of the op) -> (outputs, their batch dimensions) -------


def _map_input(name: str) -> Callable[..., tuple[Tensor, int]]:
    """Rule for an op of one tensor: quantize, fake_quantize, dequantize."""
    op = getattr(torch.ops.baraquant, name)

    def rule(info: Any, in_dims: InDims, *args: Any) -> tuple[Tensor, int]:
        b = _batch(info.batch_size, in_dims, Arguments(*args[:10]))
        return b.unfold(op(*b.arguments, *args[10:])), 0

    return rule


def _input_gradient(info: Any, in_dims: InDims, *args: Any) -> tuple[Tensor, int]:
    grad, *rest = args[10:]
    b = _batch(info.batch_size, in_dims, Arguments(*args[:10]))
    grad = b.fold(to_front(grad, in_dims[10], info.batch_size))
    return b.unfold(torch.ops.baraquant._input_gradient(*b.arguments, grad, *rest)), 0


def _qparams_gradient(
    info: Any, in_dims: InDims, *args: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    grad, *rest = args[10:]
    b = _batch(info.batch_size, in_dims, Arguments(*args[:10]), per_sample=True)
    grad = b.fold(to_front(grad, in_dims[10], info.batch_size))
    dx, dscale, dzero = torch.ops.baraquant._qparams_gradient(*b.arguments, grad, *rest)
    scale_shape = zero_point_shape = sample_shape(args[1], in_dims[1])
    if args[2] is not None:
        zero_point_shape = sample_shape(args[2], in_dims[2])
    dscale = dscale.reshape(info.batch_size, *scale_shape)
    if rest[0]:
        dzero = dzero.reshape(info.batch_size, *zero_point_shape)
    else:  # nobody asked for the gradient of the zero point: the op returns an empty tensor
        dzero = dzero.expand(info.batch_size, 0)
    return (b.unfold(dx), dscale, dzero), (0, 0, 0)


def _masked_gradient(info: Any, in_dims: InDims, *args: Any) -> tuple[Tensor, int]:
    mask, order, *rest = args[10:]
    b = _batch(info.batch_size, in_dims, Arguments(*args[:10]))
    masks = to_front(mask, in_dims[10], info.batch_size)
    inside = _unpacked(masks, sample_shape(args[0], in_dims[0]), order)
    mask = _packed(b.fold(inside))
    return b.unfold(torch.ops.baraquant._masked_gradient(*b.arguments, mask, [], *rest)), 0


def _unpacked(masks: Tensor, shape: torch.Size, order: Sequence[int]) -> Tensor:
    """Return ``[batch, *shape]`` of bool from masks ``[batch, bytes]`` in that memory order."""
    order = order or range(len(shape))
    weights = torch.arange(8, device=masks.device)
    bits = (masks.unsqueeze(-1) >> weights & 1).flatten(1)[:, : shape.numel()].bool()
    in_memory = bits.unflatten(1, [shape[d] for d in order]) if shape else bits.squeeze(1)
    return in_memory.permute(0, *(1 + list(order).index(d) for d in range(len(shape))))


def _packed(inside: Tensor) -> Tensor:
    """Return the bits of a bool tensor, in row-major order, eight to a byte."""
    bits = torch.nn.functional.pad(inside.flatten(), (0, -inside.numel() % 8)).unflatten(0, (-1, 8))
    weights = torch.arange(8, device=inside.device)
    return (bits << weights).sum(1).to(torch.uint8)


RULES: dict[str, Callable[..., Any]] = {
    "_quantize": _map_input("_quantize"),
    "_fake_quantize": _map_input("_fake_quantize"),
    "_dequantize": _map_input("_dequantize"),
    "_input_gradient": _input_gradient,
    "_masked_gradient": _masked_gradient,
    "_qparams_gradient": _qparams_gradient,
}
