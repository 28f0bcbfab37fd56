# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""Weights of four bits, and their products."""

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "choose_int4_qparams",
    "expand_int4",
    "int4_linear",
    "pack_int4",
    "quantize_int4",
    "quantized_int4_linear",
    "static_quantized_int4_linear",
]


@operator
def choose_int4_qparams(
    weight: Tensor, group_size: int, *, symmetric: bool = True, bits: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose a scale for each row of a weight, and a whole factor for each group of its columns.

    ``w8 = (u - z) * f`` is an int8 and stands for ``w8 * scale``; ``u`` has four bits

    Args:
        weight: ``[N, K]``, float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first.
        group_size: The columns of a group, an even number of at most 2147483646; the last group of
            a row may have fewer.
        symmetric: True puts 0 in the middle: all zero points are 8. False gives each group the zero
            point of its range ``[min(0, min w), max(0, max w)]``.
        bits: The width of the numbers, 2 to 4: ``u - 8`` and ``z - 8`` are signed integers of so
            many bits.

    Returns:
        The scale, ``[N]``, float32 (float64 for a float64 weight).
        The factor ``f``, ``[N, ceil(K / group_size)]``, uint8, 1 to 16.
        The zero point ``z``, of the same shape and dtype, 0 to 15.

    Example:
        >>> w = torch.tensor([[0.7, -0.1, 11.2, 3.2], [0.0, 0.0, 0.0, 0.0]])
        >>> scale, factor, zero_point = baraquant.ops.choose_int4_qparams(w, 2)
        >>> scale, factor
        (tensor([0.1000, 1.0000]), tensor([[ 1, 16],
                [ 1,  1]], dtype=torch.uint8))

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: autograd takes what is chosen from data as a constant, and integers have no gradient.

    Rounding:
        ``scale = max |w| / 112`` (of a row; 1 for zeros, otherwise at least the smallest normal
        number). Symmetric: ``f = ceil((max |w| / 7) / scale)`` of a group. Asymmetric, with ``low``
        and ``high`` the ends of its range: ``f = ceil((high / 15 - low / 15) / scale)`` and
        ``z = rint(-low / (scale * f))``. Each step is rounded in the dtype of ``scale``; ``f`` is
        clamped to [1, 16] and ``z`` to [0, 15], where a NaN gives 1 and 0. One NaN or infinity
        makes the scale of its row NaN or infinite, and so all factors of the row 1, and its zero
        points 0 if they are not 8. That is for four bits. With three, 48 stands for 112, 3 for 7, 7
        for 15 and [4, 11] for [0, 15]; with two, 16, 1, 3 and [6, 9]; and ``z`` is ``rint(...)``
        more than the least number.

    References:
        Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
        section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin
        et al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving".
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant.choose_int4_qparams.default(
        weight, group_size, symmetric=symmetric, bits=bits
    )
    return result


@operator
def quantize_int4(
    weight: Tensor,
    scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    *,
    group_zero_point: Tensor | None = None,
    bits: int = 4,
) -> Tensor:
    """Quantize a weight to four bits with a factor for each group, and pack it.

    ``u = clamp(rint(w / (scale * f)) + z, 0, 15)``, two of them in a byte

    Args:
        weight: ``[N, K]``, float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first.
        scale: ``[N]``, float32 (float64 for a float64 weight).
        group_factor: ``f``, ``[N, G]``, uint8, 1 to 16, with ``G = ceil(K / group_size)``.
        group_size: The columns of a group, an even number of at most 2147483646; the last group of
            a row may have fewer.
        group_zero_point: ``z``, ``[N, G]``, uint8, 0 to 15; None stands for 8.
        bits: The width of the numbers, 2 to 4: ``u - 8`` is a signed integer of so many bits. They
            take four bits of memory in any case.

    Returns:
        The packed numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the low
        four bits of byte ``i``, number ``2 i + 1`` in the high ones. The last byte of an odd row
        has zeros there.

    Example:
        >>> w = torch.tensor([[0.7, -0.1, 11.2, 3.2]])
        >>> scale, factor, zero_point = baraquant.ops.choose_int4_qparams(w, 2)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 2)
        >>> [hex(byte) for byte in packed[0].tolist()]  # 7 + 8 and -1 + 8; 7 + 8 and 2 + 8
        ['0x7f', '0xaf']

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: autograd takes what is chosen from data as a constant, and integers have no gradient.

    Rounding:
        As :func:`quantize_per_channel` with the scale ``scale * f``, rounded once, and the zero
        point ``z``. The range is [0, 15] (three bits: [4, 11], two: [6, 9]) without the numbers
        whose ``(u - z) * f`` an int8 cannot hold; with what :func:`choose_int4_qparams` gives there
        are none of those. A NaN becomes ``z``.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
        section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin
        et al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving".
    """
    result: Tensor = torch.ops.baraquant.quantize_int4.default(
        weight, scale, group_factor, group_size, group_zero_point=group_zero_point, bits=bits
    )
    return result


@operator
def expand_int4(
    packed: Tensor,
    group_factor: Tensor,
    group_size: int,
    in_features: int,
    *,
    group_zero_point: Tensor | None = None,
) -> Tensor:
    """Turn packed numbers of four bits into the int8 weight that they stand for.

    ``w8 = (u - z) * f``

    Args:
        packed: The numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the
            low four bits of byte ``i``, number ``2 i + 1`` in the high ones.
        group_factor: ``f``, ``[N, G]``, uint8, 1 to 16, with ``G = ceil(K / group_size)``.
        group_size: The columns of a group, an even number of at most 2147483646; the last group of
            a row may have fewer.
        in_features: K.
        group_zero_point: ``z``, ``[N, G]``, uint8, 0 to 15; None stands for 8.

    Returns:
        ``w8``, ``[N, K]``, int8, contiguous. It is computed modulo 256 where an int8 cannot hold
        it, which :func:`quantize_int4` never gives.

    Example:
        >>> packed = torch.tensor([[0x7F, 0xAF]], dtype=torch.uint8)
        >>> factor = torch.tensor([[1, 16]], dtype=torch.uint8)
        >>> baraquant.ops.expand_int4(packed, factor, 2, in_features=4)
        tensor([[  7,  -1, 112,  32]], dtype=torch.int8)

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: autograd takes what is chosen from data as a constant, and integers have no gradient.

    Rounding:
        None: integers are multiplied.

    References:
        Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
        section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin
        et al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving".
    """
    result: Tensor = torch.ops.baraquant.expand_int4.default(
        packed, group_factor, group_size, in_features, group_zero_point=group_zero_point
    )
    return result


@operator
def pack_int4(integers: Tensor) -> Tensor:
    """Pack integers of -8 to 7, two in a byte.

    ``byte = (q[2 i] + 8) | (q[2 i + 1] + 8) << 4``

    Args:
        integers: ``q``, ``[N, K]``, int8, -8 to 7; of others the low four bits of ``q + 8`` count.
            Any strides; what is not contiguous is copied first.

    Returns:
        ``[N, ceil(K / 2)]``, uint8, contiguous. With ``group_zero_point`` None, :func:`expand_int4`
        gives ``q * f``. In memory each row has the bits of compressed-tensors' ``weight_packed``
        for four bits if K is a multiple of 8.

    Example:
        >>> q = torch.tensor([[7, -1, 7, 2, -8]], dtype=torch.int8)
        >>> [hex(byte) for byte in baraquant.ops.pack_int4(q)[0].tolist()]
        ['0x7f', '0xaf', '0x0']

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        None: integers have no gradient.

    Rounding:
        None: integers are copied.

    References:
        The format of rows: compressed-tensors, "pack-quantized".
    """
    result: Tensor = torch.ops.baraquant.pack_int4.default(integers)
    return result


@operator
def int4_linear(
    input: Tensor,
    packed: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Multiply integers by a weight of four bits: :func:`int8_linear` of the expanded weight.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w8[n, k]) * sw[n] * s[t] + bias[n]``

    Args:
        input: The integers ``q``, ``[..., K]``; int8 or uint8. Any strides; what is not contiguous
            is copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
        packed: The numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the
            low four bits of byte ``i``, number ``2 i + 1`` in the high ones. Contiguous.
        input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[...]`` or
            ``[..., 1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[N]``, of the dtype of ``input_scale``.
        group_factor: ``f``, ``[N, G]``, uint8, 1 to 16, with ``G = ceil(K / group_size)``.
        group_size: The columns of a group, an even number of at most 2147483646; the last group of
            a row may have fewer.
        bias: ``[N]``, of the dtype of ``input_scale`` or of the result; None adds no bias.
        group_zero_point: ``z``, ``[N, G]``, uint8, 0 to 15; None stands for 8.
        input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands
            for 0. A value that the dtype of ``input`` does not hold counts as the nearest one.
        weight_sum: ``w8.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point of the
            input. If it is None, each call expands the weight and computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> w, x = torch.randn(32, 64), torch.randn(4, 64)
        >>> scale, factor, _ = baraquant.ops.choose_int4_qparams(w, 32)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 32)
        >>> q, s, _ = baraquant.ops.dynamic_range_quantize_per_token(x)
        >>> y = baraquant.ops.int4_linear(q, packed, s, scale, factor, 32)
        >>> w8 = baraquant.ops.expand_int4(packed, factor, 32, in_features=64)
        >>> torch.equal(y, baraquant.ops.int8_linear(q, w8, s, scale))
        True

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        That of :func:`int8_linear` with the expanded weight, which is kept for the backward pass as
        int8. The packed weight and its factors have none; a scale that requires grad raises
        NotImplementedError.

    Rounding:
        The bits are those of :func:`int8_linear` with ``weight = expand_int4(packed, group_factor,
        group_size, K, group_zero_point=group_zero_point)``: all of K is one exact sum of integers.
        On the CPU the weight is expanded part by part, in a cache. On a GPU it is expanded into
        memory first.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
        section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin
        et al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving".
    """
    result: Tensor = torch.ops.baraquant.int4_linear.default(
        input,
        packed,
        input_scale,
        weight_scale,
        group_factor,
        group_size,
        bias,
        group_zero_point=group_zero_point,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
    return result


@operator
def quantized_int4_linear(
    input: Tensor,
    packed: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize each token with the scale of its data, and multiply it by a weight of four bits.

    ``y = int4_linear(q, packed, s, sw, f, group_size, bias, input_zero_point=z)`` with ``q, s, z =
    dynamic_range_quantize_per_token(x)``

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 if ``symmetric`` is False.
        packed: The numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the
            low four bits of byte ``i``, number ``2 i + 1`` in the high ones. Contiguous.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
        group_factor: ``f``, ``[N, G]``, uint8, 1 to 16, with ``G = ceil(K / group_size)``.
        group_size: The columns of a group, an even number of at most 2147483646; the last group of
            a row may have fewer.
        bias: ``[N]``, of the dtype of ``weight_scale`` or of the result; None adds no bias.
        group_zero_point: ``z``, ``[N, G]``, uint8, 0 to 15; None stands for 8.
        symmetric: True maps 0 of the input to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``.
        weight_sum: ``w8.sum(1, dtype=torch.int32)``, ``[N]``; needed if ``symmetric`` is False. If
            it is None, each call expands the weight and computes it.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> w, x = torch.randn(32, 64), torch.randn(4, 64)
        >>> scale, factor, _ = baraquant.ops.choose_int4_qparams(w, 32)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 32)
        >>> y = baraquant.ops.quantized_int4_linear(x, packed, scale, factor, 32)
        >>> y.shape
        torch.Size([4, 32])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        That of :func:`quantized_linear` with the expanded weight, which is kept for the backward
        pass as int8. The packed weight and its factors have none; a scale that requires grad raises
        NotImplementedError.

    Rounding:
        The bits are those of :func:`quantized_linear` with ``weight = expand_int4(packed,
        group_factor, group_size, K, group_zero_point=group_zero_point)``: all of K is one exact sum
        of integers. On the CPU the weight is expanded part by part, in a cache. On a GPU it is
        expanded into memory first. One NaN or infinity makes its token's results NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
        section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin
        et al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving".
    """
    result: Tensor = torch.ops.baraquant.quantized_int4_linear.default(
        input,
        packed,
        weight_scale,
        group_factor,
        group_size,
        bias,
        group_zero_point=group_zero_point,
        symmetric=symmetric,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@operator
def static_quantized_int4_linear(
    input: Tensor,
    packed: Tensor,
    weight_scale: Tensor,
    group_factor: Tensor,
    group_size: int,
    act_scale: Tensor,
    bias: Tensor | None = None,
    *,
    group_zero_point: Tensor | None = None,
    act_zero_point: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize the input with one given scale, and multiply it by a weight of four bits.

    ``y = int4_linear(q, packed, s, sw, f, group_size, bias, input_zero_point=z)`` with ``q =
    quantize_per_tensor(x, s, z)``

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 with a zero point.
        packed: The numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the
            low four bits of byte ``i``, number ``2 i + 1`` in the high ones. Contiguous.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
        group_factor: ``f``, ``[N, G]``, uint8, 1 to 16, with ``G = ceil(K / group_size)``.
        group_size: The columns of a group, an even number of at most 2147483646; the last group of
            a row may have fewer.
        act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        group_zero_point: ``z``, ``[N, G]``, uint8, 0 to 15; None stands for 8.
        act_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0. In the
            sums, a value that int8 does not hold counts as the nearest one.
        smooth_scale: ``s * smooth``, ``[K]``, of the dtype of ``weight_scale``: the input is
            divided by ``smooth``, and the weight was multiplied by it. None: no smoothing.
        weight_sum: ``w8.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point of the
            input. If it is None, each call expands the weight and computes it.
        quant_min: The smallest integer of the input, at least -128.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> w, x = torch.randn(32, 64), torch.randn(4, 64)
        >>> scale, factor, _ = baraquant.ops.choose_int4_qparams(w, 32)
        >>> packed = baraquant.ops.quantize_int4(w, scale, factor, 32)
        >>> s, layer = torch.tensor(0.03), baraquant.ops.static_quantized_int4_linear
        >>> y = layer(x, packed, scale, factor, 32, s)
        >>> y.shape
        torch.Size([4, 32])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        That of :func:`static_quantized_linear` with the expanded weight, which is kept for the
        backward pass as int8. The packed weight and its factors have none; a scale that requires
        grad raises NotImplementedError.

    Rounding:
        The bits are those of :func:`static_quantized_linear` with ``weight = expand_int4(packed,
        group_factor, group_size, K, group_zero_point=group_zero_point)``: all of K is one exact sum
        of integers. On the CPU the weight is expanded part by part, in a cache. On a GPU it is
        expanded into memory first. A NaN becomes the zero point, an infinity an end of the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
        section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin
        et al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving".
    """
    result: Tensor = torch.ops.baraquant.static_quantized_int4_linear.default(
        input,
        packed,
        weight_scale,
        group_factor,
        group_size,
        act_scale,
        bias,
        group_zero_point=group_zero_point,
        act_zero_point=act_zero_point,
        smooth_scale=smooth_scale,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result
