# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""The product of a floating input and a weight of integers."""

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "weight_only_linear",
]


@operator
def weight_only_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    weight_zero_point: Tensor | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Multiply a floating input by a weight of integers, which stand for floating numbers.

    ``y = x @ w^.T + bias`` with ``w^ = (q - z) * s``

    Args:
        input: ``[..., K]``, float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first.
        weight: The integers ``q``, contiguous: ``[N, K]``, int8; or those of at most four bits,
            packed by :func:`pack_int4`: ``[N, ceil(K / 2)]``, uint8.
        weight_scale: ``s``, float32 (float64 for a float64 input): ``[N]``, or
            ``[N, ceil(K / group_size)]`` with ``group_size``.
        bias: ``[N]``, of the dtype of ``input``; None adds no bias.
        weight_zero_point: ``z``, shaped like ``weight_scale``, of any integer dtype; None stands
            for 0.
        group_size: The columns of a group that share a scale; the last group of a row may have
            fewer. None: the whole row shares one.

    Returns:
        ``[..., N]``, of the dtype of ``input``, contiguous.

    Example:
        >>> q = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
        >>> s = torch.tensor([[0.5, 0.25]])
        >>> baraquant.ops.weight_only_linear(torch.ones(1, 4), q, s, group_size=2)
        tensor([[1.2500]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but
            ``input``.

    Gradient:
        ``dx = dy @ w^`` and the sum of ``dy`` over tokens for the bias. The integers are kept for
        the backward pass, which computes ``w^`` again. Under :mod:`torch.func` and with
        forward-mode tangents the op consists of PyTorch's own. The weight has no gradient; a scale
        that requires grad raises NotImplementedError.

    Rounding:
        ``w^`` has the bits that :func:`dequantize_per_channel` and :func:`dequantize_per_group`
        give in the dtype of ``input``. The sums are computed in float32 (float64 for a float64
        input) and are rounded to the dtype of the result. Their order depends on the sizes and the
        device, so the last bits differ between devices; the same call gives the same bits, and so
        do packed integers and the same ones as int8. On the CPU, in float32 up to 48 tokens and in
        bfloat16 up to 4, a token's result depends on nothing else: ``w^`` is computed in registers.
        Beyond that PyTorch multiplies, on the CPU with a part of the weight at a time that fits
        into a cache, elsewhere with all of it, and as its settings say
        (``torch.backends.cuda.matmul``; its product of bfloat16 on a CPU may take numbers below the
        smallest normal one for 0).

        Under autocast, ``input`` and ``bias`` are cast as those of
        :func:`torch.nn.functional.linear`.

    References:
        Weights of few bits and floating inputs: Frantar et al. 2023, "GPTQ: Accurate Post-Training
        Quantization for Generative Pre-trained Transformers".
    """
    result: Tensor = torch.ops.baraquant.weight_only_linear.default(
        input,
        weight,
        weight_scale,
        bias,
        weight_zero_point=weight_zero_point,
        group_size=group_size,
    )
    return result
