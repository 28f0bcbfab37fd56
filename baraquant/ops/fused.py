# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""Norms, activations and a rotation of vectors, and the same quantized."""

from typing import overload

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "gelu",
    "gelu_quantize_per_token",
    "hadamard",
    "hadamard_quantize_per_token",
    "layer_norm",
    "layer_norm_quantize_per_token",
    "rms_norm",
    "rms_norm_quantize_per_token",
    "silu_mul",
    "silu_mul_quantize_per_token",
]


@overload
def rms_norm(
    input: Tensor, weight: Tensor | None, eps: float, *, residual: None = None
) -> Tensor: ...
@overload
def rms_norm(
    input: Tensor, weight: Tensor | None, eps: float, *, residual: Tensor
) -> tuple[Tensor, Tensor]: ...
@operator
def rms_norm(
    input: Tensor, weight: Tensor | None, eps: float, *, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Divide each vector along the last dimension by its root mean square.

    ``y = x / sqrt(mean(x^2) + eps) * weight`` over the last dimension

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        weight: ``[D]``, of the dtype of ``input`` or of the scale; None stands for ones.
        eps: What is added to the mean square; at least 0, and finite when it is rounded to the
            dtype of the computation.
        residual: Like ``input``, of the same shape and dtype. It is added first, and the sum,
            rounded to the dtype, takes the place of ``input``.

    Returns:
        The result, with the shape and the dtype of ``input``, contiguous; with a residual also the
        sum ``input + residual``.

    Example:
        >>> x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
        >>> baraquant.ops.rms_norm(x, None, 0.0)
        tensor([[1.2000, 1.6000, 0.0000, 0.0000]])

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta.

    Gradient:
        The exact formula, computed in float32 (float64 for a float64 input) and rounded once;
        differentiable twice. The input, or with a residual the sum, is kept for it.

    Rounding:
        Computed in ``C``: float32, or float64 for a float64 input. Each step rounds to ``C`` by
        itself, in this order: ``r = 1 / sqrt(ms + eps)`` and ``((x - m) * r) * weight + bias``
        without what the op does not have; then one rounding to the dtype of ``input``. The means
        ``m`` and ``ms`` (of the squares of the rounded ``x - m``) are sums in float64, divided by
        ``D`` in float64 before they are rounded to ``C``. Of ``L`` partial sums, with ``L`` the
        power of two from ``D`` on but at most 4096, number ``l`` adds the elements ``l``,
        ``l + L``, ``l + 2 L`` and so on; then neighbours are added in pairs until one is left. A
        NaN makes its row NaN. An infinity makes its row of :func:`layer_norm` NaN; in
        :func:`rms_norm` it becomes NaN itself, and the rest of its row 0. Where ``ms`` of finite
        numbers leaves ``C`` (rows beyond 1.8e19 in float32, 1e154 in float64), ``r`` is 0, ``m`` is
        taken as 0, and the row is zeros times ``weight``, plus ``bias``. Where it falls below
        ``C``, as of a row of 1e-30, ``ms`` is 0.

    References:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    if residual is not None:
        result_residual: tuple[Tensor, Tensor] = torch.ops.baraquant.rms_norm.residual(
            input, weight, eps, residual=residual
        )
        return result_residual
    result: Tensor = torch.ops.baraquant.rms_norm.default(input, weight, eps)
    return result


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
@operator
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

    ``y = x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, and
    ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        weight: ``[D]``, of the dtype of ``input`` or of the scale; None stands for ones.
        eps: What is added to the mean square; at least 0, and finite when it is rounded to the
            dtype of the computation.
        residual: Like ``input``, of the same shape and dtype. It is added first, and the sum,
            rounded to the dtype, takes the place of ``input``.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min y), max(0, max y)]`` to ``[quant_min, quant_max]``.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of the input and of ``dtype``, contiguous. The scale,
        ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32, with the
        shape of the scale.
        With a residual also the sum ``input + residual``.

    Example:
        >>> x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
        >>> baraquant.ops.rms_norm_quantize_per_token(x, None, 0.0)
        (tensor([[ 95, 127,   0,   0]], dtype=torch.int8),
         tensor([[0.0126]]),
         tensor([[0]], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta. Or an argument
            requires grad.

    Gradient:
        None: integers carry no gradient, so a tensor that requires one is refused, rather than that
        gradients go missing. In training call the float op and then
        :func:`dynamic_fake_quantize_per_token`, which computes the same numbers.

    Rounding:
        The result of :func:`rms_norm` is rounded to the dtype of the input, and then quantized: the
        bits are those of the float op, followed by :func:`dynamic_range_quantize_per_token`.

    References:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    if residual is not None:
        result_residual: tuple[Tensor, Tensor, Tensor, Tensor] = (
            torch.ops.baraquant.rms_norm_quantize_per_token.residual(
                input,
                weight,
                eps,
                residual=residual,
                symmetric=symmetric,
                quant_min=quant_min,
                quant_max=quant_max,
                dtype=dtype,
            )
        )
        return result_residual
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.rms_norm_quantize_per_token.default(
        input,
        weight,
        eps,
        symmetric=symmetric,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@overload
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, residual: None = None
) -> Tensor: ...
@overload
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, residual: Tensor
) -> tuple[Tensor, Tensor]: ...
@operator
def layer_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Shift and scale each vector along the last dimension to mean 0 and variance 1.

    ``y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias`` with ``m = mean(x)``, over the
    last dimension

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        weight: ``[D]``, of the dtype of ``input`` or of the scale; None stands for ones.
        bias: ``[D]``, like ``weight``; None stands for zeros.
        eps: What is added to the mean square; at least 0, and finite when it is rounded to the
            dtype of the computation.
        residual: Like ``input``, of the same shape and dtype. It is added first, and the sum,
            rounded to the dtype, takes the place of ``input``.

    Returns:
        The result, with the shape and the dtype of ``input``, contiguous; with a residual also the
        sum ``input + residual``.

    Example:
        >>> x = torch.tensor([[1.0, 3.0, 1.0, 3.0]])
        >>> baraquant.ops.layer_norm(x, None, None, 0.0)
        tensor([[-1.,  1., -1.,  1.]])

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta.

    Gradient:
        The exact formula, computed in float32 (float64 for a float64 input) and rounded once;
        differentiable twice. The input, or with a residual the sum, is kept for it.

    Rounding:
        Computed in ``C``: float32, or float64 for a float64 input. Each step rounds to ``C`` by
        itself, in this order: ``r = 1 / sqrt(ms + eps)`` and ``((x - m) * r) * weight + bias``
        without what the op does not have; then one rounding to the dtype of ``input``. The means
        ``m`` and ``ms`` (of the squares of the rounded ``x - m``) are sums in float64, divided by
        ``D`` in float64 before they are rounded to ``C``. Of ``L`` partial sums, with ``L`` the
        power of two from ``D`` on but at most 4096, number ``l`` adds the elements ``l``,
        ``l + L``, ``l + 2 L`` and so on; then neighbours are added in pairs until one is left. A
        NaN makes its row NaN. An infinity makes its row of :func:`layer_norm` NaN; in
        :func:`rms_norm` it becomes NaN itself, and the rest of its row 0. Where ``ms`` of finite
        numbers leaves ``C`` (rows beyond 1.8e19 in float32, 1e154 in float64), ``r`` is 0, ``m`` is
        taken as 0, and the row is zeros times ``weight``, plus ``bias``. Where it falls below
        ``C``, as of a row of 1e-30, ``ms`` is 0.

    References:
        Ba, Kiros and Hinton 2016, "Layer Normalization".
    """
    if residual is not None:
        result_residual: tuple[Tensor, Tensor] = torch.ops.baraquant.layer_norm.residual(
            input, weight, bias, eps, residual=residual
        )
        return result_residual
    result: Tensor = torch.ops.baraquant.layer_norm.default(input, weight, bias, eps)
    return result


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
@operator
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

    ``y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias`` with ``m = mean(x)``, over the
    last dimension, and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        weight: ``[D]``, of the dtype of ``input`` or of the scale; None stands for ones.
        bias: ``[D]``, like ``weight``; None stands for zeros.
        eps: What is added to the mean square; at least 0, and finite when it is rounded to the
            dtype of the computation.
        residual: Like ``input``, of the same shape and dtype. It is added first, and the sum,
            rounded to the dtype, takes the place of ``input``.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min y), max(0, max y)]`` to ``[quant_min, quant_max]``.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of the input and of ``dtype``, contiguous. The scale,
        ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32, with the
        shape of the scale.
        With a residual also the sum ``input + residual``.

    Example:
        >>> x = torch.tensor([[1.0, 3.0, 1.0, 3.0]])
        >>> baraquant.ops.layer_norm_quantize_per_token(x, None, None, 0.0)
        (tensor([[-127,  127, -127,  127]], dtype=torch.int8),
         tensor([[0.0079]]),
         tensor([[0]], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta. Or an argument
            requires grad.

    Gradient:
        None: integers carry no gradient, so a tensor that requires one is refused, rather than that
        gradients go missing. In training call the float op and then
        :func:`dynamic_fake_quantize_per_token`, which computes the same numbers.

    Rounding:
        The result of :func:`layer_norm` is rounded to the dtype of the input, and then quantized:
        the bits are those of the float op, followed by :func:`dynamic_range_quantize_per_token`.

    References:
        Ba, Kiros and Hinton 2016, "Layer Normalization".
    """
    if residual is not None:
        result_residual: tuple[Tensor, Tensor, Tensor, Tensor] = (
            torch.ops.baraquant.layer_norm_quantize_per_token.residual(
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
        )
        return result_residual
    result: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.baraquant.layer_norm_quantize_per_token.default(
            input,
            weight,
            bias,
            eps,
            symmetric=symmetric,
            quant_min=quant_min,
            quant_max=quant_max,
            dtype=dtype,
        )
    )
    return result


@operator
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply ``up`` by the SiLU of ``gate``: the activation of a gated feed-forward layer.

    ``y = gate / (1 + exp(-gate)) * up``

    Args:
        gate: ``[..., D]``; float32, float16 or bfloat16. It may be a part of a wider tensor, as
            ``x.chunk(2, -1)`` gives it.
        up: Like ``gate``, of the same shape and dtype.

    Returns:
        The product, with the shape and the dtype of ``gate``, contiguous.

    Example:
        >>> gate, up = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, 2.0]])
        >>> baraquant.ops.silu_mul(gate, up)
        tensor([[ 0.0000,  1.4621, -0.5379]])

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta.

    Gradient:
        PyTorch's formula, computed in float32 and rounded once; differentiable twice. The input is
        kept for it.

    Rounding:
        Computed in float32 from operations that IEEE 754 defines, so that every device gives the
        same bits; one rounding at the end. For float32, ``silu(gate)`` is within ``2**-23`` of the
        exact value, relatively, which is at most 2 ulp. It is rounded to float32 before ``up``
        multiplies it, so the product is within 3 ulp. Below a ``gate`` of -91.8 silu is subnormal:
        within ``2**-149``, and the product within ``up`` times that. Of 16-bit inputs silu is
        within ``2**-17``, relatively, so that 18 of the 65536 values of ``gate``, rounded, would
        not be rounded correctly.

    References:
        Shazeer 2020, "GLU Variants Improve Transformer".
    """
    result: Tensor = torch.ops.baraquant.silu_mul.default(gate, up)
    return result


@operator
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

    ``y = gate / (1 + exp(-gate)) * up``, and
    ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

    Args:
        gate: ``[..., D]``; float32, float16 or bfloat16. It may be a part of a wider tensor, as
            ``x.chunk(2, -1)`` gives it.
        up: Like ``gate``, of the same shape and dtype.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min y), max(0, max y)]`` to ``[quant_min, quant_max]``.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of the input and of ``dtype``, contiguous. The scale,
        ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32, with the
        shape of the scale.

    Example:
        >>> gate, up = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, 2.0]])
        >>> baraquant.ops.silu_mul_quantize_per_token(gate, up)
        (tensor([[  0, 127, -47]], dtype=torch.int8),
         tensor([[0.0115]]),
         tensor([[0]], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta. Or an argument
            requires grad.

    Gradient:
        None: integers carry no gradient, so a tensor that requires one is refused, rather than that
        gradients go missing. In training call the float op and then
        :func:`dynamic_fake_quantize_per_token`, which computes the same numbers.

    Rounding:
        The result of :func:`silu_mul` is rounded to the dtype of the input, and then quantized: the
        bits are those of the float op, followed by :func:`dynamic_range_quantize_per_token`.

    References:
        Shazeer 2020, "GLU Variants Improve Transformer".
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.silu_mul_quantize_per_token.default(
        gate, up, symmetric=symmetric, quant_min=quant_min, quant_max=quant_max, dtype=dtype
    )
    return result


@operator
def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """Compute the Gaussian error linear unit.

    ``y = x * Phi(x)``, with ``Phi`` the distribution function of the normal distribution; or, by
    tanh, ``y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``

    Args:
        input: ``[..., D]``; float32, float16 or bfloat16.
        approximate: "none" or "tanh".

    Returns:
        The result, with the shape and the dtype of ``input``, contiguous.

    Example:
        >>> baraquant.ops.gelu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1587,  0.0000,  0.8413])

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta.

    Gradient:
        PyTorch's formula, computed in float32 and rounded once; differentiable twice. The input is
        kept for it.

    Rounding:
        Computed in float32 from operations that IEEE 754 defines, so that every device gives the
        same bits; one rounding at the end. It is within 2 ulp of the exact value, and without tanh
        within 5 ulp for ``x < -1``. 16-bit results are within 0.51 ulp: correctly rounded but for
        at most 43 of the 65536 arguments.

    References:
        Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
    """
    result: Tensor = torch.ops.baraquant.gelu.default(input, approximate=approximate)
    return result


@operator
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

    ``y = x * Phi(x)``, with ``Phi`` the distribution function of the normal distribution; or, by
    tanh, ``y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``; and
    ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

    Args:
        input: ``[..., D]``; float32, float16 or bfloat16.
        approximate: "none" or "tanh".
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min y), max(0, max y)]`` to ``[quant_min, quant_max]``.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of the input and of ``dtype``, contiguous. The scale,
        ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32, with the
        shape of the scale.

    Example:
        >>> baraquant.ops.gelu_quantize_per_token(torch.tensor([-1.0, 0.0, 1.0]))
        (tensor([-24,   0, 127], dtype=torch.int8),
         tensor([0.0066]),
         tensor([0], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta. Or an argument
            requires grad.

    Gradient:
        None: integers carry no gradient, so a tensor that requires one is refused, rather than that
        gradients go missing. In training call the float op and then
        :func:`dynamic_fake_quantize_per_token`, which computes the same numbers.

    Rounding:
        The result of :func:`gelu` is rounded to the dtype of the input, and then quantized: the
        bits are those of the float op, followed by :func:`dynamic_range_quantize_per_token`.

    References:
        Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
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


@operator
def hadamard(input: Tensor, block: int) -> Tensor:
    """Rotate each ``block`` neighbours along the last dimension by a Hadamard matrix.

    ``y = H x / sqrt(block)`` for each ``block`` neighbours along the last dimension, with
    Sylvester's Hadamard matrix ``H``: ``H[i, j]`` is 1 or -1 as ``i & j`` has an even or odd number
    of bits

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        block: A power of two that divides ``D``, at most 32768.

    Returns:
        The rotated vectors, with the shape and the dtype of ``input``, contiguous.

    Example:
        >>> baraquant.ops.hadamard(torch.tensor([8.0, 0.0, 0.0, 0.0]), 4)
        tensor([4., 4., 4., 4.])

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta.

    Gradient:
        The same rotation of ``grad``: the matrix is symmetric and orthogonal. Nothing is kept for
        it.

    Rounding:
        Computed in float32, or in float64 for a float64 input: for ``h = 1, 2, 4, ...`` the
        elements ``i`` and ``i + h`` become their sum and difference, then all are multiplied by
        ``1 / sqrt(block)``, which is computed in float64 and rounded to that dtype. Every sum,
        difference and product is rounded to that dtype too; then once to the dtype of ``input``.

    References:
        Ashkboos et al. 2024, "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs".
    """
    result: Tensor = torch.ops.baraquant.hadamard.default(input, block)
    return result


@operator
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

    ``y = H x / sqrt(block)`` for each ``block`` neighbours along the last dimension, with
    Sylvester's Hadamard matrix ``H``: ``H[i, j]`` is 1 or -1 as ``i & j`` has an even or odd number
    of bits; and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

    Args:
        input: ``[..., D]``; float32, float64, float16 or bfloat16.
        block: A power of two that divides ``D``, at most 32768.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min y), max(0, max y)]`` to ``[quant_min, quant_max]``.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        dtype: int8 or uint8, which the range has to fit.

    Returns:
        The integers, with the shape of the input and of ``dtype``, contiguous. The scale,
        ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32, with the
        shape of the scale.

    Example:
        >>> baraquant.ops.hadamard_quantize_per_token(torch.tensor([127.0, 1.0, 0.0, 0.0]), 4)
        (tensor([127, 125, 127, 125], dtype=torch.int8),
         tensor([0.5039]),
         tensor([0], dtype=torch.int32))

    Raises:
        ValueError: A shape, a device or a number does not fit.
        TypeError: A tensor has an unsupported dtype.
        NotImplementedError: The input is on a device other than CPU, CUDA and Meta. Or an argument
            requires grad.

    Gradient:
        None: integers carry no gradient, so a tensor that requires one is refused, rather than that
        gradients go missing. In training call the float op and then
        :func:`dynamic_fake_quantize_per_token`, which computes the same numbers.

    Rounding:
        The result of :func:`hadamard` is rounded to the dtype of the input, and then quantized: the
        bits are those of the float op, followed by :func:`dynamic_range_quantize_per_token`.

    References:
        Ashkboos et al. 2024, "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs".
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.hadamard_quantize_per_token.default(
        input, block, symmetric=symmetric, quant_min=quant_min, quant_max=quant_max, dtype=dtype
    )
    return result
