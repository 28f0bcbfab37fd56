# SPDX-License-Identifier: BSD-3-Clause
"""What products of layers that store integers share."""

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
