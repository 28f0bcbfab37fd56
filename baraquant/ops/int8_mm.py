# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family: linear layers that multiply integers and sum them exactly.

The ``grouped`` ones have a weight for each group of tokens (mixture of experts). The other sections
of the docstrings are in ``_docs/int8_mm.py``.
"""

import torch
from torch import Tensor

from ._docs.int8_mm import (
    GROUPED,
    INT8_LINEAR,
    INT8_PRODUCT,
    ONE_WEIGHT,
    QAT_LINEAR,
    QUANTIZED_LINEAR,
    RESCALE_PRODUCT,
    SMOOTHQUANT_LINEAR,
    STATIC_QUANTIZED_LINEAR,
)
from ._operator import operator


@operator(INT8_LINEAR, ONE_WEIGHT)
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

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int8)
        >>> s, sw = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5, 2.0])
        >>> baraquant.ops.int8_linear(q, w, s, sw)
        tensor([[  1.0000,  63.5000, 129.0000],
                [ -1.0000,   0.0000,  -2.0000]])
    """
    return torch.ops.baraquant.int8_linear.default(
        input,
        weight,
        input_scale,
        weight_scale,
        bias,
        input_zero_point=input_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )


@operator(SMOOTHQUANT_LINEAR, ONE_WEIGHT)
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

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8)
        >>> baraquant.ops.smoothquant_linear(q, w, torch.tensor([1.0, 0.5]), 0.5)
        tensor([[ 1.0000, 63.5000],
                [-2.0000,  0.0000]])
    """
    if isinstance(act_scale, (int, float)):
        return torch.ops.baraquant.smoothquant_linear.number(
            input,
            weight,
            weight_scale,
            act_scale,
            bias,
            act_zero_point=act_zero_point,
            weight_sum=weight_sum,
            dtype=dtype,
        )
    return torch.ops.baraquant.smoothquant_linear.default(
        input,
        weight,
        weight_scale,
        act_scale,
        bias,
        act_zero_point=act_zero_point,
        weight_sum=weight_sum,
        dtype=dtype,
    )


@operator(QUANTIZED_LINEAR, ONE_WEIGHT)
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

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]`` with
    ``q, s, z = dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)``

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-2.0, 127.0]])
        >>> w, sw = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8), torch.tensor([1.0, 0.5])
        >>> baraquant.ops.quantized_linear(x, w, sw)
        tensor([[  1.0000,  63.5000],
                [ -2.0000, 127.0000]])
    """
    return torch.ops.baraquant.quantized_linear.default(
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


@operator(STATIC_QUANTIZED_LINEAR, ONE_WEIGHT)
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

    ``y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]`` with
    ``q = quantize_per_tensor(input, s, z, quant_min, quant_max)``; where ``smooth_scale`` is given,
    with ``q = quantize_per_channel(input, smooth_scale, z, -1, quant_min, quant_max)``

    This combines both steps of :func:`smoothquant_linear`, so that the input gets a gradient.

    Example:
        >>> x = torch.tensor([[1.0, 63.5], [-2.0, 0.2]])
        >>> w, sw = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8), torch.tensor([1.0, 0.5])
        >>> baraquant.ops.static_quantized_linear(x, w, sw, torch.tensor(0.5))
        tensor([[ 1.0000, 63.5000],
                [-2.0000,  0.0000]])
    """
    return torch.ops.baraquant.static_quantized_linear.default(
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


@operator(QAT_LINEAR, ONE_WEIGHT)
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

    Example:
        >>> x, w = torch.tensor([[1.0, 63.5]]), torch.tensor([[127.0, 0.3], [0.9, 2.0]])
        >>> baraquant.ops.qat_linear(x, w)
        tensor([[127.0000, 127.8976]])
        >>> baraquant.ops.qat_linear(x, w, weight_quant_min=-2, weight_quant_max=1)  # two bits
        tensor([[127., 127.]])
    """
    return torch.ops.baraquant.qat_linear.default(
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


@operator(INT8_LINEAR, GROUPED)
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

    ``y[t, n] = (sum_k (q[t, k] - z[t]) * w[e, n, k]) * sw[e, n] * s[t] + bias[e, n]`` with the
    group ``e`` of token ``t``

    Each group's rows are, bit for bit, those of :func:`int8_linear` with its weight. A group may
    have no token at all. Tokens behind the last group give 0.

    Example:
        >>> q = torch.tensor([[2, 1], [-4, 0], [5, 5]], dtype=torch.int8)
        >>> w = torch.tensor([[[1, 0], [0, 2]], [[3, 0], [1, 1]]], dtype=torch.int8)
        >>> ends = torch.tensor([1, 3], dtype=torch.int32)
        >>> s, sw = torch.tensor(0.5), torch.ones(2, 2)
        >>> baraquant.ops.int8_grouped_linear(q, w, ends, s, sw)
        tensor([[ 1.0000,  1.0000],
                [-6.0000, -2.0000],
                [ 7.5000,  5.0000]])
    """
    return torch.ops.baraquant.int8_grouped_linear.default(
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


@operator(QUANTIZED_LINEAR, GROUPED)
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

    ``y = int8_grouped_linear(q, weight, offsets, s, weight_scale, bias, input_zero_point=z)`` with
    ``q, s, z = dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)``

    Each group's rows are, bit for bit, those of :func:`quantized_linear` with its weight. A group
    may have no token at all. Tokens behind the last group give 0.

    Example:
        >>> x = torch.tensor([[1.0, 127.0], [-2.0, 127.0]])
        >>> w = torch.tensor([[[1, 0]], [[3, 1]]], dtype=torch.int8)
        >>> ends = torch.tensor([1, 2], dtype=torch.int32)
        >>> baraquant.ops.quantized_grouped_linear(x, w, ends, torch.ones(2, 1))
        tensor([[  1.],
                [121.]])
    """
    return torch.ops.baraquant.quantized_grouped_linear.default(
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


@operator(QAT_LINEAR, GROUPED)
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

    Example:
        >>> x = torch.tensor([[1.0, 127.0], [1.0, 127.0]])
        >>> w = torch.tensor([[[127.0, 0.3]], [[0.0, 127.0]]])
        >>> ends = torch.tensor([1, 2], dtype=torch.int32)
        >>> baraquant.ops.qat_grouped_linear(x, w, ends)
        tensor([[  127.],
                [16129.]])
    """
    return torch.ops.baraquant.qat_grouped_linear.default(
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


@operator(INT8_PRODUCT, ONE_WEIGHT)
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

    Example:
        >>> q = torch.tensor([[2, 127], [-4, 0]], dtype=torch.int8)
        >>> w = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int8)
        >>> baraquant.ops.int8_product(q, w)
        tensor([[  2, 254, 129],
                [ -4,   0,  -4]], dtype=torch.int32)
    """
    return torch.ops.baraquant.int8_product.default(
        input, weight, input_zero_point=input_zero_point, weight_sum=weight_sum
    )


@operator(RESCALE_PRODUCT, ONE_WEIGHT)
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

    Example:
        >>> acc = torch.tensor([[2, 254, 129], [-4, 0, -4]], dtype=torch.int32)
        >>> s, sw = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5, 2.0])
        >>> baraquant.ops.rescale_product(acc, s, sw)
        tensor([[  1.0000,  63.5000, 129.0000],
                [ -1.0000,   0.0000,  -2.0000]])
    """
    return torch.ops.baraquant.rescale_product.default(
        input, input_scale, weight_scale, bias, dtype=dtype
    )
