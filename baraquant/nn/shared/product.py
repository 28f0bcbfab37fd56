# SPDX-License-Identifier: BSD-3-Clause
"""What products of layers that store integers share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.torch_version import TorchVersion

# AOTInductor of torch 2.11 hands a dtype argument to an op as another dtype.
_TAKES_DTYPE = TorchVersion(torch.__version__) >= (2, 12)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``F.linear``, by the same algorithm whether or not the weight requires grad.

    PyTorch folds the leading dimensions of a strided input into one if the weight requires grad,
    and otherwise computes a batched product; the last bits differ. This function always folds, so
    that a prepared and a converted layer give the same bits.
    """
    if input.dim() <= 2:
        return F.linear(input, weight, bias)
    rows = F.linear(input.flatten(0, -2), weight, bias)
    return rows.reshape(input.shape[:-1] + rows.shape[-1:])


def matching_bias(bias: Tensor | None, dtype: torch.dtype, scale: Tensor) -> Tensor | None:
    """Return the bias in a dtype that a product takes: its own, or ``dtype``, that of the input.

    A bfloat16 model gets float32 inputs from the norms under autocast.
    """
    if bias is None or bias.dtype == dtype or bias.dtype == scale.dtype:
        return bias
    return bias.to(dtype)


def is_exported() -> bool:
    """Whether a program for AOTInductor may come of it, which can call no op with a dtype argument.

    Other ops have the same bits.
    """
    if torch.jit.is_scripting():
        return False
    return bool(torch.compiler.is_exporting())


def quantized_by(quantizer: Any, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the method ``quantize`` of a fake quantizer returns.

    It has no call of the module, for which accelerate would fetch tensors that it has put away.
    """
    hook = getattr(quantizer, "_hf_hook", None)
    args = (input,) if hook is None else hook.pre_forward(quantizer, input)[0]
    result: tuple[Tensor, Tensor, Tensor] = quantizer.quantize(*args)
    return result if hook is None else hook.post_forward(quantizer, result)


def fixed_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """Return the output's dtype to give a product: in an exported graph ``dtype``, else None.

    The graph fixes the dtype of every output, and AOTInductor allocates for it. A product whose
    output followed an input of another dtype would be read beyond its end.
    """
    if torch.jit.is_scripting():
        return None
    return dtype if is_exported() and _TAKES_DTYPE else None


def fixing_bias(bias: Tensor | None, input: Tensor, features: int) -> Tensor | None:
    """Return a bias whose dtype a product without a dtype argument compares with its input's.

    In an exported graph -0.0 stands for no bias: it changes no bit of a sum.
    """
    if torch.jit.is_scripting():
        return bias
    if bias is None and is_exported():
        bias = torch.full([features], -0.0, dtype=input.dtype, device=input.device)
    return bias


def product_of_integers(
    layer: Any, input: Tensor, product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Return ``product(input, weight, bias)`` for the dequantized weight of a layer of integers.

    The backward pass computes the weight again. A floating product keeps it for the gradient of the
    input, which costs nothing for a parameter. A dequantized weight would stay in memory in every
    layer of a model, and would cost more than the integers save.
    """
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
