# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of the range family, whose scale comes from the data."""

from . import JACOB, RAISES_OF_ELEMENTS, RAISES_WITH_AXIS, STRAIGHT_THROUGH, ZEROQUANT, affine

# ---- The granularities, with the shape of the scale that is returned ----------------------------

PER_TENSOR = affine.PER_TENSOR | {"returned": "``[]``", "input": "Any shape"}
PER_CHANNEL = affine.PER_CHANNEL | {"returned": affine.PER_CHANNEL["shape"], "input": "Any shape"}
PER_TOKEN = affine.PER_TOKEN | {"returned": "``[..., 1]``", "input": "``[..., D]``"}
PER_GROUP = affine.PER_GROUP | {"returned": affine.PER_GROUP["shape"], "input": "Any shape"}

# ---- What several verbs say ---------------------------------------------------------------------

_ARGS = """\
Args:
    input: $input; float32, float64, float16 or bfloat16.
    $axis
    quant_min: The smallest integer.
    quant_max: The largest integer.
    symmetric: True maps 0 to the middle of the integers' range. False maps
        ``[min(0, min x), max(0, max x)]`` to ``[quant_min, quant_max]``."""
_NO_GRADIENT = """\
Gradient:
    None: autograd takes the range of the data as a constant, and integers have no gradient."""
_ROUNDING = """\
Rounding:
    Computed in float32, or in float64 for a float64 input; ties go to the even integer. A $segment
    of zeros, or an empty one, has scale 1; any other scale is at least the smallest normal number.
    One NaN or infinity makes the scale of its $segment NaN or infinite:"""

# ---- The verbs ----------------------------------------------------------------------------------

CHOOSE_QPARAMS = f"""
``$s = max |x| / (quant_max - z)`` with ``z = (quant_min + quant_max + 1) // 2``; asymmetric:
``$s = (xmax - xmin) / (quant_max - quant_min)`` and ``$z = quant_min - rint(xmin / $s)``,
where ``xmin = min(0, min x)`` and ``xmax = max(0, max x)`` of the $segment

{_ARGS}

Returns:
    The scale, $returned,
    float32 (float64 for a float64 input), and the zero point, int32, with the shape of the scale.

$example

{RAISES_OF_ELEMENTS}

{_NO_GRADIENT}

{_ROUNDING}
    the $segment dequantizes to NaN.

References:
{JACOB}
    Wu et al. 2020, "Integer Quantization for Deep Learning Inference: Principles and Empirical
    Evaluation".
"""

DYNAMIC_RANGE_QUANTIZE = f"""
``q = clamp(rint(x / $s) + $z, quant_min, quant_max)``
with the ``s`` and ``z`` of :func:`choose_qparams_$name`

{_ARGS}
    dtype: int8 or uint8, which the range has to fit.

Returns:
    The integers, with the shape of ``input`` and of ``dtype``.
    The scale, $returned,
    float32 (float64 for a float64 input), and the zero point, int32, with the shape of the scale.

$example

{RAISES_OF_ELEMENTS}

{_NO_GRADIENT}

{_ROUNDING}
    its integers are the zero point, and dequantize to NaN.

References:
{ZEROQUANT}
"""

DYNAMIC_FAKE_QUANTIZE = f"""
``y = (clamp(rint(x / $s) + $z, quant_min, quant_max) - $z) * $s``
with the ``s`` and ``z`` of :func:`choose_qparams_$name`

{_ARGS}

Returns:
    The rounded numbers, with the shape and the dtype of ``input``.

$example

{RAISES_OF_ELEMENTS}

Gradient:
    Straight through, with the scale as a constant; differentiable twice. A symmetric scale clips
    nothing: the gradient is ``grad`` itself, and nothing is kept for it. An asymmetric scale:
    ``grad`` where x lay inside the range and 0 elsewhere; one bit per element is kept.

{_ROUNDING}
    the $segment becomes NaN.

References:
{STRAIGHT_THROUGH}
"""

# ---- Running ranges -----------------------------------------------------------------------------

_IGNORED = """\
A batch with a NaN or an infinity is ignored: the range stays as it was."""
_RUNNING = """\
    input: Any shape; float32, float64, float16 or bfloat16. An empty one changes nothing.
    min_val: ``[]`` or ``[1]``, or ``[C]`` for the ``C`` indices of ``axis``; float32 (float64 for a
        float64 input), contiguous. Start with inf. If an end is not finite, or
        ``min_val > max_val``, no data was seen yet, and the range becomes that of ``input``.
        Changed in place.
    max_val: Like ``min_val``, another tensor. Start with -inf. Changed in place."""
_AVERAGING = """\
    averaging_constant: The weight of a new range in a moving average, in (0, 1]; 1 keeps the new
        range alone. None keeps the minimum and the maximum of all data.
    skipped_batches: int64, ``[]`` or ``[1]``: it is incremented in place, by 1 for each batch that
        at least one range ignored. None does not count."""
_RUNNING_RAISES = f"""\
{RAISES_WITH_AXIS}
    NotImplementedError: No kernel for the device; :func:`torch.vmap`, whose samples cannot share a
        tensor that changes in place."""
_TWICE = """\
    :mod:`torch.utils.checkpoint` runs the op again in the backward pass. A minimum and a maximum,
    and the scale from them, do not change then if nothing else was observed in between. A moving
    average counts the batch twice: switch it off, or leave it out of the checkpoint."""
_RUNNING_ROUNDING = """\
Rounding:
    Computed in float32, or in float64 for a float64 input. A batch with a NaN or an infinity leaves
    its range as it was."""

OBSERVE_MIN_MAX = f"""
``min_val = min(min_val, min x)`` and ``max_val = max(max_val, max x)``; with an averaging constant
``c``: ``min_val += c * (min x - min_val)`` and ``max_val += c * (max x - max_val)``

{_IGNORED} With an ``axis`` this is
decided for each channel separately.

Args:
{_RUNNING}
    axis: The dimension of the channels, each of which has its own range. None: one range for the
        whole tensor.
{_AVERAGING}

Returns:
    Nothing; ``min_val`` and ``max_val`` are changed in place.

$example

{_RUNNING_RAISES}

Gradient:
    None.
{_TWICE}

{_RUNNING_ROUNDING}

References:
{JACOB}
"""

OBSERVE_FAKE_QUANTIZE = f"""
``y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s`` with the ``s`` and ``z`` that
:func:`choose_qparams_per_tensor` gives for the data ``{{min_val, max_val}}``

A tensor on the device switches each half off, without a wait for the device and without
recompilation. If nothing is observed, ``scale`` and ``zero_point`` are used as they are.

{_IGNORED} The scale is then that of
this range, or the given one before the first finite batch. With an ``axis`` this is decided for
each channel separately.

Args:
{_RUNNING}
    scale: Like ``min_val``. Start with 1. Changed in place.
    zero_point: Like ``min_val``, but int32. Start with 0. Changed in place.
    observer_enabled: One element, uint8 or bool. If it is 0, the four tensors above are not
        changed, and no batch is counted.
    fake_quant_enabled: One element, uint8 or bool. If it is 0, the result is a copy of ``input``.
    axis: The dimension of the channels, each of which has its own range and scale. None: one range
        and one scale for the whole tensor.
    quant_min: The smallest integer.
    quant_max: The largest integer.
    symmetric: True maps 0 to the middle of the integers' range. False maps the running range,
        extended to include 0, to ``[quant_min, quant_max]``.
{_AVERAGING}

Returns:
    The rounded numbers, with the shape and the dtype of ``input``. A NaN in it stays NaN, an
    infinity gives an end of the range.

$example

{_RUNNING_RAISES}

Gradient:
    Straight through, with the scale as a constant: ``grad`` where x lay inside the range or nothing
    was quantized, and 0 elsewhere; differentiable twice. One bit per element is kept.
{_TWICE}

{_RUNNING_ROUNDING}
    The scale, the zero point and the rounding follow the rules of :func:`choose_qparams_per_tensor`
    and :func:`fake_quantize_per_tensor`.

References:
{JACOB}
"""
