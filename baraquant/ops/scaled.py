# SPDX-License-Identifier: BSD-3-Clause
"""The scaled family: what a backward pass of integers consists of, besides :func:`int8_linear`.

The other sections of the docstrings are in ``_docs/scaled.py``.
"""

import torch
from torch import Tensor

from ._docs.scaled import DRAW_RANDOM, SCALED_QUANTIZE, TO_ROWS, TO_TRANSPOSE, TRANSPOSE_INT8
from ._operator import operator


@operator(SCALED_QUANTIZE, TO_ROWS)
def scaled_quantize_per_token(
    input: Tensor, factor: Tensor, *, random: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multiply each column by a factor and quantize each row to int8 with the scale of its data.

    ``q, s, _ = dynamic_range_quantize_per_token(C(input) * factor)``, where ``C`` converts to
    float32 (float64 for a float64 input)

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
        >>> q, s = baraquant.ops.scaled_quantize_per_token(x, torch.tensor([127.0, 63.5]))
        >>> q, s
        (tensor([[ 127,  127],
                [-127,   11]], dtype=torch.int8), tensor([[1.],
                [3.]]))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.scaled_quantize_per_token.default(
        input, factor, random=random
    )
    return result


@operator(SCALED_QUANTIZE, TO_TRANSPOSE)
def scaled_quantize_transposed(
    input: Tensor, factor: Tensor, *, random: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multiply each row by a factor and quantize each column to int8; return the transpose.

    ``q, s, _ = dynamic_range_quantize_per_token((C(rows) * factor).T)``, where ``rows`` is the
    input as ``[M, N]``, ``factor`` is ``[M, 1]``, and ``C`` converts to float32 (float64 for a
    float64 input)

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
        >>> q, s = baraquant.ops.scaled_quantize_transposed(x, torch.tensor([127.0, 127.0]))
        >>> q, s
        (tensor([[  42, -127],
                [ 127,   32]], dtype=torch.int8), tensor([3., 2.]))
    """
    result: tuple[Tensor, Tensor] = torch.ops.baraquant.scaled_quantize_transposed.default(
        input, factor, random=random
    )
    return result


@operator(TRANSPOSE_INT8)
def transpose_int8(input: Tensor) -> Tensor:
    """Return the transpose of an int8 matrix as a new, contiguous one.

    ``y = input.t().contiguous()``, but fast: products of integers need both matrices with
    the summed dimension last.

    Example:
        >>> baraquant.ops.transpose_int8(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8))
        tensor([[1, 4],
                [2, 5],
                [3, 6]], dtype=torch.int8)
    """
    return torch.ops.baraquant.transpose_int8.default(input)


@operator(DRAW_RANDOM)
def draw_random(like: Tensor, count: int = 1) -> Tensor:
    """Draw a state for stochastic rounding from PyTorch's default generator of a device.

    ``random = [seed, offset]``: each call gives another one, and so does each replay of a captured
    CUDA graph. :func:`torch.manual_seed` makes them repeat.

    Example:
        >>> x = torch.randn(4, 8)
        >>> random = baraquant.ops.draw_random(x, count=2)
        >>> one = baraquant.ops.scaled_quantize_per_token(x, torch.ones(8), random=random)
        >>> step = torch.tensor([0, 1])
        >>> other = baraquant.ops.scaled_quantize_per_token(x, torch.ones(8), random=random + step)
    """
    return torch.ops.baraquant.draw_random.default(like, count)
