# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""Scaled quantization, transposes and random states, for a backward of integers."""

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "draw_random",
    "scaled_quantize_per_token",
    "scaled_quantize_transposed",
    "transpose_int8",
]


@operator
def scaled_quantize_per_token(
    input: Tensor, factor: Tensor, *, random: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multiply each column by a factor and quantize each row to int8 with the scale of its data.

    ``q, s, _ = dynamic_range_quantize_per_token(C(input) * factor)``, where ``C`` converts to
    float32 (float64 for a float64 input)

    Args:
        input: ``[..., N]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first.
        factor: ``[N]``, one for each column; float32 (float64 for a float64 input).
        random: None rounds to the nearest integer. A state of :func:`draw_random`, int64 ``[2]`` on
            the device of ``input``, rounds stochastically.

    Returns:
        The integers, ``[..., N]``, int8, contiguous.
        The scale, ``[..., 1]``, of the dtype of ``factor``.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
        >>> q, s = baraquant.ops.scaled_quantize_per_token(x, torch.tensor([127.0, 63.5]))
        >>> q, s
        (tensor([[ 127,  127],
                [-127,   11]], dtype=torch.int8), tensor([[1.],
                [3.]]))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        ``v = C(x) * factor`` is rounded once. The scale of a row is ``max |v| / 127`` (1 for zeros;
        otherwise at least the smallest normal number), and the integers lie in [-128, 127]. To the
        nearest: ``q = rint(v / s)``, ties to even. Stochastically: ``q = floor(v / s + u)`` with
        ``u = (k + 1/2) / 2**16``, where both the division and the sum are rounded in the compute
        type. The 16 bits ``k`` of element number ``i`` (row-major, in ``input``) are half ``i % 8``
        of the four words of Philox4x32-10 with the key ``random[0]`` and the counter ``random[1]``
        (low 64 bits), ``i // 8`` (high 64 bits), the low half of a word first; so they are the same
        on every device. An integer is kept as it is, and the mean over all ``k`` is within
        ``2**-17`` of ``v / s``. One NaN or infinity makes the scale of its row NaN or infinite; its
        integers are 0, and dequantize to NaN.

    References:
        Stochastic rounding: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision".
        Philox: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.scaled_quantize_per_token.default(
        input, factor, random=random
    )
    return result


@operator
def scaled_quantize_transposed(
    input: Tensor, factor: Tensor, *, random: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multiply each row by a factor and quantize each column to int8; return the transpose.

    ``q, s, _ = dynamic_range_quantize_per_token((C(rows) *
    factor).T)``, where ``rows`` is the input as ``[M, N]``, ``factor`` is ``[M, 1]``, and ``C``
    converts to float32 (float64 for a float64 input)

    Args:
        input: ``[..., N]``, seen as ``[M, N]``; float32, float64, float16 or bfloat16. Any strides;
            what is not contiguous is copied first.
        factor: one for each row, ``[...]`` or ``[..., 1]``; float32 (float64 for a float64 input).
        random: None rounds to the nearest integer. A state of :func:`draw_random`, int64 ``[2]`` on
            the device of ``input``, rounds stochastically.

    Returns:
        The integers, ``[N, M]``, int8, contiguous.
        The scale, ``[N]``, of the dtype of ``factor``.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
        >>> q, s = baraquant.ops.scaled_quantize_transposed(x, torch.tensor([127.0, 127.0]))
        >>> q, s
        (tensor([[  42, -127],
                [ 127,   32]], dtype=torch.int8), tensor([3., 2.]))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: autograd takes the range of the data as a constant, and integers have no gradient.

    Rounding:
        ``v = C(x) * factor`` is rounded once. The scale of a column is ``max |v| / 127`` (1 for
        zeros; otherwise at least the smallest normal number), and the integers lie in [-128, 127].
        To the nearest: ``q = rint(v / s)``, ties to even. Stochastically: ``q = floor(v / s + u)``
        with ``u = (k + 1/2) / 2**16``, where both the division and the sum are rounded in the
        compute type. The 16 bits ``k`` of element number ``i`` (row-major, in ``input``) are half
        ``i % 8`` of the four words of Philox4x32-10 with the key ``random[0]`` and the counter
        ``random[1]`` (low 64 bits), ``i // 8`` (high 64 bits), the low half of a word first; so
        they are the same on every device. An integer is kept as it is, and the mean over all ``k``
        is within ``2**-17`` of ``v / s``. One NaN or infinity makes the scale of its column NaN or
        infinite; its integers are 0, and dequantize to NaN.

    References:
        Stochastic rounding: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision".
        Philox: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.scaled_quantize_transposed.default(
        input, factor, random=random
    )
    return result


@operator
def transpose_int8(input: Tensor) -> Tensor:
    """Return the transpose of an int8 matrix as a new, contiguous one.

    ``y = input.t().contiguous()``, but fast: products of integers need both matrices with the
    summed dimension last.

    Args:
        input: ``[M, N]``, int8. Any strides; what is not contiguous is copied first.

    Returns:
        ``[N, M]``, int8, contiguous.

    Example:
        >>> baraquant.ops.transpose_int8(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8))
        tensor([[1, 4],
                [2, 5],
                [3, 6]], dtype=torch.int8)

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: integers have no gradient.

    Rounding:
        None: the bytes are copied.

    References:
        Products of eight bits on Hopper read both matrices with the summed dimension last: NVIDIA,
        "PTX ISA", section "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
    """
    result: Tensor = torch.ops.baraquant.transpose_int8.default(input)
    return result


@operator
def draw_random(like: Tensor, count: int = 1) -> Tensor:
    """Draw a state for stochastic rounding from PyTorch's default generator of a device.

    ``random = [seed, offset]``: each call gives another one, and so does each replay of a captured
    CUDA graph. :func:`torch.manual_seed` makes them repeat.

    Args:
        like: A tensor on the device whose generator is used; its values are not read.
        count: How many calls will use the state: call number i adds i to its second number.

    Returns:
        A seed and the number of the first call, ``[2]``, int64, on that device. Neither the host
        nor the device waits.

    Example:
        >>> x = torch.randn(4, 8)
        >>> random = baraquant.ops.draw_random(x, count=2)
        >>> one = baraquant.ops.scaled_quantize_per_token(x, torch.ones(8), random=random)
        >>> step = torch.tensor([0, 1])
        >>> other = baraquant.ops.scaled_quantize_per_token(x, torch.ones(8), random=random + step)

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None.

    Rounding:
        On a GPU the seed is that of the generator, and the number a quarter of its offset, which
        goes up by ``4 * count``; no other op of PyTorch uses those numbers. On the CPU the seed is
        the next 64 bits of the generator, and the number 0.

    References:
        Philox: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    result: Tensor = torch.ops.baraquant.draw_random.default(like, count)
    return result
