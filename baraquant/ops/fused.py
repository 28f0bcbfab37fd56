# SPDX-License-Identifier: BSD-3-Clause
"""The fused family: norms, activations and a rotation of vectors, and the same quantized at once.

An op of the family reads its input once. The float ops are here because their bits are defined, as
those of the ops that quantize must be. The other sections of the docstrings are in
``_docs/fused.py``.
"""

from typing import overload

import torch
from torch import Tensor

from ._docs.fused import (
    GELU,
    GELU_QUANTIZE,
    HADAMARD,
    HADAMARD_QUANTIZE,
    LAYER_NORM,
    LAYER_NORM_QUANTIZE,
    RMS_NORM,
    RMS_NORM_QUANTIZE,
    SILU_MUL,
    SILU_MUL_QUANTIZE,
)
from ._operator import operator


@overload
def rms_norm(
    input: Tensor, weight: Tensor | None, eps: float, *, residual: None = None
) -> Tensor: ...
@overload
def rms_norm(
    input: Tensor, weight: Tensor | None, eps: float, *, residual: Tensor
) -> tuple[Tensor, Tensor]: ...
@operator(RMS_NORM)
def rms_norm(
    input: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Divide each vector along the last dimension by its root mean square.

    Example:
        >>> x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
        >>> baraquant.ops.rms_norm(x, None, 0.0)
        tensor([[1.2000, 1.6000, 0.0000, 0.0000]])
    """
    op = torch.ops.baraquant.rms_norm
    if residual is None:
        result: Tensor = op.default(input, weight, eps)
        return result
    pair: tuple[Tensor, Tensor] = op.residual(input, weight, eps, residual=residual)
    return pair


@overload
def rms_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: None = None,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def rms_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@operator(RMS_NORM_QUANTIZE)
def rms_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Divide each vector by its root mean square, and quantize it.

    Example:
        >>> x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
        >>> baraquant.ops.rms_norm_quantize_per_token(x, None, 0.0)
        (tensor([[ 95, 127,   0,   0]], dtype=torch.int8),
         tensor([[0.0126]]),
         tensor([[0]], dtype=torch.int32))
    """
    op = torch.ops.baraquant.rms_norm_quantize_per_token
    if residual is None:
        triple: tuple[Tensor, Tensor, Tensor] = op.default(
            input,
            weight,
            eps,
            symmetric=symmetric,
            quant_min=quant_min,
            quant_max=quant_max,
            dtype=dtype,
        )
        return triple
    quadruple: tuple[Tensor, Tensor, Tensor, Tensor] = op.residual(
        input,
        weight,
        eps,
        residual=residual,
        symmetric=symmetric,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return quadruple


@overload
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, residual: None = None
) -> Tensor: ...
@overload
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, residual: Tensor
) -> tuple[Tensor, Tensor]: ...
@operator(LAYER_NORM)
def layer_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Shift and scale each vector along the last dimension to mean 0 and variance 1.

    Example:
        >>> x = torch.tensor([[1.0, 3.0, 1.0, 3.0]])
        >>> baraquant.ops.layer_norm(x, None, None, 0.0)
        tensor([[-1.,  1., -1.,  1.]])
    """
    op = torch.ops.baraquant.layer_norm
    if residual is None:
        result: Tensor = op.default(input, weight, bias, eps)
        return result
    pair: tuple[Tensor, Tensor] = op.residual(input, weight, bias, eps, residual=residual)
    return pair


@overload
def layer_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: None = None,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def layer_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@operator(LAYER_NORM_QUANTIZE)
def layer_norm_quantize_per_token(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shift and scale each vector to mean 0 and variance 1, and quantize it.

    Example:
        >>> x = torch.tensor([[1.0, 3.0, 1.0, 3.0]])
        >>> baraquant.ops.layer_norm_quantize_per_token(x, None, None, 0.0)
        (tensor([[-127,  127, -127,  127]], dtype=torch.int8),
         tensor([[0.0079]]),
         tensor([[0]], dtype=torch.int32))
    """
    op = torch.ops.baraquant.layer_norm_quantize_per_token
    if residual is None:
        triple: tuple[Tensor, Tensor, Tensor] = op.default(
            input,
            weight,
            bias,
            eps,
            symmetric=symmetric,
            quant_min=quant_min,
            quant_max=quant_max,
            dtype=dtype,
        )
        return triple
    quadruple: tuple[Tensor, Tensor, Tensor, Tensor] = op.residual(
        input,
        weight,
        bias,
        eps,
        residual=residual,
        symmetric=symmetric,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return quadruple


@operator(SILU_MUL)
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply ``up`` by the SiLU of ``gate``: the activation of a gated feed-forward layer.

    Example:
        >>> gate, up = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, 2.0]])
        >>> baraquant.ops.silu_mul(gate, up)
        tensor([[ 0.0000,  1.4621, -0.5379]])
    """
    result: Tensor = torch.ops.baraquant.silu_mul.default(gate, up)
    return result


@operator(SILU_MUL_QUANTIZE)
def silu_mul_quantize_per_token(
    gate: Tensor,
    up: Tensor,
    *,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply ``up`` by the SiLU of ``gate``, and quantize each vector of the product.

    Example:
        >>> gate, up = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, 2.0]])
        >>> baraquant.ops.silu_mul_quantize_per_token(gate, up)
        (tensor([[  0, 127, -47]], dtype=torch.int8),
         tensor([[0.0115]]),
         tensor([[0]], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.silu_mul_quantize_per_token.default(
        gate,
        up,
        symmetric=symmetric,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@operator(GELU)
def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """Compute the Gaussian error linear unit.

    Example:
        >>> baraquant.ops.gelu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1587,  0.0000,  0.8413])
    """
    result: Tensor = torch.ops.baraquant.gelu.default(input, approximate=approximate)
    return result


@operator(GELU_QUANTIZE)
def gelu_quantize_per_token(
    input: Tensor,
    *,
    approximate: str = "none",
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the Gaussian error linear unit, and quantize each vector of it.

    Example:
        >>> baraquant.ops.gelu_quantize_per_token(torch.tensor([-1.0, 0.0, 1.0]))
        (tensor([-24,   0, 127], dtype=torch.int8),
         tensor([0.0066]),
         tensor([0], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.gelu_quantize_per_token.default(
        input,
        approximate=approximate,
        symmetric=symmetric,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@operator(HADAMARD)
def hadamard(input: Tensor, block: int) -> Tensor:
    """Rotate each ``block`` neighbours along the last dimension by a Hadamard matrix.

    Example:
        >>> baraquant.ops.hadamard(torch.tensor([8.0, 0.0, 0.0, 0.0]), 4)
        tensor([4., 4., 4., 4.])
    """
    result: Tensor = torch.ops.baraquant.hadamard.default(input, block)
    return result


@operator(HADAMARD_QUANTIZE)
def hadamard_quantize_per_token(
    input: Tensor,
    block: int,
    *,
    symmetric: bool = True,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate each ``block`` neighbours by a Hadamard matrix, and quantize each vector.

    Example:
        >>> baraquant.ops.hadamard_quantize_per_token(torch.tensor([127.0, 1.0, 0.0, 0.0]), 4)
        (tensor([127, 125, 127, 125], dtype=torch.int8),
         tensor([0.5039]),
         tensor([0], dtype=torch.int32))
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.hadamard_quantize_per_token.default(
        input,
        block,
        symmetric=symmetric,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result
