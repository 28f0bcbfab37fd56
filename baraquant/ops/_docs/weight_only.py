# SPDX-License-Identifier: BSD-3-Clause
"""The docstring of the product of a floating input and a weight of integers."""

from . import RAISES

WEIGHT_ONLY_LINEAR = f"""
Args:
    input: ``[..., K]``, float32, float64, float16 or bfloat16. Any strides; what is not contiguous
        is copied first.
    weight: The integers ``q``, contiguous: ``[N, K]``, int8; or those of at most four bits, packed
        by :func:`pack_int4`: ``[N, ceil(K / 2)]``, uint8.
    weight_scale: ``s``, float32 (float64 for a float64 input): ``[N]``, or
        ``[N, ceil(K / group_size)]`` with ``group_size``.
    bias: ``[N]``, of the dtype of ``input``; None adds no bias.
    weight_zero_point: ``z``, shaped like ``weight_scale``, of any integer dtype; None stands for 0.
    group_size: The columns of a group that share a scale; the last group of a row may have fewer.
        None: the whole row shares one.

Returns:
    ``[..., N]``, of the dtype of ``input``, contiguous.

$example

{RAISES}
    NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but ``input``.

Gradient:
    ``dx = dy @ w^`` and the sum of ``dy`` over tokens for the bias. The integers are kept for the
    backward pass, which computes ``w^`` again. Under :mod:`torch.func` and with forward-mode
    tangents the op consists of PyTorch's own. The weight has no gradient; a scale that requires
    grad raises NotImplementedError.

Rounding:
    ``w^`` has the bits that :func:`dequantize_per_channel` and :func:`dequantize_per_group` give in
    the dtype of ``input``. The sums are computed in float32 (float64 for a float64 input) and are
    rounded to the dtype of the result. Their order depends on the sizes and the device, so the last
    bits differ between devices; the same call gives the same bits, and so do packed integers and
    the same ones as int8. On the CPU, in float32 up to 48
    tokens and in bfloat16 up to 4, a token's result depends on nothing else: ``w^`` is computed in
    registers. Beyond that PyTorch multiplies, on the CPU with a part of the weight at a time that
    fits into a cache, elsewhere with all of it, and as its settings say
    (``torch.backends.cuda.matmul``; its product of bfloat16 on a CPU may take numbers below the
    smallest normal one for 0).

    Under autocast, ``input`` and ``bias`` are cast as those of :func:`torch.nn.functional.linear`.

References:
    Weights of few bits and floating inputs: Frantar et al. 2023, "GPTQ: Accurate Post-Training
    Quantization for Generative Pre-trained Transformers".
"""
