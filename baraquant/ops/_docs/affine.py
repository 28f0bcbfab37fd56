# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of the affine family and of its gradients; the four granularities."""

from . import JACOB, RAISES_OF_ELEMENTS, STRAIGHT_THROUGH

# ---- What the granularities call their arguments ------------------------------------------------

PER_TENSOR = {
    "name": "per_tensor",
    "s": "s",
    "z": "z",
    "segment": "tensor",
    "shape": "``[]`` or ``[1]``",
    "or_number": "",
    "or_int": "",
    "axis": "",
}
PER_TENSOR_OR_NUMBER = PER_TENSOR | {
    "or_number": "; or a number > 0",
    "or_int": """
        It may be an int in the range (for dequantize: an int of 32 bits). If ``scale`` is a number,
        it must be an int or None.""",
}
PER_CHANNEL = PER_TENSOR | {
    "name": "per_channel",
    "s": "s[c]",
    "z": "z[c]",
    "segment": "channel",
    "shape": "``[C]``, for the ``C`` indices of ``axis``",
    "axis": "axis: The dimension of the channels; a negative one counts from the end.",
}
PER_TOKEN = PER_TENSOR | {
    "name": "per_token",
    "s": "s[t]",
    "z": "z[t]",
    "segment": "token",
    "shape": "``[..., 1]`` or ``[...]``, for a tensor ``[..., D]``",
}
PER_GROUP = PER_TENSOR | {
    "name": "per_group",
    "s": "s[g]",
    "z": "z[g]",
    "segment": "group",
    "shape": "``[..., G, ...]``, where ``G = ceil(n / group_size)`` for the ``n`` along ``axis``",
    "axis": """\
group_size: The number of neighbours that share a scale; the last group may be shorter.
    axis: The dimension along which the groups lie.""",
}

# ---- What several verbs say ---------------------------------------------------------------------

_SCALE = """\
    scale: $shape,
        float32 (float64 for a float64 input)$or_number."""
_ZERO_POINT = """\
    zero_point: Shaped like ``scale``, any integer dtype; None stands for 0.$or_int"""
_LEARNED_ZERO_POINT = """\
    zero_point: Shaped like ``scale``, integer or floating; None stands for 0.$or_int"""
_RANGE = """\
    quant_min: The smallest integer.
    quant_max: The largest integer."""
_SAVE_MASK = """\
    save_mask: What is kept for the backward pass. True: one bit per element. False: the input.
        None: the input if it is a leaf (a parameter) or a view of one, else the bits."""
_ROUNDING = """\
    Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
    rounding. Computed in float32, or in float64 for a float64 input, with one rounding to the
    result's dtype."""
_DEQUANTIZE_ROUNDING = """\
    Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is float64,
    else float32), with one rounding to the result's dtype, ties to even. NaN stays NaN."""
_LEARNED = f"""\
{STRAIGHT_THROUGH}
    Gradient of the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero point:
    Bhalgat et al. 2020, "LSQ+"."""

# ---- The verbs ----------------------------------------------------------------------------------

QUANTIZE = f"""
``q = clamp(rint(x / $s) + $z, quant_min, quant_max)``

Args:
    input: Any shape; float32, float64, float16 or bfloat16.
{_SCALE}
{_ZERO_POINT}
    $axis
{_RANGE}
    dtype: int8, uint8, or a floating dtype (the differentiable form).
{_SAVE_MASK}

Returns:
    The integers, with the shape of ``input`` and of ``dtype``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    If ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included), and 0
    elsewhere; differentiable twice. Integers have no gradient.

Rounding:
{_ROUNDING} NaN gives the zero point, an infinity an end of the range.

References:
{JACOB}
"""

DEQUANTIZE = f"""
``y = (q - $z) * $s``

Args:
    input: Any shape; int8, uint8, or floating (the differentiable form).
    scale: $shape,
        float32 or float64, which is the dtype of the computation$or_number.
{_ZERO_POINT}
    $axis
    dtype: A floating dtype; None stands for the dtype of the computation.

Returns:
    The numbers, with the shape of ``input`` and of ``dtype``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    If ``input`` is floating: ``grad * s``; differentiable twice. Integers have no gradient.

Rounding:
{_DEQUANTIZE_ROUNDING}

References:
{JACOB}
"""

FAKE_QUANTIZE = f"""
``y = (clamp(rint(x / $s) + $z, quant_min, quant_max) - $z) * $s``

Args:
    input: Any shape; float32, float64, float16 or bfloat16.
{_SCALE}
{_LEARNED_ZERO_POINT}
    $axis
{_RANGE}
{_SAVE_MASK}
        If the scale or the zero point is learned, the input is always kept.

Returns:
    The rounded numbers, with the shape and the dtype of ``input``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere;
    differentiable twice. A scale that requires grad gets the sum over its segment of
    ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside. A floating
    zero point that requires grad gets the sum of ``-s * grad`` outside the range; the forward pass
    uses ``rint(z)``, clamped to the range. The sums are float64 and give the same bits in every
    run. The formulas hold for a negative scale as they stand: ``x / s`` is then of the other sign,
    and so is the side on which x is clamped.

Rounding:
{_ROUNDING} NaN stays NaN, an infinity gives an end of the range.

References:
{_LEARNED}
"""

# ---- The gradients ------------------------------------------------------------------------------

_OF_INPUT = f"""
Returns:
    The gradient, with the shape and the dtype of ``input``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    Linear in ``grad``, and differentiable in it.

Rounding:
{_ROUNDING} A NaN x lies outside the range.

References:\
"""
_OF_FAKE_QUANTIZE = f"""
Args:
    grad: Shaped like ``input``, of its dtype.
    input: The tensor that was rounded, floating, of any shape.
{_SCALE}
{_LEARNED_ZERO_POINT}
    $axis
{_RANGE}
"""

QUANTIZE_BACKWARD = f"""
``dx = grad / $s where quant_min <= rint(x / $s) + $z <= quant_max, else 0``

Args:
    grad: Shaped like ``input``, floating: the gradient of the quantized values.
    input: The tensor that was quantized, floating, of any shape.
{_SCALE}
{_ZERO_POINT}
    $axis
{_RANGE}
{_OF_INPUT}
{JACOB}
"""

FAKE_QUANTIZE_BACKWARD = f"""
``dx = grad where quant_min <= rint(x / $s) + $z <= quant_max, else 0``
{_OF_FAKE_QUANTIZE}{_OF_INPUT}
{_LEARNED}
"""

FAKE_QUANTIZE_BACKWARD_QPARAMS = f"""
``ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))``
``dz = sum(0 where x is inside the range, else -s * grad)``
{_OF_FAKE_QUANTIZE}
Returns:
    The gradients of ``input``, of ``scale`` and of ``zero_point``, computed in one pass; each has
    the shape and the dtype of its tensor. For a ``zero_point`` that is not floating the dtype is
    that of ``scale``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    None: the gradients of scale and zero point cannot be differentiated again.

Rounding:
{_ROUNDING} Sums are float64; a NaN x adds nothing to the scale's sum.

References:
{_LEARNED}
"""

DEQUANTIZE_BACKWARD = f"""
``dq = grad * $s``

Args:
    grad: Any shape, floating: the gradient of the numbers.
    scale: $shape,
        float32 or float64, which is the dtype of the computation.
    $axis
    dtype: The dtype of the gradient; None stands for that of ``grad``.

Returns:
    The gradient, with the shape of ``grad`` and of ``dtype``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    Linear in ``grad``, and differentiable in it.

Rounding:
{_DEQUANTIZE_ROUNDING}

References:
{JACOB}
"""
