# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of the integer matrix family; products with one weight, and with groups."""

from .._limits import MAX_FEATURES, MAX_SHIFTED_FEATURES
from . import JACOB, RAISES, STRAIGHT_THROUGH, ZEROQUANT

# ---- One weight for all tokens, or a weight for each group of tokens ----------------------------

ONE_WEIGHT = {
    "input": "``[..., K]``",
    "each": "``[...]`` or ``[..., 1]``",
    "output": "``[..., N]``",
    "e": "",
    "dim": "1",
    "offsets": "",
    "raises": """\
    NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the input
        and its scales.""",
    "grouped_gradient": " ",  # a line of spaces is left out
    "grouped_source": " ",
    "backward": """\
backward: How the backward pass computes, see below: ``"float"``, ``"int8_input"`` (the gradient
        of ``input`` from integers) or ``"int8"`` (that of ``weight`` too).
    rounding: How ``"int8_input"`` and ``"int8"`` round the gradient of the output: ``"nearest"``,
        or ``"stochastic"`` with the numbers of PyTorch's generator of the device.""",
    "given": """\
qweight: The integers of the weight, int8 ``[N, K]``, contiguous, where they are known: of four
        bits (:func:`expand_int4`), gathered, or found by another rule. ``weight_quant_min`` and
        ``weight_quant_max`` are not used then. None: those of ``weight``.
    weight_scale: The scales of ``qweight``, ``[N]``, float32 (float64 for a float64 input), given
        with it or not at all.""",
    "given_gradient": """\
    With ``qweight`` the gradients are those of ``dequantize_per_channel(qweight, weight_scale)`` in
    place of the rounded weight, and that of ``weight`` passes straight through; the values of
    ``weight`` are not read. ``qweight`` is kept itself.""",
    "integer_gradient": """\
    With ``backward="int8_input"`` and ``"int8"`` the products of the backward pass are sums of
    integers too. The scales ``sw`` and ``s`` are folded into the gradient ``dy`` of the output,
    which is then quantized as :func:`scaled_quantize_per_token` (``qd``, ``sd`` for each token) and
    :func:`scaled_quantize_transposed` (``qe``, ``se`` for each output) do it; ``qw``, ``qx`` and
    ``z`` of the forward pass are used again as they are:
    ``dx[t, k] = (sum_n qd[t, n] * qw[n, k]) * sd[t]`` with ``qd, sd`` from ``dy[t, n] * sw[n]``,
    ``dw[n, k] = (sum_t qe[n, t] * (qx[t, k] - z[t])) * se[n]`` with ``qe, se`` from
    ``dy[t, n] * s[t]``. Both are computed as in :func:`int8_linear`, and have the same bits on
    every device. With ``"int8_input"`` the gradient of ``weight`` is a floating product. For
    ``"stochastic"`` each backward pass draws ``random = draw_random(dy, 2)`` for ``qd``, and
    ``random + [0, 1]`` for ``qe``; the expectation of the gradients is then that of ``"float"``, up
    to 2**-17 of a step. More than 131071 tokens or outputs (65536 tokens with ``symmetric=False``)
    are more than an int32 sum holds: they are cut into the fewest blocks, of equal lengths that are
    a multiple of 16, but for the last. Each has scales of its own; their products are added in
    float32 (float64 for a float64 input), in order. Both keep the integers of the weight in any
    case. They cannot be differentiated twice: ``create_graph=True`` raises NotImplementedError.""",
}
GROUPED = {
    "input": "``[T, K]``, the tokens of each group in adjacent rows",
    "each": "``[T]`` or ``[T, 1]``",
    "output": "``[T, N]``",
    "e": "E, ",
    "dim": "2",
    "offsets": """\
offsets: Where the rows of each group end, ``[E]``, int32: group e has the rows from
        ``offsets[e - 1]`` (0 for the first) to ``offsets[e]``. They ascend, and none exceeds T,
        which is at most 2147483647. On a GPU only the device reads them: an offset that does not
        ascend, or exceeds T, is replaced by the nearest valid one.""",
    "raises": "    NotImplementedError: No kernel for the device; :func:`torch.vmap`.",
    "grouped_gradient": """\
    All this holds for each group with its weight; a token after the last group gets 0. On a GPU,
    PyTorch's grouped product computes the floating products of the backward pass if the dtype is
    bfloat16 and N and K are multiples of 8. Otherwise the host reads ``offsets`` there, and waits
    for them.""",
    "grouped_source": """\
    Groups of tokens with a weight each: Shazeer et al. 2017, "Outrageously Large Neural Networks:
    The Sparsely-Gated Mixture-of-Experts Layer".""",
    "backward": """\
backward: ``"float"``; for groups there is no backward pass of integers yet.
    rounding: ``"nearest"``; only a backward pass of integers rounds.""",
    "given": " ",
    "given_gradient": " ",
    "integer_gradient": " ",
}

# ---- What several verbs say ---------------------------------------------------------------------

_INTEGERS = f"""\
    input: The integers ``q``, $input;
        int8 or uint8. Any strides; what is not contiguous is copied first. K is at most
        {MAX_FEATURES}, or {MAX_SHIFTED_FEATURES} for uint8 or with a zero point."""
_NUMBERS = f"""\
    input: $input;
        float32, float64, float16 or bfloat16. Any strides; what is not contiguous is copied first.
        K is at most {MAX_FEATURES}, or {MAX_SHIFTED_FEATURES}"""
_WEIGHT = """\
    weight: The integers ``w``, ``[${e}N, K]``, int8, contiguous."""
_MADE_WEIGHT = """\
    weight: The integers ``w``, ``[${e}N, K]``, int8, contiguous, as
        :func:`dynamic_range_quantize_per_channel` gives them for ``axis`` 0 of a matrix."""
_WEIGHT_SUM = """\
    weight_sum: ``weight.sum($dim, dtype=torch.int32)``, ``[${e}N]``; needed"""
_COMPUTED = "If it is None, each call computes it."
_SYMMETRIC = """\
    symmetric: True maps 0 to the middle of the integers' range. False maps
        ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``."""
_RANGE = """\
    quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
        ``-quant_max`` or one less. Four bits are -8 and 7.
    quant_max: The largest integer of the input, at most 127."""
_DTYPE = "    dtype: The dtype of the result: float32, float64, float16 or bfloat16."
_DTYPE_OF_INPUT = """\
    dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
        None takes the dtype of ``input``."""
_RETURNS = """\
Returns:
    $output, of ``dtype``, contiguous.

$example"""
_RAISES = f"""\
{RAISES}
$raises"""
_INTEGER_GRADIENT = """\
Gradient:
    Integers have no gradient; ``bias`` gets the sum over tokens. A scale that requires grad raises
    NotImplementedError."""
_SERVED_GRADIENT = """\
Gradient:
    Straight through the rounding of ``input``, as :func:`qat_linear` does it: ``grad @ w^`` with
    ``w^ = dequantize_per_channel(weight, weight_scale, None, 0)`` in the dtype of ``input``."""
_SERVED_BIAS = """\
    ``bias`` gets the sum over tokens. Differentiable twice. A scale that requires grad raises
    NotImplementedError."""
_ROUNDING = """\
Rounding:
    The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in
    float32 (float64 for a float64 result), with one rounding to the result's dtype."""
_SMOOTHQUANT = f"""\
{JACOB}
    Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
    Language Models"."""

# ---- The verbs ----------------------------------------------------------------------------------

INT8_LINEAR = f"""
Args:
{_INTEGERS}
{_WEIGHT}
    $offsets
    input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token,
        $each; float32 (float64 for a float64 result).
    weight_scale: ``sw``, ``[${{e}}N]``, of the dtype of ``input_scale``.
    bias: ``[${{e}}N]``, of that dtype or of the result's; None adds no bias.
    input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands for
        0. A value that the dtype of ``input`` does not hold counts as the nearest one.
{_WEIGHT_SUM} with a zero point.
        {_COMPUTED}
{_DTYPE}

{_RETURNS}

{_RAISES}

{_INTEGER_GRADIENT}

{_ROUNDING}

References:
{JACOB}
$grouped_source
"""

INT8_PRODUCT = f"""
Args:
{_INTEGERS}
{_WEIGHT}
    input_zero_point: ``z``: one for all, ``[]`` or ``[1]``, or one for each token,
        $each; of any integer dtype; None stands for 0.
        A value that the dtype of ``input`` does not hold counts as the nearest one.
{_WEIGHT_SUM} with a zero point.
        {_COMPUTED}

Returns:
    $output, int32, contiguous.

$example

{RAISES}
    NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the input
        and its zero points.

Gradient:
    Integers have none, and the result requires none.

Rounding:
    There is none: this is why K is limited.

References:
{JACOB}
"""

RESCALE_PRODUCT = f"""
Args:
    input: The sums ``acc``, $output, int32.
        Any strides; what is not contiguous is copied first.
    input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token,
        $each; float32 (float64 for a float64 result).
    weight_scale: ``sw``, ``[N]``, of the dtype of ``input_scale``.
    bias: ``[N]``, of that dtype or of the result's; None adds no bias.
{_DTYPE}

{_RETURNS}

{RAISES}
    NotImplementedError: No kernel for the device; :func:`torch.vmap` over anything but the input
        and its scales.

Gradient:
    None: a scale or a bias that requires grad raises NotImplementedError. The differentiable op is
    :func:`int8_linear` (in its bias), :func:`quantized_linear` or :func:`qat_linear`.

Rounding:
    ``fma(acc * sw[n], s[t], bias[n])`` in float32 (float64 for a float64 result), with one rounding
    to the result's dtype.

References:
{JACOB}
"""

SMOOTHQUANT_LINEAR = f"""
Args:
{_INTEGERS}
{_WEIGHT}
    weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 result).
    act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``; or a number > 0.
    bias: ``[N]``, of that dtype or of the result's; None adds no bias.
    act_zero_point: ``z``: ``[]``, ``[1]`` or one for each token, of any integer dtype; an int is
        allowed only with a number as the scale; None stands for 0. Of a tensor, a value that the
        dtype of ``input`` does not hold counts as the nearest one; such a number is an error.
{_WEIGHT_SUM} with a zero point.
        {_COMPUTED}
{_DTYPE}

{_RETURNS}

{_RAISES}

{_INTEGER_GRADIENT}

{_ROUNDING}

References:
{_SMOOTHQUANT}
"""

QUANTIZED_LINEAR = f"""
Args:
{_NUMBERS} if ``symmetric`` is False.
{_MADE_WEIGHT}
    $offsets
    weight_scale: ``sw``, ``[${{e}}N]``, float32 (float64 for a float64 input).
    bias: ``[${{e}}N]``, of the dtype of ``weight_scale`` or of the result; None adds no bias.
{_SYMMETRIC}
{_WEIGHT_SUM} if ``symmetric`` is False.
        {_COMPUTED}
{_RANGE}
{_DTYPE_OF_INPUT}

{_RETURNS}

{_RAISES}

{_SERVED_GRADIENT}
    A symmetric scale clips nothing, and nothing is kept for it. With an asymmetric scale the
    gradient is 0 where x lay outside the range, and one bit per element is kept.
{_SERVED_BIAS}
$grouped_gradient

{_ROUNDING}
    One NaN or infinity makes its token's results NaN.

References:
{ZEROQUANT}
$grouped_source
"""

STATIC_QUANTIZED_LINEAR = f"""
Args:
{_NUMBERS} with a zero point.
{_MADE_WEIGHT}
    weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
    act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
    bias: ``[N]``, of that dtype or of the result's; None adds no bias.
    act_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0. In the sums,
        a value that int8 does not hold counts as the nearest one.
    smooth_scale: ``s * smooth``, ``[K]``, of the dtype of ``weight_scale``: the input is divided by
        ``smooth``, and the weight was multiplied by it. None: no smoothing.
{_WEIGHT_SUM} with a zero point.
        {_COMPUTED}
    quant_min: The smallest integer of the input, at least -128. Four bits are -8 and 7.
    quant_max: The largest integer of the input, at most 127.
{_DTYPE_OF_INPUT}

{_RETURNS}

{RAISES}
    NotImplementedError: No kernel for the device, a gradient of a scale; :func:`torch.vmap` over
        anything but the input.

{_SERVED_GRADIENT}
    It is 0 where x lay outside the range (its ends are inside); one bit per element is kept. With
    ``smooth_scale`` it is multiplied by ``act_scale / smooth_scale``.
{_SERVED_BIAS}

{_ROUNDING}
    A NaN becomes the zero point, an infinity an end of the range.

References:
{_SMOOTHQUANT}
"""

QAT_LINEAR = f"""
Args:
{_NUMBERS} if ``symmetric`` is False.
    weight: ``[${{e}}N, K]``, of the compute type of ``input``: it may be float32 where that has 16
        bits, as a master weight is.
    $offsets
    bias: ``[${{e}}N]``, of the dtype of ``input``, or float32 (float64 for a float64 input); None
        adds no bias.
{_SYMMETRIC}
        The weight is always symmetric.
    weight_quant_min: The smallest integer of the weight: ``-weight_quant_max`` or one less, and at
        least -128. Four bits are -8 and 7.
    weight_quant_max: The largest integer of the weight, 1 to 127.
{_RANGE}
    $backward
    $given

Returns:
    $output, of the dtype of ``input``, contiguous.

$example

{_RAISES}

Gradient:
    The gradient of ``linear(dynamic_fake_quantize_per_token(input),
    dynamic_fake_quantize_per_channel(weight, 0), bias)``, with the ranges of both: straight through
    the roundings, with the scales as constants; differentiable twice. The op keeps for the backward
    pass: the integers, one byte per element, and their scales; if ``symmetric`` is False, also one
    bit per element of ``input``. If the weight is a leaf (a parameter) or a view of one, it is kept
    itself instead of its integers, at no cost. Only what the requested gradients need is kept.
$given_gradient
$integer_gradient
$grouped_gradient

{_ROUNDING}
    One NaN or infinity makes the results of its token, or of its row of the weight, NaN.

References:
{STRAIGHT_THROUGH}
{JACOB}
$grouped_source
"""
