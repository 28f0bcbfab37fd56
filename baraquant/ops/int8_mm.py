# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""Products of integers."""

import torch
from torch import Tensor

from ._operator import operator

__all__ = [
    "int8_grouped_linear",
    "int8_linear",
    "int8_product",
    "qat_grouped_linear",
    "qat_linear",
    "quantized_grouped_linear",
    "quantized_linear",
    "rescale_product",
    "smoothquant_linear",
    "static_quantized_linear",
]


@operator
def int8_linear(
    input: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Multiply integers, sum exactly in int32, and scale the sums back to numbers.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]``

    Integers carry no gradient. If the layers before are trained, use :func:`quantized_linear` or
    :func:`static_quantized_linear`: they take the floating input and return a gradient for it.

    Args:
        input: The integers ``q``, ``[..., K]``; int8 or uint8. Any strides; what is not contiguous
            is copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous.
        input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[...]`` or
            ``[..., 1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[N]``, of the dtype of ``input_scale``.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands
            for 0. A value that the dtype of ``input`` does not hold counts as the nearest one.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int8)
        >>> s, sw = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5, 2.0])
        >>> baraquant.ops.int8_linear(q, w, s, sw)
        tensor([[  1.0000,  63.5000, 129.0000],
                [ -1.0000,   0.0000,  -2.0000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the
            input and its scales.

    Gradient:
        Integers have no gradient; ``bias`` gets the sum over tokens. A scale that requires grad
        raises NotImplementedError.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.int8_linear.default(
        input,
        weight,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
    return result


@operator
def smoothquant_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    act_scale: Tensor | float,
    bias: Tensor | None = None,
    *,
    act_zero_point: Tensor | int | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Multiply an input that is smoothed and quantized with one scale by quantized weights.

    ``y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]``

    SmoothQuant divides each channel of the activations by a factor and multiplies the weights by
    it. The division costs no extra step: ``quantize_per_channel(x, s * smooth, None, -1)`` gives
    the smoothed integers.

    Integers carry no gradient. If the layers before are trained, use
    :func:`static_quantized_linear`: it does both steps in one and returns a gradient for ``x``.

    Args:
        input: The integers ``q``, ``[..., K]``; int8 or uint8. Any strides; what is not contiguous
            is copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 result).
        act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``; or a number > 0.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        act_zero_point: ``z``: ``[]``, ``[1]`` or one for each token, of any integer dtype; an int
            is allowed only with a number as the scale; None stands for 0. Of a tensor, a value that
            the dtype of ``input`` does not hold counts as the nearest one; such a number is an
            error.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8)
        >>> baraquant.ops.smoothquant_linear(q, w, torch.tensor([1.0, 0.5]), 0.5)
        tensor([[ 1.0000, 63.5000],
                [-2.0000,  0.0000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the
            input and its scales.

    Gradient:
        Integers have no gradient; ``bias`` gets the sum over tokens. A scale that requires grad
        raises NotImplementedError.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
        Language Models".
    """
    if isinstance(act_scale, (int, float)):
        result_number: Tensor = torch.ops.baraquant.smoothquant_linear.number(
            input,
            weight,
            weight_scale,
            act_scale,
            bias,
            act_zero_point=act_zero_point,
            weight_sum=weight_sum,
            dtype=dtype,
        )
        return result_number
    result: Tensor = torch.ops.baraquant.smoothquant_linear.default(
        input,
        weight,
        weight_scale,
        act_scale,
        bias,
        act_zero_point=act_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
    return result


@operator
def quantized_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize each token to int8 with the scale of its own data, and multiply in integers.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]`` with ``q, s, z =
    dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)``

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 if ``symmetric`` is False.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous, as
            :func:`dynamic_range_quantize_per_channel` gives them for ``axis`` 0 of a matrix.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
        bias: ``[N]``, of the dtype of ``weight_scale`` or of the result; None adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed if ``symmetric`` is False.
            If it is None, each call computes it.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-2.0, 127.0]])
        >>> w, sw = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8), torch.tensor([1.0, 0.5])
        >>> baraquant.ops.quantized_linear(x, w, sw)
        tensor([[  1.0000,  63.5000],
                [ -2.0000, 127.0000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the
            input and its scales.

    Gradient:
        Straight through the rounding of ``input``, as :func:`qat_linear` does it: ``grad @ w^``
        with ``w^ = dequantize_per_channel(weight, weight_scale, None, 0)`` in the dtype of
        ``input``. A symmetric scale clips nothing, and nothing is kept for it. With an asymmetric
        scale the gradient is 0 where x lay outside the range, and one bit per element is kept.
        ``bias`` gets the sum over tokens. Differentiable twice. A scale that requires grad raises
        NotImplementedError.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype. One NaN or
        infinity makes its token's results NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
    """
    result: Tensor = torch.ops.baraquant.quantized_linear.default(
        input,
        weight,
        weight_scale,
        bias,
        symmetric=symmetric,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@operator
def static_quantized_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    act_scale: Tensor,
    bias: Tensor | None = None,
    *,
    act_zero_point: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize the input to int8 with one scale that is given, and multiply in integers.

    ``y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]`` with ``q =
    quantize_per_tensor(input, s, z, quant_min,
    quant_max)``; where ``smooth_scale`` is given, with ``q = quantize_per_channel(input,
    smooth_scale, z, -1, quant_min, quant_max)``

    This combines both steps of :func:`smoothquant_linear`, so that the input gets a gradient.

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 with a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous, as
            :func:`dynamic_range_quantize_per_channel` gives them for ``axis`` 0 of a matrix.
        weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
        act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        act_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0. In the
            sums, a value that int8 does not hold counts as the nearest one.
        smooth_scale: ``s * smooth``, ``[K]``, of the dtype of ``weight_scale``: the input is
            divided by ``smooth``, and the weight was multiplied by it. None: no smoothing.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.
        quant_min: The smallest integer of the input, at least -128. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-2.0, 0.2]])
        >>> w, sw = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8), torch.tensor([1.0, 0.5])
        >>> baraquant.ops.static_quantized_linear(x, w, sw, torch.tensor(0.5))
        tensor([[ 1.0000, 63.5000],
                [-2.0000,  0.0000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device, a gradient of a scale; :func:`torch.vmap`
            over anything but the input.

    Gradient:
        Straight through the rounding of ``input``, as :func:`qat_linear` does it: ``grad @ w^``
        with ``w^ = dequantize_per_channel(weight, weight_scale, None, 0)`` in the dtype of
        ``input``. It is 0 where x lay outside the range (its ends are inside); one bit per element
        is kept. With ``smooth_scale`` it is multiplied by ``act_scale / smooth_scale``. ``bias``
        gets the sum over tokens. Differentiable twice. A scale that requires grad raises
        NotImplementedError.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype. A NaN
        becomes the zero point, an infinity an end of the range.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
        Language Models".
    """
    result: Tensor = torch.ops.baraquant.static_quantized_linear.default(
        input,
        weight,
        weight_scale,
        act_scale,
        bias,
        act_zero_point=act_zero_point,
        smooth_scale=smooth_scale,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@operator
def qat_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_quant_min: int = -128,
    weight_quant_max: int = 127,
    quant_min: int = -128,
    quant_max: int = 127,
    backward: str = "float",
    rounding: str = "nearest",
    qweight: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Quantize weights and tokens to int8 and multiply them in integers, differentiably.

    ``y = quantized_linear(input, w, sw, bias, symmetric=symmetric, quant_min=quant_min,
    quant_max=quant_max)`` with ``w, sw, _ = dynamic_range_quantize_per_channel(weight, 0,
    weight_quant_min, weight_quant_max)``, or the ``qweight`` and ``weight_scale`` that are given

    What is trained is, bit for bit, what is deployed. Under autocast the input is cast first, as
    that of :func:`torch.nn.functional.linear` is; the weight is not, and so has the integers that
    are deployed.

    Args:
        input: ``[..., K]``; float32, float64, float16 or bfloat16. Any strides; what is not
            contiguous is copied first. K is at most 131071, or 65536 if ``symmetric`` is False.
        weight: ``[N, K]``, of the compute type of ``input``: it may be float32 where that has 16
            bits, as a master weight is.
        bias: ``[N]``, of the dtype of ``input``, or float32 (float64 for a float64 input); None
            adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``. The
            weight is always symmetric.
        weight_quant_min: The smallest integer of the weight: ``-weight_quant_max`` or one less, and
            at least -128. Four bits are -8 and 7.
        weight_quant_max: The largest integer of the weight, 1 to 127.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        backward: How the backward pass computes, see below: ``"float"``, ``"int8_input"`` (the
            gradient of ``input`` from integers) or ``"int8"`` (that of ``weight`` too).
        rounding: How ``"int8_input"`` and ``"int8"`` round the gradient of the output:
            ``"nearest"``, or ``"stochastic"`` with the numbers of PyTorch's generator of the
            device.
        qweight: The integers of the weight, int8 ``[N, K]``, contiguous, where they are known: of
            four bits (:func:`expand_int4`), gathered, or found by another rule.
            ``weight_quant_min`` and ``weight_quant_max`` are not used then. None: those of
            ``weight``.
        weight_scale: The scales of ``qweight``, ``[N]``, float32 (float64 for a float64 input),
            given with it or not at all.

    Returns:
        ``[..., N]``, of the dtype of ``input``, contiguous.

    Example:
        >>> x, w = torch.tensor([[1.0, 63.5]]), torch.tensor([[127.0, 0.3], [0.9, 2.0]])
        >>> baraquant.ops.qat_linear(x, w)
        tensor([[127.0000, 127.8976]])
        >>> baraquant.ops.qat_linear(x, w, weight_quant_min=-2, weight_quant_max=1)  # two bits
        tensor([[127., 127.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the
            input and its scales.

    Gradient:
        The gradient of ``linear(dynamic_fake_quantize_per_token(input),
        dynamic_fake_quantize_per_channel(weight, 0), bias)``, with the ranges of both: straight
        through the roundings, with the scales as constants; differentiable twice. The op keeps for
        the backward pass: the integers, one byte per element, and their scales; if ``symmetric`` is
        False, also one bit per element of ``input``. If the weight is a leaf (a parameter) or a
        view of one, it is kept itself instead of its integers, at no cost. Only what the requested
        gradients need is kept. With ``qweight`` the gradients are those of
        ``dequantize_per_channel(qweight, weight_scale)`` in place of the rounded weight, and that
        of ``weight`` passes straight through; the values of ``weight`` are not read. ``qweight`` is
        kept itself. With ``backward="int8_input"`` and ``"int8"`` the products of the backward pass
        are sums of integers too. The scales ``sw`` and ``s`` are folded into the gradient ``dy`` of
        the output, which is then quantized as :func:`scaled_quantize_per_token` (``qd``, ``sd`` for
        each token) and :func:`scaled_quantize_transposed` (``qe``, ``se`` for each output) do it;
        ``qw``, ``qx`` and ``z`` of the forward pass are used again as they are:
        ``dx[t, k] = (sum_n qd[t, n] * qw[n, k]) * sd[t]`` with ``qd, sd`` from
        ``dy[t, n] * sw[n]``, ``dw[n, k] = (sum_t qe[n, t] * (qx[t, k] - z[t])) * se[n]`` with
        ``qe, se`` from ``dy[t, n] * s[t]``. Both are computed as in :func:`int8_linear`, and have
        the same bits on every device. With ``"int8_input"`` the gradient of ``weight`` is a
        floating product. For ``"stochastic"`` each backward pass draws
        ``random = draw_random(dy, 2)`` for ``qd``, and ``random + [0, 1]`` for ``qe``; the
        expectation of the gradients is then that of ``"float"``, up to 2**-17 of a step. More than
        131071 tokens or outputs (65536 tokens with ``symmetric=False``) are more than an int32 sum
        holds: they are cut into the fewest blocks, of equal lengths that are a multiple of 16, but
        for the last. Each has scales of its own; their products are added in float32 (float64 for a
        float64 input), in order. Both keep the integers of the weight in any case. They cannot be
        differentiated twice: ``create_graph=True`` raises NotImplementedError.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype. One NaN or
        infinity makes the results of its token, or of its row of the weight, NaN.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.qat_linear.default(
        input,
        weight,
        bias,
        symmetric=symmetric,
        weight_quant_min=weight_quant_min,
        weight_quant_max=weight_quant_max,
        quant_min=quant_min,
        quant_max=quant_max,
        backward=backward,
        rounding=rounding,
        qweight=qweight,
        weight_scale=weight_scale,
    )
    return result


@operator
def int8_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Multiply the integers of each group of tokens by the weight of the group.

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[e, n, k]) * sw[e, n] * s[t] + bias[e,
    n]`` with the group ``e`` of token ``t``

    Each group's rows are, bit for bit, those of :func:`int8_linear` with its weight. A group may
    have no token at all. Tokens behind the last group give 0.

    Args:
        input: The integers ``q``, ``[T, K]``, the tokens of each group in adjacent rows; int8 or
            uint8. Any strides; what is not contiguous is copied first. K is at most 131071, or
            65536 for uint8 or with a zero point.
        weight: The integers ``w``, ``[E, N, K]``, int8, contiguous.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T,
            which is at most 2147483647. On a GPU only the device reads them: an offset that does
            not ascend, or exceeds T, is replaced by the nearest valid one.
        input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[T]`` or
            ``[T, 1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[E, N]``, of the dtype of ``input_scale``.
        bias: ``[E, N]``, of that dtype or of the result's; None adds no bias.
        input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands
            for 0. A value that the dtype of ``input`` does not hold counts as the nearest one.
        weight_sum: ``weight.sum(2, dtype=torch.int32)``, ``[E, N]``; needed with a zero point. If
            it is None, each call computes it.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[T, N]``, of ``dtype``, contiguous.

    Example:
        >>> q = torch.tensor([[2, 1], [-4, 0], [5, 5]], dtype=torch.int8)
        >>> w = torch.tensor([[[1, 0], [0, 2]], [[3, 0], [1, 1]]], dtype=torch.int8)
        >>> ends = torch.tensor([1, 3], dtype=torch.int32)
        >>> s, sw = torch.tensor(0.5), torch.ones(2, 2)
        >>> baraquant.ops.int8_grouped_linear(q, w, ends, s, sw)
        tensor([[ 1.0000,  1.0000],
                [-6.0000, -2.0000],
                [ 7.5000,  5.0000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        Integers have no gradient; ``bias`` gets the sum over tokens. A scale that requires grad
        raises NotImplementedError.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Groups of tokens with a weight each: Shazeer et al. 2017, "Outrageously Large Neural
        Networks: The Sparsely-Gated Mixture-of-Experts Layer".
    """
    result: Tensor = torch.ops.baraquant.int8_grouped_linear.default(
        input,
        weight,
        offsets,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )
    return result


@operator
def quantized_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_sum: Tensor | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize each token to int8, and multiply it by the weight of its group in integers.

    ``y = int8_grouped_linear(q, weight, offsets, s, weight_scale, bias,
    input_zero_point=z)`` with ``q, s, z = dynamic_range_quantize_per_token(input, quant_min,
    quant_max, symmetric=symmetric)``

    Each group's rows are, bit for bit, those of :func:`quantized_linear` with its weight. A group
    may have no token at all. Tokens behind the last group give 0.

    Args:
        input: ``[T, K]``, the tokens of each group in adjacent rows; float32, float64, float16 or
            bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or
            65536 if ``symmetric`` is False.
        weight: The integers ``w``, ``[E, N, K]``, int8, contiguous, as
            :func:`dynamic_range_quantize_per_channel` gives them for ``axis`` 0 of a matrix.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T,
            which is at most 2147483647. On a GPU only the device reads them: an offset that does
            not ascend, or exceeds T, is replaced by the nearest valid one.
        weight_scale: ``sw``, ``[E, N]``, float32 (float64 for a float64 input).
        bias: ``[E, N]``, of the dtype of ``weight_scale`` or of the result; None adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``.
        weight_sum: ``weight.sum(2, dtype=torch.int32)``, ``[E, N]``; needed if ``symmetric`` is
            False. If it is None, each call computes it.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
            None takes the dtype of ``input``.

    Returns:
        ``[T, N]``, of ``dtype``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 127.0], [-2.0, 127.0]])
        >>> w = torch.tensor([[[1, 0]], [[3, 1]]], dtype=torch.int8)
        >>> ends = torch.tensor([1, 2], dtype=torch.int32)
        >>> baraquant.ops.quantized_grouped_linear(x, w, ends, torch.ones(2, 1))
        tensor([[  1.],
                [121.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        Straight through the rounding of ``input``, as :func:`qat_linear` does it: ``grad @ w^``
        with ``w^ = dequantize_per_channel(weight, weight_scale, None, 0)`` in the dtype of
        ``input``. A symmetric scale clips nothing, and nothing is kept for it. With an asymmetric
        scale the gradient is 0 where x lay outside the range, and one bit per element is kept.
        ``bias`` gets the sum over tokens. Differentiable twice. A scale that requires grad raises
        NotImplementedError. All this holds for each group with its weight; a token after the last
        group gets 0. On a GPU, PyTorch's grouped product computes the floating products of the
        backward pass if the dtype is bfloat16 and N and K are multiples of 8. Otherwise the host
        reads ``offsets`` there, and waits for them.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype. One NaN or
        infinity makes its token's results NaN.

    References:
        Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".
        Groups of tokens with a weight each: Shazeer et al. 2017, "Outrageously Large Neural
        Networks: The Sparsely-Gated Mixture-of-Experts Layer".
    """
    result: Tensor = torch.ops.baraquant.quantized_grouped_linear.default(
        input,
        weight,
        offsets,
        weight_scale,
        bias,
        symmetric=symmetric,
        weight_sum=weight_sum,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
    )
    return result


@operator
def qat_grouped_linear(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    symmetric: bool = True,
    weight_quant_min: int = -128,
    weight_quant_max: int = 127,
    quant_min: int = -128,
    quant_max: int = 127,
    backward: str = "float",
    rounding: str = "nearest",
) -> Tensor:
    """Quantize weights and tokens to int8 and multiply them in groups, differentiably.

    ``y = quantized_grouped_linear(input, w, offsets, sw, bias, symmetric=symmetric,
    quant_min=quant_min, quant_max=quant_max)`` where ``w[e], sw[e], _ =
    dynamic_range_quantize_per_channel(weight[e], 0, weight_quant_min, weight_quant_max)``

    What is trained is, bit for bit, what is deployed, and each group's rows are those of
    :func:`qat_linear` with its weight. Under autocast the input is cast first, as there.

    Args:
        input: ``[T, K]``, the tokens of each group in adjacent rows; float32, float64, float16 or
            bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or
            65536 if ``symmetric`` is False.
        weight: ``[E, N, K]``, of the compute type of ``input``: it may be float32 where that has 16
            bits, as a master weight is.
        offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
            ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T,
            which is at most 2147483647. On a GPU only the device reads them: an offset that does
            not ascend, or exceeds T, is replaced by the nearest valid one.
        bias: ``[E, N]``, of the dtype of ``input``, or float32 (float64 for a float64 input); None
            adds no bias.
        symmetric: True maps 0 to the middle of the integers' range. False maps
            ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``. The
            weight is always symmetric.
        weight_quant_min: The smallest integer of the weight: ``-weight_quant_max`` or one less, and
            at least -128. Four bits are -8 and 7.
        weight_quant_max: The largest integer of the weight, 1 to 127.
        quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
            ``-quant_max`` or one less. Four bits are -8 and 7.
        quant_max: The largest integer of the input, at most 127.
        backward: ``"float"``; for groups there is no backward pass of integers yet.
        rounding: ``"nearest"``; only a backward pass of integers rounds.

    Returns:
        ``[T, N]``, of the dtype of ``input``, contiguous.

    Example:
        >>> x = torch.tensor([[1.0, 127.0], [1.0, 127.0]])
        >>> w = torch.tensor([[[127.0, 0.3]], [[0.0, 127.0]]])
        >>> ends = torch.tensor([1, 2], dtype=torch.int32)
        >>> baraquant.ops.qat_grouped_linear(x, w, ends)
        tensor([[  127.],
                [16129.]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap`.

    Gradient:
        The gradient of ``linear(dynamic_fake_quantize_per_token(input),
        dynamic_fake_quantize_per_channel(weight, 0), bias)``, with the ranges of both: straight
        through the roundings, with the scales as constants; differentiable twice. The op keeps for
        the backward pass: the integers, one byte per element, and their scales; if ``symmetric`` is
        False, also one bit per element of ``input``. If the weight is a leaf (a parameter) or a
        view of one, it is kept itself instead of its integers, at no cost. Only what the requested
        gradients need is kept. All this holds for each group with its weight; a token after the
        last group gets 0. On a GPU, PyTorch's grouped product computes the floating products of the
        backward pass if the dtype is bfloat16 and N and K are multiples of 8. Otherwise the host
        reads ``offsets`` there, and waits for them.

    Rounding:
        The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
        float32 (float64 for a float64 result), with one rounding to the result's dtype. One NaN or
        infinity makes the results of its token, or of its row of the weight, NaN.

    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
        Stochastic Neurons for Conditional Computation".
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
        Groups of tokens with a weight each: Shazeer et al. 2017, "Outrageously Large Neural
        Networks: The Sparsely-Gated Mixture-of-Experts Layer".
    """
    result: Tensor = torch.ops.baraquant.qat_grouped_linear.default(
        input,
        weight,
        offsets,
        bias,
        symmetric=symmetric,
        weight_quant_min=weight_quant_min,
        weight_quant_max=weight_quant_max,
        quant_min=quant_min,
        quant_max=quant_max,
        backward=backward,
        rounding=rounding,
    )
    return result


@operator
def int8_product(
    input: Tensor,
    weight: Tensor,
    *,
    input_zero_point: Tensor | None = None,
    weight_sum: Tensor | None = None,
) -> Tensor:
    """Multiply integers and return their exact sums.

    ``acc[t, n] = sum_k (q[t, k] - z[t]) * w[n, k]``

    These are the sums of :func:`int8_linear`, which are added and cut up without an error: those of
    a weight whose columns lie on several processes are the sum of theirs. :func:`rescale_product`
    makes numbers of them.

    Args:
        input: The integers ``q``, ``[..., K]``; int8 or uint8. Any strides; what is not contiguous
            is copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
        weight: The integers ``w``, ``[N, K]``, int8, contiguous.
        input_zero_point: ``z``: one for all, ``[]`` or ``[1]``, or one for each token, ``[...]`` or
            ``[..., 1]``; of any integer dtype; None stands for 0. A value that the dtype of
            ``input`` does not hold counts as the nearest one.
        weight_sum: ``weight.sum(1, dtype=torch.int32)``, ``[N]``; needed with a zero point. If it
            is None, each call computes it.

    Returns:
        ``[..., N]``, int32, contiguous.

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int8)
        >>> baraquant.ops.int8_product(q, w)
        tensor([[  2, 254, 129],
                [ -4,   0,  -4]], dtype=torch.int32)

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the
            input and its zero points.

    Gradient:
        Integers have none, and the result requires none.

    Rounding:
        There is none: this is why K is limited.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.int8_product.default(
        input, weight, input_zero_point=input_zero_point, weight_sum=weight_sum
    )
    return result


@operator
def rescale_product(
    input: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Scale the sums of a product of integers back to numbers: the last step of ``int8_linear``.

    ``y[t, n] = acc[t, n] * sw[n] * s[t] + bias[n]``

    ``rescale_product(int8_product(q, w), s, sw, bias)`` has the bits of
    ``int8_linear(q, w, s, sw, bias)``.

    Args:
        input: The sums ``acc``, ``[..., N]``, int32. Any strides; what is not contiguous is copied
            first.
        input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[...]`` or
            ``[..., 1]``; float32 (float64 for a float64 result).
        weight_scale: ``sw``, ``[N]``, of the dtype of ``input_scale``.
        bias: ``[N]``, of that dtype or of the result's; None adds no bias.
        dtype: The dtype of the result: float32, float64, float16 or bfloat16.

    Returns:
        ``[..., N]``, of ``dtype``, contiguous.

    Example:
        >>> acc = torch.tensor([[2, 254, 129], [-4, 0, -4]], dtype=torch.int32)
        >>> s, sw = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5, 2.0])
        >>> baraquant.ops.rescale_product(acc, s, sw)
        tensor([[  1.0000,  63.5000, 129.0000],
                [ -1.0000,   0.0000,  -2.0000]])

    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that it does not take.
        NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the
            input and its scales.

    Gradient:
        None: a scale or a bias that requires grad raises NotImplementedError. The differentiable op
        is :func:`int8_linear` (in its bias), :func:`quantized_linear` or :func:`qat_linear`.

    Rounding:
        ``fma(acc * sw[n], s[t], bias[n])`` in float32 (float64 for a float64 result), with one
        rounding to the result's dtype.

    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
    """
    result: Tensor = torch.ops.baraquant.rescale_product.default(
        input, input_scale, weight_scale, bias, dtype=dtype
    )
    return result
