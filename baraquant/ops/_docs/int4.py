# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of weights of four bits, and of their products."""

from .._limits import MAX_FEATURES, MAX_SHIFTED_FEATURES
from . import JACOB, RAISES, STRAIGHT_THROUGH, ZEROQUANT

_RAISES = f"""\
{RAISES}
    NotImplementedError: No kernel for the device; :func:`torch.vmap`."""
_TWO_LEVELS = """\
    Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs",
    section 3. Here the inner one is a whole number, so that products stay sums of integers: Lin et
    al. 2024, "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving"."""
_NO_GRADIENT = """\
Gradient:
    None: autograd takes what is chosen from data as a constant, and integers have no gradient."""
_GROUP_SIZE = """\
    group_size: The columns of a group, an even number of at most 2147483646; the last group of a
        row may have fewer."""
_FACTOR = """\
    group_factor: ``f``, ``[N, G]``, uint8, 1 to 16, with ``G = ceil(K / group_size)``."""
_ZERO_POINT = """\
    group_zero_point: ``z``, ``[N, G]``, uint8, 0 to 15; None stands for 8."""
_PACKED = """\
    packed: The numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the low
        four bits of byte ``i``, number ``2 i + 1`` in the high ones."""

CHOOSE_INT4_QPARAMS = f"""
Args:
    weight: ``[N, K]``, float32, float64, float16 or bfloat16. Any strides; what is not contiguous
        is copied first.
{_GROUP_SIZE}
    symmetric: True puts 0 in the middle: all zero points are 8. False gives each group the zero
        point of its range ``[min(0, min w), max(0, max w)]``.

Returns:
    The scale, ``[N]``, float32 (float64 for a float64 weight).
    The factor ``f``, ``[N, ceil(K / group_size)]``, uint8, 1 to 16.
    The zero point ``z``, of the same shape and dtype, 0 to 15.

$example

{_RAISES}

{_NO_GRADIENT}

Rounding:
    ``scale = max |w| / 112`` (of a row; 1 for zeros, otherwise at least the smallest normal
    number). Symmetric: ``f = ceil((max |w| / 7) / scale)`` of a group. Asymmetric, with ``low`` and
    ``high`` the ends of its range: ``f = ceil((high / 15 - low / 15) / scale)`` and
    ``z = rint(-low / (scale * f))``. Each step is rounded in the dtype of ``scale``; ``f`` is
    clamped to [1, 16] and ``z`` to [0, 15], where a NaN gives 1 and 0. One NaN or infinity makes
    the scale of its row NaN or infinite, and so all factors of the row 1, and its zero points 0 if
    they are not 8.

References:
{_TWO_LEVELS}
"""

QUANTIZE_INT4 = f"""
Args:
    weight: ``[N, K]``, float32, float64, float16 or bfloat16. Any strides; what is not contiguous
        is copied first.
    scale: ``[N]``, float32 (float64 for a float64 weight).
{_FACTOR}
{_GROUP_SIZE}
{_ZERO_POINT}

Returns:
    The packed numbers ``u``, ``[N, ceil(K / 2)]``, uint8: number ``2 i`` of a row is in the low
    four bits of byte ``i``, number ``2 i + 1`` in the high ones. The last byte of an odd row has
    zeros there.

$example

{_RAISES}

{_NO_GRADIENT}

Rounding:
    As :func:`quantize_per_channel` with the scale ``scale * f``, rounded once, and the zero point
    ``z``. The range is [0, 15] without the numbers whose ``(u - z) * f`` an int8 cannot hold; with
    what :func:`choose_int4_qparams` gives there are none of those. A NaN becomes ``z``.

References:
{JACOB}
{_TWO_LEVELS}
"""

EXPAND_INT4 = f"""
Args:
{_PACKED}
{_FACTOR}
{_GROUP_SIZE}
    in_features: K.
{_ZERO_POINT}

Returns:
    ``w8``, ``[N, K]``, int8, contiguous. It is computed modulo 256 where an int8 cannot hold it,
    which :func:`quantize_int4` never gives.

$example

{_RAISES}

{_NO_GRADIENT}

Rounding:
    None: integers are multiplied.

References:
{_TWO_LEVELS}
"""

PACK_INT4 = f"""
Args:
    integers: ``q``, ``[N, K]``, int8, -8 to 7; of others the low four bits of ``q + 8`` count. Any
        strides; what is not contiguous is copied first.

Returns:
    ``[N, ceil(K / 2)]``, uint8, contiguous. With ``group_zero_point`` None, :func:`expand_int4`
    gives ``q * f``. In memory each row has the bits of compressed-tensors' ``weight_packed`` for
    four bits if K is a multiple of 8.

$example

{_RAISES}

Gradient:
    None: integers have no gradient.

Rounding:
    None: integers are copied.

References:
    The format of rows: compressed-tensors, "pack-quantized".
"""

_WEIGHT = f"""\
{_PACKED} Contiguous."""
_WEIGHT_SUM = """\
    weight_sum: ``w8.sum(1, dtype=torch.int32)``, ``[N]``; needed"""
_COMPUTED = "If it is None, each call expands the weight and computes it."
_INTEGER_RANGE = """\
    quant_max: The largest integer of the input, at most 127."""
_DTYPE_OF_INPUT = """\
    dtype: The dtype of the result: float32, float16 or bfloat16 (float64 for a float64 input);
        None takes the dtype of ``input``."""
_NUMBERS = f"""\
    input: ``[..., K]``;
        float32, float64, float16 or bfloat16. Any strides; what is not contiguous is copied first.
        K is at most {MAX_FEATURES}, or {MAX_SHIFTED_FEATURES}"""
_RETURNS = """\
Returns:
    ``[..., N]``, of ``dtype``, contiguous.

$example"""
_ROUNDING = """\
Rounding:
    The bits are those of $verb
    with ``weight = expand_int4(packed, group_factor, group_size, K,
    group_zero_point=group_zero_point)``: all of K is one exact sum of integers. On the CPU the
    weight is expanded part by part, in a cache. On a GPU it is expanded into memory first."""
_GRADIENT = """\
Gradient:
    That of $verb
    with the expanded weight, which is kept for the backward pass as int8. The packed weight and
    its factors have none; a scale that requires grad raises NotImplementedError."""

INT4_LINEAR = f"""
Args:
    input: The integers ``q``, ``[..., K]``;
        int8 or uint8. Any strides; what is not contiguous is copied first. K is at most
        {MAX_FEATURES}, or {MAX_SHIFTED_FEATURES} for uint8 or with a zero point.
{_WEIGHT}
    input_scale: ``s``: one for all, ``[]`` or ``[1]``, or one for each token, ``[...]`` or
        ``[..., 1]``; float32 (float64 for a float64 result).
    weight_scale: ``sw``, ``[N]``, of the dtype of ``input_scale``.
{_FACTOR}
{_GROUP_SIZE}
    bias: ``[N]``, of the dtype of ``input_scale`` or of the result; None adds no bias.
{_ZERO_POINT}
    input_zero_point: ``z``, shaped as ``input_scale`` may be, of any integer dtype; None stands for
        0. A value that the dtype of ``input`` does not hold counts as the nearest one.
{_WEIGHT_SUM} with a zero point of the input.
        {_COMPUTED}
    dtype: The dtype of the result: float32, float64, float16 or bfloat16.

{_RETURNS}

{_RAISES}

{_GRADIENT.replace("$verb", ":func:`int8_linear`")}

{_ROUNDING.replace("$verb", ":func:`int8_linear`")}

References:
{JACOB}
{_TWO_LEVELS}
"""

QUANTIZED_INT4_LINEAR = f"""
Args:
{_NUMBERS} if ``symmetric`` is False.
{_WEIGHT}
    weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
{_FACTOR}
{_GROUP_SIZE}
    bias: ``[N]``, of the dtype of ``weight_scale`` or of the result; None adds no bias.
{_ZERO_POINT}
    symmetric: True maps 0 of the input to the middle of the integers' range. False maps
        ``[min(0, min x), max(0, max x)]`` of each token to ``[quant_min, quant_max]``.
{_WEIGHT_SUM} if ``symmetric`` is False.
        {_COMPUTED}
    quant_min: The smallest integer of the input, at least -128. If ``symmetric`` is True, it is
        ``-quant_max`` or one less.
{_INTEGER_RANGE}
{_DTYPE_OF_INPUT}

{_RETURNS}

{_RAISES}

{_GRADIENT.replace("$verb", ":func:`quantized_linear`")}

{_ROUNDING.replace("$verb", ":func:`quantized_linear`")}
    One NaN or infinity makes its token's results NaN.

References:
{ZEROQUANT}
{STRAIGHT_THROUGH}
{_TWO_LEVELS}
"""

STATIC_QUANTIZED_INT4_LINEAR = f"""
Args:
{_NUMBERS} with a zero point.
{_WEIGHT}
    weight_scale: ``sw``, ``[N]``, float32 (float64 for a float64 input).
{_FACTOR}
{_GROUP_SIZE}
    act_scale: ``s``, ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
    bias: ``[N]``, of that dtype or of the result's; None adds no bias.
{_ZERO_POINT}
    act_zero_point: ``z``, ``[]`` or ``[1]``, of any integer dtype; None stands for 0. In the sums,
        a value that int8 does not hold counts as the nearest one.
    smooth_scale: ``s * smooth``, ``[K]``, of the dtype of ``weight_scale``: the input is divided by
        ``smooth``, and the weight was multiplied by it. None: no smoothing.
{_WEIGHT_SUM} with a zero point of the input.
        {_COMPUTED}
    quant_min: The smallest integer of the input, at least -128.
{_INTEGER_RANGE}
{_DTYPE_OF_INPUT}

{_RETURNS}

{_RAISES}

{_GRADIENT.replace("$verb", ":func:`static_quantized_linear`")}

{_ROUNDING.replace("$verb", ":func:`static_quantized_linear`")}
    A NaN becomes the zero point, an infinity an end of the range.

References:
{JACOB}
{STRAIGHT_THROUGH}
{_TWO_LEVELS}
"""
