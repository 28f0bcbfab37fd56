# SPDX-License-Identifier: BSD-3-Clause
"""Products with a dequantized weight that the backward pass computes again instead of keeping.

A floating product keeps its weight for the gradient of the input. For a parameter this costs
nothing. A dequantized weight would stay in memory until the backward pass, in every layer of a
model, and would cost more than the integers save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def product_of_integers(
    layer: Any, input: Tensor, product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Return ``product(input, weight, bias)`` for the dequantized weight of a layer of integers."""
    dtype = _weight_dtype(layer, input)
    weight = layer._dequantized(dtype)
    bias = layer.bias
    if bias is not None and bias.dtype != dtype:
        bias = bias.to(dtype)
    if not _keeps_weight(input):
        return product(input, weight, bias)
    storage = weight.untyped_storage()._cdata
    before = _state(layer)

    def pack(tensor: Tensor) -> Any:
        if type(tensor) is not Tensor or tensor.untyped_storage()._cdata != storage:
            return tensor
        return tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if _places(_tensors(layer)) != _places(tensors) or _state(layer) != before:
            raise RuntimeError(
                f"{type(layer).__name__}: expected the same integers in the backward pass as in "
                "the forward pass, but they were changed or moved in between; run the forward "
                "pass again"
            )
        again: Tensor = layer._dequantized(dtype).as_strided(*packed)
        return again

    tensors = _tensors(layer)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return product(input, weight, bias)


def _tensors(layer: Any) -> tuple[Tensor | None, ...]:
    return layer.qweight, layer.weight_scale, layer.weight_zero_point


def _places(tensors: tuple[Tensor | None, ...]) -> list[int | None]:
    """Return which memory tensors have: that of a part of a DTensor is another object each time."""
    return [None if t is None else t.untyped_storage()._cdata for t in tensors]


def _state(layer: Any) -> tuple[int | None, ...]:
    """Return a number for each tensor of the weight that changes when the tensor is written to."""
    return tuple(
        None if tensor is None or tensor.is_inference() else tensor._version
        for tensor in _tensors(layer)
    )


def _keeps_weight(input: Tensor) -> bool:
    """Whether autograd would keep the weight, and can be told not to."""
    return (
        torch.is_grad_enabled()
        and input.requires_grad
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and torch._C._autograd._saved_tensors_hooks_is_enabled()
    )


def _weight_dtype(layer: Any, input: Tensor) -> torch.dtype:
    """Return the dtype in which the product reads the weight: the input's, or autocast's.

    Autocast would cast the weight to the same bits, and autograd would keep the result.
    """
    dtype, device = input.dtype, input.device.type
    is_cast = (
        device in ("cpu", "cuda")  # is_autocast_enabled raises an error for others
        and torch.is_autocast_enabled(device)
        and dtype != torch.float64
        and layer.weight_scale.dtype == torch.float32
    )
    return torch.get_autocast_dtype(device) if is_cast else dtype
