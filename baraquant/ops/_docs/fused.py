# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of the fused family: norms, activations, a rotation, and these quantized."""

# ---- What several ops say -----------------------------------------------------------------------

_QUANTIZE_ARGS = """\
    symmetric: True maps 0 to the middle of the integers' range. False maps
        ``[min(0, min y), max(0, max y)]`` to ``[quant_min, quant_max]``.
    quant_min: The smallest integer.
    quant_max: The largest integer.
    dtype: int8 or uint8, which the range has to fit."""
_QUANTIZED = """\
    The integers, with the shape of the input and of ``dtype``, contiguous.
    The scale, ``[..., 1]``, float32 (float64 for a float64 input), and the zero point, int32, with
    the shape of the scale."""
_RESIDUAL = """\
    residual: Like ``input``, of the same shape and dtype. It is added first, and the sum, rounded
        to the dtype, takes the place of ``input``."""
_RAISES = """\
Raises:
    TypeError: A tensor has an unsupported dtype.
    ValueError: A shape, a device or a number does not fit.
    NotImplementedError: The input is on a device other than CPU, CUDA and Meta."""
_RAISES_QUANTIZED = f"""\
{_RAISES}
        Or an argument requires grad."""
_NO_GRADIENT = """\
Gradient:
    None: integers carry no gradient, so a tensor that requires one is refused, rather than that
    gradients go missing. In training call the float op and then
    :func:`dynamic_fake_quantize_per_token`, which computes the same numbers."""


def _quantized(name: str) -> str:
    return f"""\
Rounding:
    The result of :func:`{name}` is rounded to the dtype of the input, and then quantized:
    the bits are those of the float op, followed by :func:`dynamic_range_quantize_per_token`."""


# ---- Norms --------------------------------------------------------------------------------------

_SUM_ORDER = """\
    Computed in ``C``: float32, or float64 for a float64 input. Each step rounds to ``C`` by itself,
    in this order: ``r = 1 / sqrt(ms + eps)`` and ``((x - m) * r) * weight + bias`` without what the
    op does not have; then one rounding to the dtype of ``input``. The means ``m`` and ``ms`` (of
    the squares of the rounded ``x - m``) are sums in float64, divided by ``D`` in float64 before
    they are rounded to ``C``. Of ``L`` partial sums, with ``L`` the power of two from ``D`` on but
    at most 4096, number ``l`` adds the elements ``l``, ``l + L``, ``l + 2 L`` and so on; then
    neighbours are added in pairs until one is left.
    A NaN makes its row NaN. An infinity makes its row of :func:`layer_norm` NaN; in
    :func:`rms_norm` it becomes NaN itself, and the rest of its row 0. Where ``ms`` of finite
    numbers leaves ``C`` (rows beyond 1.8e19 in float32, 1e154 in float64), ``r`` is 0, ``m`` is
    taken as 0, and the row is zeros times ``weight``, plus ``bias``. Where it falls below ``C``, as
    of a row of 1e-30, ``ms`` is 0."""
_NORM_INPUT = "    input: ``[..., D]``; float32, float64, float16 or bfloat16."
_EPS = """\
    eps: What is added to the mean square; at least 0, and finite when it is rounded to the dtype of
        the computation."""
_WEIGHT = "    weight: ``[D]``, of the dtype of ``input`` or of the scale; None stands for ones."
_BIAS = "    bias: ``[D]``, like ``weight``; None stands for zeros."
_NORM_GRADIENT = """\
Gradient:
    The exact formula, computed in float32 (float64 for a float64 input) and rounded once;
    differentiable twice. The input, or with a residual the sum, is kept for it."""
_NORM_RETURNS = """\
    The result, with the shape and the dtype of ``input``, contiguous; with a residual also the
    sum ``input + residual``."""
_SUM_RETURNED = "\n    With a residual also the sum ``input + residual``."

_RMS_FORMULA = "``y = x / sqrt(mean(x^2) + eps) * weight`` over the last dimension"
_RMS_REFERENCE = """\
References:
    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
"""
_LAYER_FORMULA = """\
``y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias`` with ``m = mean(x)``, over the last
dimension"""
_LAYER_REFERENCE = """\
References:
    Ba, Kiros and Hinton 2016, "Layer Normalization".
"""

RMS_NORM = f"""
{_RMS_FORMULA}

Args:
{_NORM_INPUT}
{_WEIGHT}
{_EPS}
{_RESIDUAL}

Returns:
{_NORM_RETURNS}

$example

{_RAISES}

{_NORM_GRADIENT}

Rounding:
{_SUM_ORDER}

{_RMS_REFERENCE}"""

RMS_NORM_QUANTIZE = f"""
{_RMS_FORMULA},
and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

Args:
{_NORM_INPUT}
{_WEIGHT}
{_EPS}
{_RESIDUAL}
{_QUANTIZE_ARGS}

Returns:
{_QUANTIZED}{_SUM_RETURNED}

$example

{_RAISES_QUANTIZED}

{_NO_GRADIENT}

{_quantized("rms_norm")}

{_RMS_REFERENCE}"""

LAYER_NORM = f"""
{_LAYER_FORMULA}

Args:
{_NORM_INPUT}
{_WEIGHT}
{_BIAS}
{_EPS}
{_RESIDUAL}

Returns:
{_NORM_RETURNS}

$example

{_RAISES}

{_NORM_GRADIENT}

Rounding:
{_SUM_ORDER}

{_LAYER_REFERENCE}"""

LAYER_NORM_QUANTIZE = f"""
{_LAYER_FORMULA},
and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

Args:
{_NORM_INPUT}
{_WEIGHT}
{_BIAS}
{_EPS}
{_RESIDUAL}
{_QUANTIZE_ARGS}

Returns:
{_QUANTIZED}{_SUM_RETURNED}

$example

{_RAISES_QUANTIZED}

{_NO_GRADIENT}

{_quantized("layer_norm")}

{_LAYER_REFERENCE}"""

# ---- Activations --------------------------------------------------------------------------------

_ACCURACY = """\
    Computed in float32 from operations that IEEE 754 defines, so that every device gives the same
    bits; one rounding at the end."""
_ACTIVATION_GRADIENT = """\
Gradient:
    PyTorch's formula, computed in float32 and rounded once; differentiable twice. The input is kept
    for it."""
_SILU_FORMULA = "``y = gate / (1 + exp(-gate)) * up``"
_SILU_ARGS = """\
    gate: ``[..., D]``; float32, float16 or bfloat16. It may be a part of a wider tensor, as
        ``x.chunk(2, -1)`` gives it.
    up: Like ``gate``, of the same shape and dtype."""
_SILU_REFERENCE = """\
References:
    Shazeer 2020, "GLU Variants Improve Transformer".
"""
_GELU_FORMULA = """\
``y = x * Phi(x)``, with ``Phi`` the distribution function of the normal distribution; or, by tanh,
``y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``"""
_GELU_ARGS = """\
    input: ``[..., D]``; float32, float16 or bfloat16.
    approximate: "none" or "tanh"."""
_GELU_REFERENCE = """\
References:
    Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
"""

SILU_MUL = f"""
{_SILU_FORMULA}

Args:
{_SILU_ARGS}

Returns:
    The product, with the shape and the dtype of ``gate``, contiguous.

$example

{_RAISES}

{_ACTIVATION_GRADIENT}

Rounding:
{_ACCURACY}
    For float32, ``silu(gate)`` is within ``2**-23`` of the exact value, relatively, which is at
    most 2 ulp. It is rounded to float32 before ``up`` multiplies it, so the product is within 3
    ulp. Below a ``gate`` of -91.8 silu is subnormal: within ``2**-149``, and the product within
    ``up`` times that. Of 16-bit inputs silu is within ``2**-17``, relatively, so that 18 of the
    65536 values of ``gate``, rounded, would not be rounded correctly.

{_SILU_REFERENCE}"""

SILU_MUL_QUANTIZE = f"""
{_SILU_FORMULA}, and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

Args:
{_SILU_ARGS}
{_QUANTIZE_ARGS}

Returns:
{_QUANTIZED}

$example

{_RAISES_QUANTIZED}

{_NO_GRADIENT}

{_quantized("silu_mul")}

{_SILU_REFERENCE}"""

GELU = f"""
{_GELU_FORMULA}

Args:
{_GELU_ARGS}

Returns:
    The result, with the shape and the dtype of ``input``, contiguous.

$example

{_RAISES}

{_ACTIVATION_GRADIENT}

Rounding:
{_ACCURACY}
    It is within 2 ulp of the exact value, and without tanh within 5 ulp for ``x < -1``. 16-bit
    results are within 0.51 ulp: correctly rounded but for at most 43 of the 65536 arguments.

{_GELU_REFERENCE}"""

GELU_QUANTIZE = f"""
{_GELU_FORMULA};
and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

Args:
{_GELU_ARGS}
{_QUANTIZE_ARGS}

Returns:
{_QUANTIZED}

$example

{_RAISES_QUANTIZED}

{_NO_GRADIENT}

{_quantized("gelu")}

{_GELU_REFERENCE}"""

# ---- The rotation -------------------------------------------------------------------------------

_HADAMARD_FORMULA = """\
``y = H x / sqrt(block)`` for each ``block`` neighbours along the last dimension, with Sylvester's
Hadamard matrix ``H``: ``H[i, j]`` is 1 or -1 as ``i & j`` has an even or odd number of bits"""
_HADAMARD_ARGS = """\
    input: ``[..., D]``; float32, float64, float16 or bfloat16.
    block: A power of two that divides ``D``, at most 32768."""
_HADAMARD_REFERENCE = """\
References:
    Ashkboos et al. 2024, "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs".
"""

HADAMARD = f"""
{_HADAMARD_FORMULA}

Args:
{_HADAMARD_ARGS}

Returns:
    The rotated vectors, with the shape and the dtype of ``input``, contiguous.

$example

{_RAISES}

Gradient:
    The same rotation of ``grad``: the matrix is symmetric and orthogonal. Nothing is kept for it.

Rounding:
    Computed in float32, or in float64 for a float64 input: for ``h = 1, 2, 4, ...`` the elements
    ``i`` and ``i + h`` become their sum and difference, then all are multiplied by
    ``1 / sqrt(block)``, which is computed in float64 and rounded to that dtype. Every sum,
    difference and product is rounded to that dtype too; then once to the dtype of ``input``.

{_HADAMARD_REFERENCE}"""

HADAMARD_QUANTIZE = f"""
{_HADAMARD_FORMULA};
and ``q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)``

Args:
{_HADAMARD_ARGS}
{_QUANTIZE_ARGS}

Returns:
{_QUANTIZED}

$example

{_RAISES_QUANTIZED}

{_NO_GRADIENT}

{_quantized("hadamard")}

{_HADAMARD_REFERENCE}"""
